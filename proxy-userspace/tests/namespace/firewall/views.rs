//! What commands show of the firewall.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use millrace_lab::agent::Proxy;
use millrace_lab::cluster::TARGET_PORT;
use millrace_lab::net::Task;
use millrace_lab::process::run;
use millrace_lab::topology::{Family, vip};
use serde_json::{Value, json};
use tokio::net::UdpSocket;

use super::bench::{Guarded, judge};
use crate::fixture::own;

/// The status of a command where there is nothing to show.
const NO_DATAPLANE: i32 = 5;

fn from_b() -> Value {
    json!({"podSelector": {"matchLabels": {"app": "a"}},
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "b"}}}]}]})
}

fn printed(proxy: &Proxy, arguments: &[&str]) -> Result<String> {
    let output = proxy.command(arguments)?;
    ensure!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// Returns the cells INGRESS, EGRESS and POLICIES of each pod by its name, and of devices by theirs.
fn pods(proxy: &Proxy) -> Result<Vec<[String; 4]>> {
    let list: Value = serde_json::from_str(&printed(proxy, &["policies", "-o", "json"])?)?;
    ensure!(list["kind"] == "FirewallPodList", "{list}");
    let items = list["items"].as_array().context("no items")?;
    let text = |item: &Value, key: &str| item[key].as_str().unwrap_or_default().to_owned();
    let pod = |item: &Value| {
        let policies = item["policies"].as_array().into_iter().flatten();
        let policies: Vec<String> = policies.map(|policy| text(policy, "name")).collect();
        let name = if item["known"] == true { text(item, "name") } else { "unknown".to_owned() };
        [name, text(item, "ingress"), text(item, "egress"), policies.join(",")]
    };
    Ok(items.iter().map(pod).collect())
}

/// Waits until the pods are shown so.
fn expect(proxy: &Proxy, rows: &[[&str; 4]]) -> Result<()> {
    let waited = proxy.wait_until("the pods are shown", || Ok(pods(proxy)? == rows));
    waited.with_context(|| format!("{:?}", pods(proxy)))
}

/// Returns the drops of the firewall.
fn drops(proxy: &Proxy, arguments: &[&str]) -> Result<Vec<Value>> {
    let text = printed(proxy, &[&["monitor", "--last", "1000", "-o", "jsonl"], arguments].concat())?;
    let rows = text.lines().map(|line| Ok(serde_json::from_str(line)?));
    let mut rows = rows.collect::<Result<Vec<Value>>>()?;
    rows.retain(|row| row["type"] == "policy_drop");
    Ok(rows)
}

/// Checks that a denied request from pod-1c to pod-1a is shown with both names.
fn expect_denied(guarded: &Guarded, proxy: &Proxy) -> Result<()> {
    let drops = drops(proxy, &[])?;
    let (from, to) = (guarded.addresses("pod-1c")?.v4, guarded.addresses("pod-1a")?.v4);
    let is_meant = |row: &&Value| {
        row["reason"] == "denied"
            && row["direction"] == "ingress"
            && row["protocol"] == "TCP"
            && row["client_pod"] == "shop/pod-1c"
            && row["frontend_pod"] == "shop/pod-1a"
            && row["client"].as_str().is_some_and(|client| client.starts_with(&format!("{from}:")))
            && row["frontend"] == format!("{to}:8080")
    };
    ensure!(drops.iter().any(|row| is_meant(&row)), "{drops:#?}");
    let table = printed(proxy, &["monitor", "--last"])?;
    ensure!(table.contains("denied (ingress of shop/pod-1a from shop/pod-1c, "), "{table}");
    Ok(())
}

#[test]
fn policies_in_force_and_dropped_packets_are_shown_by_the_names_of_pods() -> Result<()> {
    let mut guarded = Guarded::start(1, 3, &[])?;
    let proxy = guarded.cluster.proxy(1)?;
    let open = |name| [name, "open", "open", ""];
    expect(proxy, &["pod-1a", "pod-1b", "pod-1c"].map(open))?;

    let none = json!({"podSelector": {"matchLabels": {"app": "a"}}, "policyTypes": ["Ingress", "Egress"],
        "egress": [{}]});
    guarded.put_policies(&[("from-b", from_b()), ("none", none)])?;
    guarded.wait_until_pod("pod-1c", "pod-1a", false)?;
    let web = ["pod-1a", "isolated", "isolated", "from-b,none"];
    expect(proxy, &[web, open("pod-1b"), open("pod-1c")])?;
    let row = printed(proxy, &["policies", "shop/pod-1a", "-o", "wide", "--no-headers"])?;
    let addresses = guarded.addresses("pod-1a")?;
    ensure!(row.trim_end().ends_with(&format!("{},{}", addresses.v4, addresses.v6)), "{row}");
    expect_denied(&guarded, proxy)?;
    for (arguments, is_some) in [
        (&["--type", "policy_drop"][..], true),
        (&["--type", "drop"], false),
        (&["--reason", "denied"], true),
        (&["--reason", "unreadable"], false),
        (&["-n", "shop"], true),
        (&["-n", "other"], false),
        (&[&addresses.v4.to_string()], true),
    ] {
        ensure!(drops(proxy, arguments)?.is_empty() != is_some, "{arguments:?}");
    }

    // A pod that is not known: nothing but its node reaches it.
    guarded.put_pods(&["pod-1b"])?;
    expect(proxy, &[web, open("pod-1c"), ["unknown", "closed", "closed", ""]])?;
    guarded.wait_until_pod("pod-1c", "pod-1b", false)?;
    let unknown = drops(proxy, &["--reason", "unknown_pod"])?;
    ensure!(unknown.iter().any(|row| row["client_pod"] == "shop/pod-1c"), "{unknown:#?}");

    // All of it is there without an agent, too.
    guarded.cluster.take_agent(1)?.kill()?;
    let proxy = guarded.cluster.proxy(1)?;
    ensure!(pods(proxy)? == [web, open("pod-1c"), ["unknown", "closed", "closed", ""]], "{:?}", pods(proxy)?);
    expect_denied(&guarded, proxy)
}

/// Returns the pods at both ends of denied connections between these pods, in a direction, by family.
fn denied_ends(
    guarded: &Guarded,
    proxy: &Proxy,
    direction: &str,
    [from, to]: [&str; 2],
) -> Result<Vec<(Family, [String; 2])>> {
    let drops = drops(proxy, &["--reason", "denied"])?;
    let mut ends = Vec::new();
    for family in Family::ALL {
        let [from, to] = [from, to].map(|pod| guarded.addresses(pod));
        let (from, to) = (from?.of(family), SocketAddr::new(to?.of(family), TARGET_PORT).to_string());
        let is_from = |row: &Value| {
            let client = row["client"].as_str().and_then(|client| client.parse::<SocketAddr>().ok());
            client.is_some_and(|client| client.ip() == from)
        };
        let is_meant = |row: &&Value| row["direction"] == direction && is_from(row) && row["frontend"] == to;
        let text = |row: &Value, key: &str| row[key].as_str().unwrap_or_default().to_owned();
        let names = |row: &Value| (family, [text(row, "client_pod"), text(row, "frontend_pod")]);
        ends.extend(drops.iter().filter(is_meant).map(names));
    }
    Ok(ends)
}

/// Checks that denied connections between two pods are shown in both families, all with these names.
fn expect_ends(guarded: &Guarded, direction: &str, pods: [&str; 2], names: [&str; 2]) -> Result<()> {
    let ends = denied_ends(guarded, guarded.cluster.proxy(1)?, direction, pods)?;
    for family in Family::ALL {
        ensure!(ends.iter().any(|(of, _)| *of == family), "{direction} {family}: {ends:?}");
    }
    let are_named = |(_, found): &(Family, [String; 2])| found == &names;
    ensure!(ends.iter().all(are_named), "{direction} of {pods:?}: {ends:?}, not {names:?}");
    Ok(())
}

#[test]
fn a_drop_between_pods_of_two_nodes_shows_both_by_name() -> Result<()> {
    let mut guarded = Guarded::start(2, 2, &[])?;
    let out = json!({"podSelector": {"matchLabels": {"app": "b"}}, "policyTypes": ["Egress"],
        "egress": [{"to": [{"podSelector": {"matchLabels": {"app": "a"}}}]}]});
    guarded
        .put_policies(&[("closed", json!({"podSelector": {"matchLabels": {"app": "a"}}})), ("out", out)])?;
    guarded.wait_until_pod("pod-2b", "pod-1a", false)?;
    guarded.wait_until_pod("pod-1b", "pod-2b", false)?;
    let ask = |guarded: &Guarded| {
        let mut questions = guarded.ask_pod("pod-2b", "pod-1a", false)?;
        questions.extend(guarded.ask_pod("pod-1b", "pod-2b", false)?);
        judge(questions)
    };
    ask(&guarded)?;
    let [to_a, from_b] = [["pod-2b", "pod-1a"], ["pod-1b", "pod-2b"]];
    let expect = |guarded: &Guarded| {
        expect_ends(guarded, "ingress", to_a, ["shop/pod-2b", "shop/pod-1a"])?;
        expect_ends(guarded, "egress", from_b, ["shop/pod-1b", "shop/pod-2b"])
    };
    expect(&guarded)?;
    let proxy = guarded.cluster.proxy(1)?;
    let table = printed(proxy, &["monitor", "--last"])?;
    ensure!(table.contains("denied (ingress of shop/pod-1a from shop/pod-2b, "), "{table}");
    ensure!(table.contains("denied (egress of shop/pod-1b to shop/pod-2b, "), "{table}");
    let of_far = |family| guarded.addresses("pod-2b").map(|far| far.of(family).to_string());
    for family in Family::ALL {
        let to = SocketAddr::new(guarded.addresses("pod-1a")?.of(family), TARGET_PORT).to_string();
        let text = printed(proxy, &["explain", &of_far(family)?, &to])?;
        ensure!(text.contains(&format!(" from {} (shop/pod-2b)\n", of_far(family)?)), "{text}");
        ensure!(text.contains(&format!(" {} is shop/pod-2b: ", of_far(family)?)), "{text}");
    }
    // The names outlive the agent, and the next one takes them over.
    guarded.cluster.take_agent(1)?.kill()?;
    expect(&guarded)?;
    guarded.cluster.start_agent_with(1, &["--network-policy", "on"])?;
    guarded.wait_until_pod("pod-2b", "pod-1a", false)?;
    expect(&guarded)?;

    // Another pod gets the addresses. What was dropped before was not its own.
    let far = guarded.addresses("pod-2b")?;
    let addresses: Vec<Value> = far.both().iter().map(|ip| json!({"ip": ip})).collect();
    let next = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "shop", "name": "next", "uid": "next", "labels": {"app": "b"}},
        "spec": {"nodeName": "node2", "containers": [{"name": "main", "image": "x"}]},
        "status": {"phase": "Running", "podIPs": addresses}});
    guarded.put_pods(&["pod-2b"])?;
    guarded.cluster.manifests().put("next.yaml", &next.to_string())?;
    let proxy = guarded.cluster.proxy(1)?;
    let names = || denied_ends(&guarded, proxy, "ingress", to_a);
    let is = |ends: &[(Family, [String; 2])], family, name: &str| {
        ends.iter().any(|(of, [client, _])| *of == family && client == name)
    };
    let waited = proxy.wait_until("the next pod is named", || {
        ask(&guarded)?;
        let ends = names()?;
        Ok(Family::ALL.into_iter().all(|family| is(&ends, family, "shop/next")))
    });
    waited.with_context(|| format!("{:?}", names()))?;
    let ends = names()?;
    for family in Family::ALL {
        ensure!(is(&ends, family, "") && !is(&ends, family, "shop/pod-2b"), "{family}: {ends:?}");
    }
    Ok(())
}

