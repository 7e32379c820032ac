//! `millrace monitor` beside live traffic.

use std::fs::{self, File, read_to_string};
use std::io::{BufRead, BufReader, Read, pipe};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use millrace_lab::agent::{Proxy, binary};
use millrace_lab::cluster::Cluster;
use millrace_lab::container::{AGENT_CAPABILITIES, contain};
use millrace_lab::net::Task;
use millrace_lab::process::{Process, output};
use millrace_lab::topology::{Family, vip};
use millrace_lab::traffic::{Protocol, ask};
use serde_json::Value;
use tokio::net::UdpSocket;

use crate::fixture::{own, xdp};

/// The client's port.
const FROM: u16 = 40000;

/// Returns a node with a Service that answers, and one without endpoints.
fn node() -> Result<Cluster> {
    let cluster = own(1, 1)?;
    cluster.apply(&cluster.service("shown", 1, &["pod-1a"])?.load_balancer(vip(1)), &[1])?;
    cluster.manifests().put_service(&cluster.service("idle", 2, &[])?.load_balancer(vip(2)))?;
    let proxy = cluster.proxy(1)?;
    proxy.wait_until("the Service without endpoints is there", || {
        Ok(proxy.command(&["services", "default/idle"])?.status.success())
    })?;
    Ok(cluster)
}

fn at(number: u8, port: u16) -> SocketAddr {
    SocketAddr::new(vip(number).v4.into(), port)
}

