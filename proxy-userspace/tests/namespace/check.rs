//! `millrace check` on nodes with nothing wrong, and with one thing wrong each.

use std::process::{Command, Output};

use anyhow::{Context, Result};
use millrace_lab::agent::Proxy;
use millrace_lab::cluster::Cluster;
use millrace_lab::container::contain;
use millrace_lab::net::write_sysctl;
use millrace_lab::process;
use millrace_lab::topology::{Leg, Shape, vip};
use serde_json::Value;

use crate::fixture::{own, own_without_agents, xdp};

/// Returns the findings of `millrace check <arguments> -o json` on a node, and its exit status.
fn check(proxy: &Proxy, arguments: &[&str]) -> Result<(Vec<Value>, Option<i32>)> {
    let output = proxy.command(&[&["check", "-o", "json"], arguments].concat())?;
    let text = String::from_utf8_lossy(&output.stdout);
    let said = || format!("{text}{}", String::from_utf8_lossy(&output.stderr));
    let document: Value = serde_json::from_str(&text).with_context(said)?;
    let items = document["items"].as_array().cloned().with_context(said)?;
    assert_eq!(document["kind"], "CheckList");
    Ok((items, output.status.code()))
}

/// Returns what checks found with this result, each with its remedy.
fn found(items: &[Value], result: &str) -> Vec<(String, String)> {
    let word = |item: &Value, key: &str| item[key].as_str().unwrap_or_default().to_owned();
    let of_result = items.iter().filter(|item| item["result"] == result);
    of_result.map(|item| (word(item, "found"), word(item, "remedy"))).collect()
}

/// Expects one finding that is no pass, with these words, and this exit status.
fn expect_one(proxy: &Proxy, arguments: &[&str], result: &str, words: &str, status: i32) -> Result<String> {
    let (items, code) = check(proxy, arguments)?;
    let wrong = found(&items, result);
    assert_eq!(wrong.len(), 1, "{items:#?}");
    assert_eq!(wrong[0].0, words);
    assert_eq!(code, Some(status), "{items:#?}");
    Ok(wrong[0].1.clone())
}

/// Runs each command of a remedy on a node, as an administrator would.
fn carry_out(proxy: &Proxy, remedy: &str) -> Result<()> {
    for command in remedy.split("; ") {
        process::output(proxy.namespace(), &command.split(' ').collect::<Vec<_>>())?;
    }
    Ok(())
}

#[test]
fn a_node_with_nothing_wrong_has_no_failure_and_the_agents_own_settings_are_checked() -> Result<()> {
    let mut cluster = own(2, 1)?;
    let service = cluster.service("web", 1, &["pod-1a", "pod-2a"])?.load_balancer(vip(1));
    cluster.apply(&service, &[1, 2])?;
    cluster.wait_for_ways(1)?;
    let (items, status) = check(cluster.proxy(1)?, &["--network"])?;
    // Each node of the test bed has a control group of its own.
    let warnings = found(&items, "WARN").into_iter().filter(|(words, _)| !words.contains("is not the root"));
    assert_eq!((found(&items, "FAIL"), warnings.collect()), (vec![], vec![]), "{items:#?}");
    assert_eq!(status, Some(0));
    let passed = |check: &str| {
        let item = items.iter().find(|item| item["check"] == check && item["result"] == "PASS");
        item.map(|item| item["found"].as_str().unwrap_or_default().to_owned())
            .with_context(|| format!("{items:#?}"))
    };
    assert_eq!(passed("uplinks")?, "eth0 (veth)");
    assert!(passed("agent")?.ends_with(" is ready"));
    // These patterns are the running agent's flag, and not the default.
    assert!(passed("pods")?.ends_with("match --pod-interfaces veth*,cni0"));
    assert_eq!(passed("network")?, "2 nodes got packets as large as claimed, encapsulated (ipip)");
    assert!(passed("links")?.ends_with("programs are attached"));

    // For people: a line for each finding, and the counts.
    let output = cluster.proxy(1)?.command(&["check"])?;
    let text = String::from_utf8(output.stdout)?;
    assert!(text.starts_with("RESULT  CHECK"), "{text}");
    assert!(
        text.trim_end().ends_with("skipped") && text.contains(" passed, 1 warning, 0 failed, "),
        "{text}"
    );

    // Without the agent the data path goes on, and that is a warning.
    assert!(cluster.take_agent(1)?.stop()?.success());
    let (items, status) = check(cluster.proxy(1)?, &["agent"])?;
    assert!(found(&items, "WARN")[0].0.starts_with("no agent answers since "), "{items:#?}");
    assert_eq!(status, Some(0));
    assert_eq!(check(cluster.proxy(1)?, &["agent", "--strict"])?.1, Some(4));
    Ok(())
}

