//! The views of a node in eBPF mode: what they name, and the forms in which they print it.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, ensure};
use millrace_lab::agent::{Proxy, binary};
use millrace_lab::cluster::Cluster;
use millrace_lab::topology::{Family, vip};
use millrace_lab::traffic::{Protocol, ask};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::fixture::{own, own_without_agents};

/// Returns what a view prints.
fn printed(proxy: &Proxy, arguments: &[&str]) -> Result<String> {
    let Output { status, stdout, stderr } = proxy.command(arguments)?;
    ensure!(status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&stderr));
    Ok(String::from_utf8(stdout)?)
}

/// Returns the cells of the rows of a view, without its header.
fn rows(proxy: &Proxy, arguments: &[&str]) -> Result<Vec<Vec<String>>> {
    let text = printed(proxy, &[arguments, &["--no-headers"]].concat())?;
    Ok(text.lines().map(|line| line.split_whitespace().map(str::to_owned).collect()).collect())
}

/// Returns a cluster whose node 1 serves `shown`, with one answered connection for each family, and `idle` without
/// an endpoint.
fn shown() -> Result<Cluster> {
    let cluster = own(1, 2)?;
    let service = cluster.service("shown", 1, &["pod-1a"])?.load_balancer(vip(1));
    cluster.apply(&service, &[1])?;
    cluster.manifests().put_service(&cluster.service("idle", 2, &[])?.load_balancer(vip(2)))?;
    let proxy = cluster.proxy(1)?;
    proxy.wait_until("the Service without endpoints is there", || {
        Ok(proxy.command(&["services", "default/idle"])?.status.success())
    })?;
    for family in Family::ALL {
        ask(cluster.bed().client(), Protocol::Tcp, SocketAddr::new(vip(1).of(family), 80))?;
    }
    Ok(cluster)
}

#[test]
fn services_are_chosen_by_name_address_and_filter() -> Result<()> {
    let cluster = shown()?;
    let proxy = cluster.proxy(1)?;
    let names = |arguments: &[&str]| -> Result<Vec<String>> {
        let text = printed(proxy, &[&["services", "-o", "name"], arguments].concat())?;
        Ok(text.lines().map(str::to_owned).collect())
    };
    let both = vec!["default/shown:tcp-80".to_owned(), "default/shown:udp-80".to_owned()];
    let address = vip(1).v4.to_string();
    for arguments in [&["shown"][..], &["default/shown"], &["-n", "default", "shown"], &[&address]] {
        assert_eq!(names(arguments)?, both, "{arguments:?}");
    }
    assert_eq!(names(&["shown:tcp-80"])?, both[..1]);
    assert_eq!(names(&[&format!("{address}:80/udp")])?, both[1..]);
    assert_eq!(names(&["--problems", "--protocol", "tcp"])?, ["default/idle:tcp-80"]);
    assert_eq!(names(&["-n", "nowhere"])?, Vec::<String>::new());
    let row = &rows(proxy, &["services", "idle:tcp-80"])?[0];
    assert_eq!((row.last().map(String::as_str), row[0].as_str()), (Some("NoEndpoints"), "default"));

    let wrong = proxy.command(&["services", "default/shwon"])?;
    let line = "millrace: no Service matches \"default/shwon\"; nearest: default/shown\n";
    assert_eq!((wrong.status.code(), String::from_utf8(wrong.stderr)?.as_str()), (Some(3), line));
    assert!(wrong.stdout.is_empty());
    for view in ["backends", "flows"] {
        assert_eq!(proxy.command(&[view, "default/shwon"])?.status.code(), Some(3), "{view}");
    }
    Ok(())
}

