//! Pods that start while no agent runs.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use ipnet::IpNet;
use millrace_lab::agent::Proxy;
use millrace_lab::cluster::TARGET_PORT;
use millrace_lab::net::{Namespace, Netlink};
use millrace_lab::process::run;
use millrace_lab::topology::{Dual, Family};
use serde_json::{Value, json};
use tokio::net::UdpSocket;
use tokio::time::timeout;

use super::bench::{Guarded, LIMIT, ask_all, judge, wait_until_answer};

/// The port of a server on the node.
const ON_NODE: u16 = 8099;

/// When a CNI moves one end of the pair into the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    AtOnce,
    Later,
}

/// A pod that a CNI makes on node 1.
struct NewPod {
    namespace: Namespace,
    addresses: Dual,
}

impl NewPod {
    /// Makes the pod, on the node's bridge.
    fn make(guarded: &Guarded, host: u8, end: End) -> Result<Self> {
        let neighbour = guarded.addresses("pod-1a")?;
        let addresses = with_host(neighbour, host);
        let namespace = Namespace::create(&format!("new-{host}"))?;
        let (device, file) = (format!("veth-new{host}"), namespace.file()?);
        let node = guarded.cluster.bed().node(1)?.namespace();
        let (here, of_node) = (node.file()?, guarded.cluster.bed().node(1)?.addresses());
        node.run(async move || {
            let netlink = Netlink::open()?;
            let other = format!("{device}-in");
            match end {
                End::AtOnce => netlink.add_veth(&device, "eth0", &file).await?,
                End::Later => netlink.add_veth(&device, &other, &here).await?,
            }
            netlink.add_port("cni0", &device).await?;
            netlink.set_up(&device).await?;
            if end == End::Later {
                // The agent looks at the device meanwhile.
                tokio::time::sleep(Duration::from_millis(1_500)).await;
                let mac = netlink.mac_of(&other).await?;
                let index = netlink.index_of_mac(mac).await?.context("no other end")?;
                netlink.move_link(index, &file).await?;
            }
            Ok(())
        })?;
        if end == End::Later {
            let name = format!("veth-new{host}-in");
            namespace.run(async move || {
                let netlink = Netlink::open()?;
                let mac = netlink.mac_of(&name).await?;
                let index = netlink.index_of_mac(mac).await?.context("no other end")?;
                netlink.rename(index, "eth0").await
            })?;
        }
        namespace.run(async move || {
            let netlink = Netlink::open()?;
            for address in addresses.both() {
                let prefix = if address.is_ipv4() { 24 } else { 64 };
                netlink.add_address("eth0", IpNet::new(address, prefix)?).await?;
            }
            netlink.set_up("eth0").await?;
            let gateway = with_host(addresses, 1);
            for family in Family::ALL {
                netlink.set_route(of_node.of(family).into(), gateway.of(family)).await?;
            }
            Ok(())
        })?;
        Ok(Self { namespace, addresses })
    }

    /// Returns the pod's object.
    fn object(&self, name: &str) -> Value {
        let addresses: Vec<Value> = self.addresses.both().iter().map(|ip| json!({"ip": ip})).collect();
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": "shop", "name": name, "uid": name, "labels": {"app": "new"}},
            "spec": {"nodeName": "node1", "containers": [{"name": "main", "image": "x"}]},
            "status": {"phase": "Running", "podIPs": addresses}})
    }
}

/// Returns the addresses of another host in the same networks.
fn with_host(of: Dual, host: u8) -> Dual {
    let ([a, b, c, _], mut segments) = (of.v4.octets(), of.v6.segments());
    segments[7] = host.into();
    Dual { v4: [a, b, c, host].into(), v6: segments.into() }
}