/// Sends datagrams to the targets in turn, hundreds a second, until it is dropped.
fn keep_sending(cluster: &Cluster, targets: &[SocketAddr]) -> Task<()> {
    let targets = targets.to_vec();
    cluster.bed().client().spawn(async move || {
        let any: IpAddr = match targets.first() {
            Some(SocketAddr::V6(_)) => Ipv6Addr::UNSPECIFIED.into(),
            _ => Ipv4Addr::UNSPECIFIED.into(),
        };
        let socket = UdpSocket::bind((any, FROM)).await?;
        loop {
            for target in &targets {
                // An unconnected socket hears of no refusal.
                socket.send_to(&[0], target).await?;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
}

/// Returns the standard output of `millrace monitor`, which must end well.
fn monitor(proxy: &Proxy, arguments: &[&str]) -> Result<String> {
    Ok(String::from_utf8(run(proxy, arguments)?.stdout)?)
}

fn run(proxy: &Proxy, arguments: &[&str]) -> Result<Output> {
    let output = proxy.command(&[&["monitor"], arguments].concat())?;
    ensure!(output.status.success(), "{arguments:?}: {output:?}");
    Ok(output)
}

/// Returns the standard output of `millrace monitor` with the rights of an agent's pod.
fn run_contained(proxy: &Proxy, arguments: &[&str]) -> Result<String> {
    let (mut reader, writer) = pipe()?;
    let bpffs = proxy.bpffs().display().to_string();
    let words = [&["monitor", "--bpffs-path", &bpffs], arguments].concat();
    let said = std::env::temp_dir().join(format!("contained-{}.log", std::process::id()));
    let watching = Process::start_prepared(
        proxy.namespace(),
        binary()?,
        words.into_iter().map(str::to_owned).collect(),
        &said,
        |command| {
            command.stdout(writer);
            contain(command, AGENT_CAPABILITIES);
        },
    )?;
    let mut text = String::new();
    reader.read_to_string(&mut text)?;
    let status = watching.wait()?;
    ensure!(status.success(), "{status}: {}", read_to_string(&said)?);
    Ok(text)
}

fn rows(proxy: &Proxy, arguments: &[&str]) -> Result<Vec<Value>> {
    let text = monitor(proxy, &[arguments, &["-o", "jsonl"]].concat())?;
    text.lines().map(|line| serde_json::from_str(line).with_context(|| line.to_owned())).collect()
}

/// Has the kernel drop the datagrams that go on to the endpoints.
fn drop_at_endpoints(proxy: &Proxy) -> Result<()> {
    let rules = "table inet fw { chain f { type filter hook forward priority 0; udp dport 8080 drop; }; }";
    output(proxy.namespace(), &["nft", rules]).map(drop)
}

fn uplink_program() -> &'static str {
    if xdp() == "off" { "tc_ingress" } else { "xdp_ingress" }
}

#[test]
fn monitor_shows_drops_as_they_happen_and_only_those_that_are_wanted() -> Result<()> {
    let cluster = node()?;
    let proxy = cluster.proxy(1)?;
    let client = cluster.bed().client_addresses().v4;
    let _sending = keep_sending(&cluster, &[at(2, 80), at(1, 81)]);

    let text = monitor(proxy, &["--count", "1", "default/idle"])?;
    let [header, line] = text.lines().collect::<Vec<_>>().try_into().expect("two lines");
    assert_eq!(
        header,
        "TIME          WHAT         SERVICE                FROM                   TO                     WHY"
    );
    let (time, line) = line.split_at(14);
    assert!(time.trim().len() == "21:50:41.104".len(), "{time}");
    let from = format!("{client}:{FROM}");
    let wanted = format!(
        "drop         default/idle:udp-80    {from:<22} 203.0.113.2:80/udp     no_endpoint ({}, eth0)",
        uplink_program()
    );
    assert_eq!(line, wanted);

    let both = rows(proxy, &["--count", "8"])?;
    let of = |reason: &str| both.iter().filter(|row| row["reason"] == reason).count();
    assert!(of("no_endpoint") > 0 && of("unserved") > 0, "{both:?}");
    for (arguments, key, value) in [
        (&["default/idle"][..], "service", "default/idle:udp-80"),
        (&["--reason", "unserved"], "reason", "unserved"),
        (&["203.0.113.1"], "frontend", "203.0.113.1:81"),
        (&["--client", &format!("{client}/32")], "client", &from),
    ] {
        let rows = rows(proxy, &[arguments, &["--count", "4"]].concat())?;
        assert_eq!(rows.len(), 4, "{arguments:?}");
        assert!(rows.iter().all(|row| row[key] == value), "{arguments:?}: {rows:?}");
    }
    assert_eq!(rows(proxy, &["--last", "--client", "192.0.2.0/24"])?, Vec::<Value>::new());
    Ok(())
}

#[test]
fn monitor_tells_how_many_events_the_rate_left_out() -> Result<()> {
    let cluster = node()?;
    let _sending = keep_sending(&cluster, &[at(2, 80)]);
    // More events than all CPUs may record in the first second.
    let count = (std::thread::available_parallelism()?.get() * 10 + 1).to_string();
    let output = run(cluster.proxy(1)?, &["--rate", "1", "--count", &count, "-o", "jsonl"])?;
    let said = String::from_utf8(output.stderr)?;
    let words = " events left out: more than --rate, or than a CPU keeps";
    let left_out =
        |line: &str| -> Option<u64> { line.strip_prefix("millrace: ")?.strip_suffix(words)?.parse().ok() };
    assert!(said.lines().any(|line| left_out(line).is_some_and(|number| number > 0)), "{said}");
    assert!(said.lines().all(|line| left_out(line).is_some()), "{said}");
    Ok(())
}

#[test]
fn monitor_ends_quietly_when_its_reader_has_seen_enough() -> Result<()> {
    let cluster = node()?;
    let proxy = cluster.proxy(1)?;
    let (reader, writer) = pipe()?;
    let said = cluster.bed().directory().join("monitor.log");
    let arguments = ["monitor", "--bpffs-path", &proxy.bpffs().display().to_string()];
    let watching = Process::start_prepared(
        proxy.namespace(),
        binary()?,
        arguments.map(str::to_owned).to_vec(),
        &said,
        |command| {
            command.stdout(writer);
        },
    )?;
    let mut lines = BufReader::new(reader).lines();
    assert!(lines.next().context("no header")??.starts_with("TIME "));
    drop(lines);
    assert_eq!(watching.wait()?.code(), Some(0));
    assert_eq!(read_to_string(&said)?, "");
    Ok(())
}

#[test]
fn without_a_monitor_only_drops_are_recorded() -> Result<()> {
    let cluster = node()?;
    let proxy = cluster.proxy(1)?;
    let (client, every_kind) = (cluster.bed().client(), "drop,opened,established,refused,reset");
    ask(client, Protocol::Tcp, at(1, 80))?;
    assert!(ask(client, Protocol::Tcp, at(2, 80)).is_err());
    let past = rows(proxy, &["--last", "1000", "--type", every_kind])?;
    assert!(past.iter().any(|row| row["service"] == "default/idle:tcp-80"), "{past:?}");
    assert!(past.iter().all(|row| row["type"] == "drop"), "{past:?}");

    let asking = client.spawn(async || {
        loop {
            millrace_lab::traffic::ask_here(Protocol::Tcp, at(1, 80)).await?;
        }
    });
    let opened = rows(proxy, &["--type", "opened", "--count", "2"])?;
    drop::<Task<()>>(asking);
    for row in opened {
        let place = [&row["type"], &row["service"], &row["frontend"], &row["backend"]];
        assert_eq!(place, ["opened", "default/shown:tcp-80", "203.0.113.1:80", "10.244.1.10:8080"]);
    }
    Ok(())
}

#[test]
fn tcpdump_reads_the_packets_that_monitor_writes() -> Result<()> {
    let cluster = node()?;
    let _sending = keep_sending(&cluster, &[at(2, 80)]);
    let stream = run(cluster.proxy(1)?, &["--count", "2", "-o", "pcapng"])?.stdout;
    let comment = format!("no_endpoint ({}), Service default/idle:udp-80", uplink_program());
    let has = |text: &str| stream.windows(text.len()).any(|window| window == text.as_bytes());
    assert!(has(&comment) && has("eth0"), "{stream:?}");

    let file = cluster.bed().directory().join("drops.pcapng");
    fs::write(&file, &stream)?;
    let mut tcpdump = Command::new("tcpdump");
    tcpdump.args(["-Z", "root", "-tt", "--nano", "-nr", "-"]).stdin(File::open(&file)?);
    let output = tcpdump.output().context("can't run tcpdump")?;
    ensure!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout)?;
    let client = cluster.bed().client_addresses().v4;
    for line in text.lines() {
        let (time, packet) = line.split_once(' ').context("no time")?;
        assert_eq!(packet, format!("IP {client}.{FROM} > 203.0.113.2.80: UDP, length 1"));
        let (seconds, nanoseconds) = time.split_once('.').context("no fraction")?;
        assert!(seconds.parse::<i64>()? > 1_700_000_000 && nanoseconds.len() == 9, "{time}");
    }
    assert_eq!(text.lines().count(), 2);
    Ok(())
}

#[test]
fn monitor_shows_what_the_kernel_drops_of_a_service_with_its_reason_and_function() -> Result<()> {
    let cluster = node()?;
    let proxy = cluster.proxy(1)?;
    drop_at_endpoints(proxy)?;
    for family in Family::ALL {
        let client = SocketAddr::new(cluster.bed().client_addresses().of(family), FROM);
        let pod = SocketAddr::new(cluster.bed().pod("pod-1a")?.addresses().of(family), 8080);
        let _sending = keep_sending(&cluster, &[SocketAddr::new(vip(1).of(family), 80)]);

        let found = rows(proxy, &["--kernel", "--count", "3", "default/shown"])?;
        assert_eq!(found.len(), 3);
        for row in &found {
            let expected = [
                ("type", "kernel_drop".to_owned()),
                ("service", "default/shown:udp-80".to_owned()),
                ("client", client.to_string()),
                ("frontend", pod.to_string()),
                ("reason", "NETFILTER_DROP".to_owned()),
                ("program", "kernel".to_owned()),
                ("device", "eth0".to_owned()),
            ];
            for (key, value) in expected {
                assert_eq!(row[key], value, "{row}");
            }
            let function = row["function"].as_str().unwrap_or_default();
            assert!(function.starts_with("nft_do_chain") || function.starts_with("nf_hook_slow"), "{row}");
            let headers = if family == Family::V4 { 20 + 8 } else { 40 + 8 };
            assert_eq!(row["length"], headers + 1, "{row}");
        }
        let in_a_pod = run_contained(proxy, &["--kernel", "--count", "1", "default/shown"])?;
        assert!(in_a_pod.contains("NETFILTER_DROP (nf"), "{in_a_pod}");
    }
    Ok(())
}

#[test]
fn a_packet_that_the_programs_drop_is_no_drop_of_the_kernels() -> Result<()> {
    let cluster = node()?;
    let proxy = cluster.proxy(1)?;
    drop_at_endpoints(proxy)?;
    let ranged =
        cluster.service("ranged", 3, &["pod-1a"])?.load_balancer(vip(3)).source_ranges(&["192.0.2.0/24"]);
    cluster.manifests().put_service(&ranged)?;
    proxy.wait_until("the Service with source ranges is there", || {
        Ok(proxy.command(&["services", "default/ranged"])?.status.success())
    })?;
    let _sending = keep_sending(&cluster, &[at(1, 80), at(3, 80)]);
    let found = rows(proxy, &["--kernel", "--type", "drop", "--count", "100"])?;
    let of = |kind: &str| found.iter().filter(|row| row["type"] == kind).collect::<Vec<_>>();
    let (programs, mut kernel) = (of("drop"), of("kernel_drop"));
    // The kernel tells of all network namespaces. The devices of others have no names here.
    kernel.retain(|row| row["device"] == "eth0");
    assert!(programs.iter().any(|row| row["reason"] == "source_refused"), "{programs:?}");
    assert!(!kernel.is_empty() && kernel.iter().all(|row| row["reason"] == "NETFILTER_DROP"), "{kernel:?}");
    Ok(())
}