#[test]
fn a_connection_is_one_row_and_its_entries_are_in_it() -> Result<()> {
    let cluster = shown()?;
    let proxy = cluster.proxy(1)?;
    let flows = printed(proxy, &["flows", "shown", "-o", "json"])?;
    let flows: Value = serde_json::from_str(&flows)?;
    assert_eq!((&flows["kind"], &flows["node"]), (&json!("FlowList"), &json!("node1")));
    let of_v4 = |flow: &&Value| flow["frontend"] == json!(SocketAddr::new(vip(1).v4.into(), 80));
    let items = flows["items"].as_array().context("no items")?;
    let flow = items.iter().find(of_v4).with_context(|| format!("no connection in {flows:#}"))?;
    assert_eq!((&flow["service"], &flow["path"]), (&json!("default/shown:tcp-80"), &json!("direct")));
    assert_eq!(flow["entries"].as_array().map(Vec::len), Some(2), "{flow:#}");
    let entries = rows(proxy, &["flows", "shown", "--entries"])?;
    assert_eq!(entries.len(), 2 * rows(proxy, &["flows", "shown"])?.len());
    assert_eq!(rows(proxy, &["flows", "idle"])?, Vec::<Vec<String>>::new());
    let counted = rows(proxy, &["flows", "--count-by", "service"])?;
    assert!(counted.contains(&vec!["default/shown:tcp-80".to_owned(), "2".to_owned()]), "{counted:?}");
    let backends = rows(proxy, &["backends", "shown", "--node", "here"])?;
    assert!(backends.len() == 2 && backends.iter().all(|row| row[2] == "ready"), "{backends:?}");
    Ok(())
}

#[test]
fn every_view_prints_every_format() -> Result<()> {
    let cluster = shown()?;
    let proxy = cluster.proxy(1)?;
    for view in ["services", "backends", "flows", "ways", "announced", "counters", "maps", "programs"] {
        let document: Value = serde_json::from_str(&printed(proxy, &[view, "-o", "json"])?)?;
        assert_eq!(document["apiVersion"], "millrace.dev/v1alpha1", "{view}");
        let items = document["items"].as_array().with_context(|| format!("{view} has no items"))?;
        let lines = printed(proxy, &[view, "-o", "jsonl"])?;
        for line in lines.lines() {
            assert!(serde_json::from_str::<Value>(line)?.is_object(), "{view}: {line}");
        }
        // Connections end meanwhile, and counters begin to count.
        if !["flows", "counters"].contains(&view) {
            assert_eq!(items.len(), lines.lines().count(), "{view}");
            assert_eq!(printed(proxy, &[view, "-o", "name"])?.lines().count(), items.len(), "{view}");
            let modes = printed(proxy, &[view, "-o", "jsonpath={.items[*].mode}"])?;
            assert_eq!(modes, "ebpf\n".repeat(items.len()), "{view}");
        }
        assert!(printed(proxy, &[view, "-o", "yaml"])?.starts_with("apiVersion: millrace.dev/v1alpha1\n"));
        assert!(printed(proxy, &[view, "-o", "wide"])?.starts_with(char::is_uppercase));
    }
    let sorted = printed(proxy, &["maps", "--sort-by=-entries", "-o", "custom-columns=E:.entries"])?;
    let entries: Vec<u64> = sorted.lines().skip(1).map(str::parse).collect::<Result<_, _>>()?;
    assert!(entries.len() > 5 && entries.is_sorted_by(|a, b| a >= b), "{sorted}");
    Ok(())
}

#[test]
fn status_and_version_name_the_running_agent() -> Result<()> {
    let mut cluster = shown()?;
    let agent = cluster.take_agent(1)?;
    let proxy = cluster.proxy(1)?;
    let text = printed(proxy, &["status", "--wait", "Ready", "--timeout", "60s"])?;
    assert!(text.starts_with("node1: Ready; eBPF\n") && text.ends_with("problems none\n"), "{text}");
    assert!(text.contains("; 2 Services, 2 endpoints\n"), "{text}");
    let process = printed(proxy, &["version", "-o", "jsonpath={.agent.process}"])?;
    assert_eq!(process.trim(), agent.id().to_string());
    assert!(agent.stop()?.success());
    let text = printed(proxy, &["status"])?;
    assert!(text.contains("unknown, no agent answers") && text.contains("the data path goes on"), "{text}");
    let late = proxy.command(&["status", "--wait", "ready", "--timeout", "10ms"])?;
    assert_eq!(late.status.code(), Some(4));
    assert!(printed(proxy, &["version"])?.ends_with("; no agent answers here\n"));
    Ok(())
}