#[test]
fn a_misspelt_uplink_is_a_failure_before_and_after_the_agent_starts() -> Result<()> {
    let mut cluster = own_without_agents(1, 1)?;
    let output = cluster.proxy(1)?.command(&["check", "uplinks", "--uplinks", "eth9"])?;
    let (text, said) = (String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?);
    assert!(text.contains("--uplinks names eth9; there is no such device (there are: "), "{text}");
    assert!(text.contains("eth0") && text.contains("Nothing from outside is served."), "{text}");
    assert_eq!((output.status.code(), said.as_str()), (Some(4), "millrace: not all is well: uplinks\n"));

    cluster.start_agent_with(1, &["--uplinks", "eth0,eth9"])?;
    cluster.wait_for_hooks(1)?;
    let proxy = cluster.proxy(1)?;
    proxy.wait_until_within(std::time::Duration::from_mins(1), "the agent's own check has run", || {
        let output = proxy.command(&["ready"])?;
        let why = String::from_utf8(output.stderr)?;
        Ok(output.status.code() == Some(4) && why.contains("node-checks: --uplinks names eth9;"))
    })?;
    let log = proxy.log();
    let line = log.lines().find(|line| line.contains("reason=\"UplinkMissing\""));
    let line = line.with_context(|| log.clone())?;
    for word in ["WARN", "check=\"uplinks\"", "--uplinks names eth9", "remedy="] {
        assert!(line.contains(word), "{word} is not in {line}");
    }
    Ok(())
}

#[test]
fn a_firewall_behind_the_programs_is_named_with_the_services_that_it_hits() -> Result<()> {
    let cluster = own(2, 2)?;
    let direct = cluster.service("dsr", 1, &["pod-2a"])?.load_balancer(vip(1));
    cluster.apply(&direct.annotation("millrace.dev/forwarding", "dsr"), &[1, 2])?;
    cluster.apply(&cluster.service("web", 2, &["pod-2a", "pod-2b"])?.load_balancer(vip(2)), &[1, 2])?;
    let target = std::net::SocketAddr::new(vip(1).v4.into(), 80);
    cluster.exchange(target, 1000)?;
    let proxy = cluster.proxy(2)?;
    let endpoint = cluster.bed().pod("pod-2a")?.addresses().v4;
    let rules = format!(
        "add table inet fw; add chain inet fw f {{ type filter hook forward priority 0; }}; \
         add rule inet fw f ip daddr {endpoint} tcp dport 8080 drop"
    );
    process::output(proxy.namespace(), &["nft", &rules])?;
    let words = format!(
        "inet fw/f drops by rule 2 packets to {endpoint}:8080/TCP: an endpoint of default/dsr, default/web"
    );
    let remedy = expect_one(proxy, &["firewall"], "WARN", &words, 0)?;
    assert_eq!(remedy, "nft -a list chain inet fw f; nft delete rule inet fw f handle 2");
    carry_out(proxy, &remedy)?;
    cluster.exchange(target, 1000)?;
    assert_eq!(found(&check(proxy, &["firewall"])?.0, "WARN"), vec![]);

    // A chain that drops everything by its policy, as docker's does.
    process::output(proxy.namespace(), &["nft", "chain inet fw f { policy drop; }"])?;
    let (items, status) = check(proxy, &["firewall"])?;
    let failures = found(&items, "FAIL");
    assert_eq!(status, Some(4));
    assert!(failures[0].0.starts_with("inet fw/f drops by its policy packets to "), "{failures:#?}");
    carry_out(proxy, &failures[0].1)?;
    cluster.exchange(target, 1000)?;
    assert_eq!(check(proxy, &["firewall"])?.1, Some(0));
    Ok(())
}