#[test]
fn a_node_without_the_firewall_says_so_and_monitor_works() -> Result<()> {
    let cluster = own(1, 1)?;
    let proxy = cluster.proxy(1)?;
    let off = proxy.command(&["policies"])?;
    let said = String::from_utf8(off.stderr)?;
    ensure!(off.status.code() == Some(NO_DATAPLANE) && said.contains("--network-policy on"), "{said}");
    ensure!(drops(proxy, &[])?.is_empty());
    Ok(())
}

#[test]
fn a_packet_that_the_firewall_drops_is_no_drop_of_the_kernels() -> Result<()> {
    let guarded = Guarded::start(1, 3, &[])?;
    let proxy = guarded.cluster.proxy(1)?;
    let service = guarded.cluster.service("web", 1, &["pod-1a", "pod-1b"])?.load_balancer(vip(1));
    guarded.cluster.apply(&service, &[1])?;
    guarded.put_policies(&[("from-b", from_b())])?;
    guarded.wait_until_pod("pod-1c", "pod-1a", false)?;
    // What the kernel drops itself is shown beside.
    let (denied, dropped) = (guarded.addresses("pod-1a")?.v4, guarded.addresses("pod-1b")?.v4);
    let rules = format!(
        "table inet fw {{ chain f {{ type filter hook forward priority 0; ip daddr {dropped} udp dport {TARGET_PORT} drop; }}; }}"
    );
    run(proxy.namespace(), &["nft", &rules])?;
    let targets = [denied, dropped].map(|address| SocketAddr::new(address.into(), TARGET_PORT));
    let _sending: Task<()> = guarded.pod("pod-1c")?.spawn(async move || {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).await?;
        loop {
            for target in targets {
                socket.send_to(&[0], target).await?;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    let arguments = ["monitor", "--kernel", "--type", "policy_drop", "--count", "100", "-o", "jsonl"];
    let text = printed(proxy, &arguments)?;
    let rows = text.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
    let of = |kind: &str| rows.iter().filter(|row| row["type"] == kind).collect::<Vec<_>>();
    let (firewall, kernel) = (of("policy_drop"), of("kernel_drop"));
    ensure!(firewall.iter().any(|row| row["frontend"] == targets[0].to_string()), "{firewall:?}");
    // The kernel tells of drops in other namespaces, too.
    let is_of =
        |row: &&&Value, target: SocketAddr| row["frontend"] == target.to_string() && row["protocol"] == "UDP";
    let own: Vec<_> = kernel.iter().filter(|row| is_of(row, targets[1])).collect();
    ensure!(own.iter().any(|row| row["reason"] == "NETFILTER_DROP"), "{kernel:?}");
    ensure!(!kernel.iter().any(|row| is_of(&row, targets[0])), "{kernel:?}");
    Ok(())
}