#[test]
fn a_watch_shows_a_change_and_ends_with_its_reader() -> Result<()> {
    let cluster = shown()?;
    let proxy = cluster.proxy(1)?;
    let (binary, bpffs) = (binary()?, proxy.bpffs().to_owned());
    let mut watch = Command::new(binary)
        .args(["services", "-o", "name", "--watch", "--watch-interval", "50ms", "--bpffs-path"])
        .arg(bpffs)
        .stdout(Stdio::piped())
        .spawn()?;
    let mut lines = BufReader::new(watch.stdout.take().context("no pipe")?).lines();
    assert_eq!(lines.next().context("nothing")??, "default/idle:tcp-80");
    cluster.manifests().put_service(&cluster.service("later", 3, &["pod-1a"])?.load_balancer(vip(3)))?;
    let later = lines.by_ref().map_while(Result::ok).find(|line| line == "default/later:tcp-80");
    assert!(later.is_some());
    drop(lines);
    assert_eq!(watch.wait()?.code(), Some(0));
    Ok(())
}

#[test]
fn a_shell_completes_names_of_services() -> Result<()> {
    let cluster = shown()?;
    let bpffs = cluster.proxy(1)?.bpffs().display().to_string();
    let completed = |words: &[&str]| -> Result<String> {
        let command = ["millrace", "services", "--bpffs-path", &bpffs];
        let all = [&command, words].concat();
        let output =
            Command::new(binary()?).env("MILLRACE_COMPLETE", "fish").arg("--").args(&all).output()?;
        ensure!(output.status.success(), "{output:?}");
        Ok(String::from_utf8(output.stdout)?)
    };
    let names = completed(&["default/s"])?;
    assert!(names.contains("default/shown") && !names.contains("default/idle"), "{names}");
    assert!(completed(&["id"])?.contains("idle"));
    assert!(completed(&["--namespace", "de"])?.contains("default"));
    Ok(())
}

#[test]
fn the_log_is_json_where_that_is_asked_for_and_sigusr1_shows_decisions() -> Result<()> {
    let cluster = own_without_agents(1, 0)?;
    let proxy = cluster.proxy(1)?;
    let agent = proxy.start_prepared(&["--log-format", "json"], |command| {
        command.env("RUST_LOG", "info");
    })?;
    proxy.wait_for_start(1)?;
    let levels = |log: &str| -> Result<Vec<String>> {
        let lines = log.lines().map(|line| {
            let line: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
            ensure!(line["message"].is_string() && line["timestamp"].is_string(), "{line}");
            Ok(line["level"].as_str().unwrap_or_default().to_owned())
        });
        lines.collect()
    };
    assert!(!levels(&proxy.log())?.contains(&"DEBUG".to_owned()));
    for (level, times) in [("debug", 1), ("info", 2)] {
        kill(Pid::from_raw(agent.id().try_into()?), Signal::SIGUSR1)?;
        proxy.wait_until(level, || Ok(proxy.log().matches("SIGUSR1 changed the level").count() == times))?;
    }
    let log = proxy.log();
    let changes: Vec<Value> = log
        .lines()
        .filter(|line| line.contains("SIGUSR1"))
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()?;
    assert!(changes[0]["level"].is_string() && log.contains("millrace=debug"), "{changes:?}");
    levels(&log)?;
    assert!(agent.stop()?.success());
    Ok(())
}