#[test]
fn a_strict_reverse_path_filter_on_the_way_of_clients_is_named_with_the_command_that_loosens_it() -> Result<()>
{
    let mut cluster = own_without_agents(1, 1)?;
    cluster.bed().add_second_uplinks()?;
    cluster.start_agent_with(1, &["--uplinks", "eth0,eth1"])?;
    cluster.wait_for_hooks(1)?;
    let proxy = cluster.proxy(1)?;
    let loose = || {
        Ok(proxy.log().contains("net.ipv4.conf.eth1.rp_filter")
            && check(proxy, &["sysctl.rp_filter"])?.1 == Some(0))
    };
    proxy.wait_until("the agent has loosened the filters", loose)?;
    // As a package does that sets sysctls anew.
    proxy.namespace().run(async || write_sysctl("net/ipv4/conf/eth1/rp_filter", "1"))?;
    let words = "rp_filter of eth1 is 1 (strict), and the default route leads by eth0: the kernel drops clients' packets \
                 that come in by eth1";
    let remedy = expect_one(proxy, &["sysctl.rp_filter"], "FAIL", words, 4)?;
    assert_eq!(remedy, "sysctl -w net.ipv4.conf.eth1.rp_filter=2");
    // The command shows the remedy, carries it out and checks again.
    let output = proxy.command(&["check", "sysctl.rp_filter", "--fix"])?;
    assert_eq!(String::from_utf8(output.stderr)?, format!("millrace: {remedy}\n"));
    assert!(output.status.success() && String::from_utf8(output.stdout)?.contains("PASS"));
    assert_eq!(check(proxy, &["sysctl.rp_filter"])?.1, Some(0));
    Ok(())
}

#[test]
fn a_hole_in_the_mtu_between_nodes_is_found_by_packets_in_the_encapsulation_in_use() -> Result<()> {
    for encapsulation in ["ipip", "fou"] {
        let mut cluster = Cluster::without_agents(Shape { nodes: 2, pods: 1, ..Shape::default() }, &xdp())?;
        let gate = cluster.bed().add_narrows(Leg::Nodes { from: 1, to: 2 }, 1400)?;
        // The router says nothing about what it drops.
        let silent = "add table inet silent; add chain inet silent o { type filter hook output priority 0; }; \
                      add rule inet silent o icmp type destination-unreachable drop; \
                      add rule inet silent o icmpv6 type packet-too-big drop";
        process::output(gate.namespace(), &["nft", silent])?;
        for node in [1, 2] {
            cluster.start_agent_with(node, &["--dsr-encap", encapsulation])?;
            cluster.wait_for_hooks(node)?;
        }
        let proxy = cluster.proxy(1)?;
        let way = cluster.bed().node(2)?.addresses().v4;
        proxy.wait_until("the way is there", || {
            Ok(proxy.items("ways")?.iter().any(|item| item["target"] == way.to_string()))
        })?;
        let output = proxy.command(&["check", "network", "--network"])?;
        let text = String::from_utf8(output.stdout)?;
        let hole = text.lines().find(|line| line.contains(&format!("the way to {way} claims 1500 bytes")));
        let hole = hole.with_context(|| text.clone())?;
        assert!(hole.starts_with("FAIL") && hole.contains("larger packets vanish without a word"), "{hole}");
        let passes =
            hole.split("passes ").nth(1).and_then(|rest| rest.split(' ').next()).context("a size")?;
        let passes: u16 = passes.parse()?;
        assert!((1393..=1400).contains(&passes), "{hole}");
        assert_eq!(output.status.code(), Some(4));
    }
    Ok(())
}

#[test]
fn a_network_that_filters_the_encapsulation_is_told_from_one_that_carries_it() -> Result<()> {
    let cluster = own(2, 1)?;
    cluster.wait_for_ways(1)?;
    let filter = "add table inet net; add chain inet net f { type filter hook forward priority 0; }; \
                  add rule inet net f meta l4proto 4 drop";
    process::output(cluster.bed().router(), &["nft", filter])?;
    let way = cluster.bed().node(2)?.addresses().v4;
    let words = format!(
        "{way} answers no packet in the encapsulation ipip: the network drops IP protocol 4, or the node's firewall drops \
         it or its ICMP errors"
    );
    expect_one(cluster.proxy(1)?, &["network", "--network"], "WARN", &words, 0)?;
    Ok(())
}

/// Returns the output of `millrace check` by a process without capabilities.
fn without_rights(proxy: &Proxy) -> Result<Output> {
    let bpffs = proxy.bpffs().to_owned();
    proxy.namespace().run(async move || {
        let mut command = Command::new(millrace_lab::agent::binary()?);
        command.args(["check", "--source", "directory:/nowhere", "--bpffs-path"]).arg(bpffs);
        contain(&mut command, 0);
        Ok(command.output()?)
    })
}

#[test]
fn without_rights_what_can_be_checked_is_checked() -> Result<()> {
    let cluster = own_without_agents(1, 1)?;
    let output = without_rights(cluster.proxy(1)?)?;
    let text = String::from_utf8(output.stdout)?;
    assert!(
        text.contains("WARN    capabilities") && text.contains("lacks CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN"),
        "{text}"
    );
    assert!(
        text.contains("PASS    uplinks") && text.contains("reading the rules takes CAP_NET_ADMIN"),
        "{text}"
    );
    assert!(output.stderr.is_empty() && output.status.success(), "{text}");
    Ok(())
}