/// Returns what a program prints.
fn output(namespace: &Namespace, words: &[&str]) -> Result<String> {
    let output = run(namespace, words)?;
    ensure!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// Returns how many of the tables for new devices are there: one for frames on bridges, and one for routed packets.
fn tables(guarded: &Guarded) -> Result<usize> {
    let node = guarded.cluster.bed().node(1)?.namespace();
    let listed = output(node, &["nft", "list", "tables"])?;
    Ok(["bridge", "inet"]
        .iter()
        .filter(|family| listed.contains(&format!("table {family} millrace-firewall")))
        .count())
}

fn wait_for_tables(guarded: &Guarded, wanted: usize) -> Result<()> {
    let begun = Instant::now();
    while tables(guarded)? != wanted {
        if begun.elapsed() > LIMIT {
            bail!("there are {} tables after {LIMIT:?}, not {wanted}", tables(guarded)?);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

#[test]
fn a_pod_that_starts_while_no_agent_runs_is_closed_until_one_does() -> Result<()> {
    let mut guarded = Guarded::start(1, 2, &[])?;
    guarded.put_policies(&[("p", json!({"podSelector": {"matchLabels": {"app": "nobody"}}}))])?;
    wait_for_tables(&guarded, 2)?;
    guarded.cluster.start_host_server(1, ON_NODE)?;
    guarded.cluster.take_agent(1)?.kill()?;
    let new = NewPod::make(&guarded, 200, End::AtOnce)?;
    let mut questions = guarded.ask_pod("pod-1a", "pod-1b", true)?;
    questions.extend(ask_all(
        &new.namespace,
        "new to pod-1a",
        guarded.addresses("pod-1a")?,
        TARGET_PORT,
        false,
    ));
    let node = guarded.cluster.bed().node(1)?.addresses();
    questions.extend(ask_all(&new.namespace, "new to its node", node, ON_NODE, false));
    questions.extend(ask_all(guarded.pod("pod-1a")?, "pod-1a to its node", node, ON_NODE, true));
    judge(questions)?;
    // Nothing comes to it either.
    for family in Family::ALL {
        let address = new.addresses.of(family);
        let heard = new.namespace.spawn(async move || {
            let socket = UdpSocket::bind(SocketAddr::new(address, 9999)).await?;
            Ok(timeout(Duration::from_secs(2), socket.recv_from(&mut [0; 64])).await.is_ok())
        });
        guarded.pod("pod-1a")?.run(async move || {
            let socket = UdpSocket::bind(if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }).await?;
            for _ in 0..10 {
                socket.send_to(b"in", SocketAddr::new(address, 9999)).await?;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Ok(())
        })?;
        ensure!(!heard.join_within(LIMIT)?, "{family}: a datagram came through");
    }
    expect_closed(&guarded, "veth-new200", new.addresses)?;
    // The next agent takes it over.
    guarded.cluster.manifests().put("new.yaml", &new.object("new").to_string())?;
    guarded.cluster.start_agent_with(1, &["--network-policy", "on"])?;
    let target = SocketAddr::new(guarded.addresses("pod-1a")?.of(Family::V4), TARGET_PORT);
    wait_until_answer(&new.namespace, target, true)?;
    judge(ask_all(&new.namespace, "new to pod-1a", guarded.addresses("pod-1a")?, TARGET_PORT, true))?;
    let listed = listed(guarded.cluster.proxy(1)?)?;
    let new = listed.iter().find(|item| item["device_name"] == "veth-new200").context("no veth-new200")?;
    ensure!(new["name"] == "new" && new["ingress"] == "open" && new["egress"] == "open", "{new}");
    Ok(())
}

/// Returns the items of `millrace policies`.
fn listed(proxy: &Proxy) -> Result<Vec<Value>> {
    let output = proxy.command(&["policies", "-o", "json"])?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let list: Value = serde_json::from_slice(&output.stdout)?;
    Ok(list["items"].as_array().context("no items")?.clone())
}

/// Checks that commands say of a new device alone that nftables closes it.
fn expect_closed(guarded: &Guarded, device: &str, addresses: Dual) -> Result<()> {
    let proxy = guarded.cluster.proxy(1)?;
    for item in listed(proxy)? {
        let is_new = item["device_name"] == device;
        for direction in ["ingress", "egress"] {
            ensure!((item[direction] == "closed_by_nftables") == is_new, "{item}");
        }
        ensure!(!is_new || item["known"] == false, "{item}");
    }
    let explained = |arguments: &[&str]| {
        let output = proxy.command(&[&["explain", "-o", "json"], arguments].concat())?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let list: Value = serde_json::from_slice(&output.stdout)?;
        Ok(list["items"][0].clone())
    };
    let why = format!("{device} is closed by nftables until an agent attaches the programs");
    for family in Family::ALL {
        let to = SocketAddr::new(addresses.of(family), TARGET_PORT).to_string();
        let from = guarded.addresses("pod-1a")?.of(family).to_string();
        let of_pod = guarded.cluster.bed().pod("pod-1a")?.device();
        for arguments in [&["--in", &of_pod, &from, &to][..], &["--from-host", &to]] {
            let item = explained(arguments)?;
            ensure!(item["reason"] == "closed_by_nftables" && item["drop"] == true, "{item:#}");
            ensure!(item["why"] == *why && item["agree"].is_null(), "{item:#}");
            let last = item["firewall"].as_array().and_then(|rows| rows.last()).context("no row")?;
            ensure!(last["program"] == "nftables" && last["direction"] == "ingress", "{item:#}");
        }
        // Known pods are as before.
        let known = SocketAddr::new(guarded.addresses("pod-1b")?.of(family), TARGET_PORT).to_string();
        let item = explained(&["--in", &of_pod, &from, &known])?;
        ensure!(item["drop"] == false && item["agree"] == true, "{item:#}");
    }
    let [from, to] = [addresses.v4.to_string(), format!("{}:80", guarded.addresses("pod-1a")?.v4)];
    let refused = proxy.command(&["explain", "--in", device, &from, &to])?;
    let said = String::from_utf8(refused.stderr)?;
    ensure!(!refused.status.success() && said.contains("closed by nftables until an agent"), "{said}");
    Ok(())
}

#[test]
fn the_rules_for_new_devices_come_with_the_first_policy_and_go_with_the_last_one() -> Result<()> {
    let guarded = Guarded::start(1, 2, &[])?;
    judge(guarded.ask_pod("pod-1a", "pod-1b", true)?)?;
    ensure!(tables(&guarded)? == 0, "the cluster has no policy");
    guarded.put_policies(&[("p", json!({"podSelector": {"matchLabels": {"app": "nobody"}}}))])?;
    wait_for_tables(&guarded, 2)?;
    // Somebody removes all rules of nftables, as services of some distributions do.
    let node = guarded.cluster.bed().node(1)?.namespace();
    output(node, &["nft", "flush", "ruleset"])?;
    wait_for_tables(&guarded, 2)?;
    let mut questions = guarded.ask_pod("pod-1a", "pod-1b", true)?;
    questions.extend(guarded.ask_pod("pod-1b", "pod-1a", true)?);
    judge(questions)?;
    let listed = output(node, &["nft", "list", "table", "bridge", "millrace-firewall"])?;
    let drops = listed.lines().filter(|line| line.contains("veth") && line.trim_end().ends_with("drop"));
    ensure!(drops.clone().count() > 1 && drops.clone().all(|line| line.contains("packets 0")), "{listed}");
    guarded.put_policies(&[])?;
    wait_for_tables(&guarded, 0)
}

#[test]
fn a_pod_whose_end_of_the_pair_is_moved_late_is_closed_until_it_is_known() -> Result<()> {
    let guarded = Guarded::start(1, 2, &[])?;
    guarded.put_policies(&[("p", json!({"podSelector": {"matchLabels": {"app": "nobody"}}}))])?;
    wait_for_tables(&guarded, 2)?;
    let new = NewPod::make(&guarded, 201, End::Later)?;
    let ask = |is_allowed| {
        let to = guarded.addresses("pod-1a")?;
        anyhow::Ok(ask_all(&new.namespace, "new to pod-1a", to, TARGET_PORT, is_allowed))
    };
    judge(ask(false)?)?;
    guarded.cluster.manifests().put("new.yaml", &new.object("new").to_string())?;
    let target = SocketAddr::new(guarded.addresses("pod-1a")?.of(Family::V4), TARGET_PORT);
    wait_until_answer(&new.namespace, target, true)?;
    judge(ask(true)?)
}

// A CNI routes to it, without a bridge.
#[test]
fn a_routed_pod_that_starts_while_no_agent_runs_is_closed() -> Result<()> {
    let mut guarded = Guarded::start(1, 1, &[])?;
    guarded.put_policies(&[("p", json!({"podSelector": {"matchLabels": {"app": "nobody"}}}))])?;
    wait_for_tables(&guarded, 2)?;
    let agent = guarded.cluster.take_agent(1)?;
    agent.kill()?;
    let pod = Namespace::create("routed")?;
    let file = pod.file()?;
    let node = guarded.cluster.bed().node(1)?.namespace();
    node.run(async move || {
        let netlink = Netlink::open()?;
        netlink.add_veth("veth-routed", "eth0", &file).await?;
        netlink.add_address("veth-routed", "192.168.77.1/24".parse()?).await?;
        netlink.set_up("veth-routed").await
    })?;
    pod.run(async move || {
        let netlink = Netlink::open()?;
        netlink.add_address("eth0", "192.168.77.2/24".parse()?).await?;
        netlink.set_up("eth0").await
    })?;
    let server = node.spawn(async || {
        let socket = UdpSocket::bind("192.168.77.1:9999").await?;
        Ok(timeout(Duration::from_secs(2), socket.recv_from(&mut [0; 64])).await.is_ok())
    });
    pod.run(async || {
        let socket = UdpSocket::bind("0.0.0.0:0").await?;
        for _ in 0..10 {
            socket.send_to(b"out", "192.168.77.1:9999").await?;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    })?;
    ensure!(!server.join_within(LIMIT)?, "a datagram came through");
    let dropped = output(node, &["nft", "list", "chain", "inet", "millrace-firewall", "from-device"])?;
    let line = dropped.lines().find(|line| line.contains("veth")).context("no rule for veth")?;
    ensure!(!line.contains("packets 0 "), "the rules did not drop it: {dropped}");
    Ok(())
}
