//! `millrace explain` behind the firewall: its verdict is what a real connection gets.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use millrace_lab::cluster::TARGET_PORT;
use millrace_lab::topology::{Dual, Family, cluster_ip};
use serde_json::{Value, json};

use super::bench::{Guarded, ask_all, judge};
use crate::fixture::own;

const PROTOCOLS: [&str; 2] = ["tcp", "udp"];

impl Guarded {
    /// Returns the explanation of a packet on a node.
    fn explained(&self, node: u8, arguments: &[&str]) -> Result<Value> {
        let output = self.cluster.proxy(node)?.command(&[&["explain", "-o", "json"], arguments].concat())?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{arguments:?}: {errors}");
        let list: Value = serde_json::from_slice(&output.stdout)?;
        let item = list["items"].get(0).with_context(|| format!("{arguments:?}: {list}"))?.clone();
        ensure!(item["agree"] != false, "{arguments:?}: {item:#}");
        Ok(item)
    }

    /// Returns the explanation of a packet that a pod sends, on the pod's node.
    fn explained_from(&self, pod: &str, to: SocketAddr, protocol: &str) -> Result<Value> {
        let from = self.addresses(pod)?.of(Family::of(to.ip())).to_string();
        let device = self.cluster.bed().pod(pod)?.device();
        let arguments = ["--in", &device, "--proto", protocol, &from, &to.to_string()];
        let item = self.explained(node_of(pod), &arguments)?;
        // Both engines have judged.
        ensure!(item["agree"] == true, "{item:#}");
        Ok(item)
    }

    /// Returns the explanation of a pod's packet that another node gets for a pod of its own.
    fn explained_to(&self, from: &str, to: &str, family: Family, protocol: &str) -> Result<Value> {
        let (source, target) = (self.addresses(from)?.of(family), self.addresses(to)?.of(family));
        let target = SocketAddr::new(target, TARGET_PORT).to_string();
        self.explained(node_of(to), &["--proto", protocol, &source.to_string(), &target])
    }

    /// Checks that a pod's packets to an address are explained so in both families, and that connections end as the
    /// explanations say. `backend` is the only pod behind the address.
    fn expect(&self, from: &str, to: (Dual, u16), backend: &str, rulings: &[&str]) -> Result<()> {
        let mut is_dropped = false;
        for (family, protocol) in both() {
            let at = SocketAddr::new(to.0.of(family), to.1);
            let mut items = vec![self.explained_from(from, at, protocol)?];
            if node_of(from) != node_of(backend) && items[0]["drop"] == false {
                items.push(self.explained_to(from, backend, family, protocol)?);
            }
            let found: Vec<String> = items.iter().flat_map(rulings_of).collect();
            ensure!(found == rulings, "{from} > {at}/{protocol}: {found:?}, {items:#?}");
            is_dropped = items.iter().any(|item| item["drop"] == true);
            let reason = items.last().map(|item| item["reason"].clone()).unwrap_or_default();
            ensure!(
                !is_dropped
                    || found.last().is_some_and(|last| last.ends_with(reason.as_str().unwrap_or("-")))
            );
        }
        judge(ask_all(self.pod(from)?, &format!("{from} to {backend}"), to.0, to.1, !is_dropped))
    }
}

/// Returns each judgement as `direction ruling`, with the policies that allow it.
fn rulings_of(item: &Value) -> Vec<String> {
    let rows = item["firewall"].as_array().into_iter().flatten();
    let row = |row: &Value| {
        let text = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
        let allowed = row["allowed_by"].as_array().into_iter().flatten();
        let allowed: Vec<&str> = allowed.filter_map(Value::as_str).collect();
        let end = format!("{} {}", text("direction"), text("ruling"));
        if allowed.is_empty() { end } else { format!("{end} by {}", allowed.join("+")) }
    };
    rows.map(row).collect()
}

/// Both families and both protocols: an explanation costs a load of all programs.
fn both() -> impl Iterator<Item = (Family, &'static str)> {
    Family::ALL.into_iter().zip(PROTOCOLS)
}

/// Returns the node of a pod: `pod-2a` is on node 2.
fn node_of(pod: &str) -> u8 {
    pod.bytes().filter(u8::is_ascii_digit).map(|digit| digit - b'0').next().unwrap_or_default()
}

fn from_app(app: &str) -> Value {
    json!([{"from": [{"podSelector": {"matchLabels": {"app": app}}}]}])
}

#[test]
fn explain_names_the_policies_that_allow_or_deny_a_connection_and_connections_agree() -> Result<()> {
    let guarded = Guarded::start(2, 3, &[])?;
    let cluster = &guarded.cluster;
    cluster.apply(&cluster.service("near", 1, &["pod-1a"])?, &[1, 2])?;
    cluster.apply(&cluster.service("far", 2, &["pod-2a"])?, &[1, 2])?;
    cluster.apply(&cluster.service("shut", 3, &["pod-2b"])?, &[1, 2])?;
    let a = json!({"matchLabels": {"app": "a"}});
    let to_a = json!([{"to": [{"podSelector": a}]}]);
    guarded.put_policies(&[
        ("closed", json!({"podSelector": a})),
        ("from-b", json!({"podSelector": a, "ingress": from_app("b")})),
        ("from-c", json!({"podSelector": a, "ingress": from_app("c")})),
        (
            "any-port",
            json!({"podSelector": a, "ingress": [{"from": [{"podSelector": {}}], "ports": [{"port": 1}]}]}),
        ),
        (
            "to-a",
            json!({"podSelector": {"matchLabels": {"app": "c"}}, "policyTypes": ["Egress"], "egress": to_a}),
        ),
    ])?;
    guarded.wait_until_pod("pod-1c", "pod-1b", false)?;
    guarded.wait_until_pod("pod-2a", "pod-1a", false)?;
    guarded.wait_until_pod("pod-1a", "pod-2a", false)?;
    let open = "egress not_isolated";
    let pod = |name| anyhow::Ok((guarded.addresses(name)?, TARGET_PORT));
    let [near, far, shut] = [1, 2, 3].map(|number| (cluster_ip(number), 80));
    guarded.expect("pod-1b", near, "pod-1a", &[open, "ingress allowed by shop/from-b"])?;
    guarded.expect("pod-1b", far, "pod-2a", &[open, "ingress allowed by shop/from-b"])?;
    guarded.expect("pod-2a", near, "pod-1a", &[open, "ingress denied"])?;
    guarded.expect("pod-2a", pod("pod-1a")?, "pod-1a", &[open, "ingress denied"])?;
    let by_both = ["egress allowed by shop/to-a", "ingress allowed by shop/from-c"];
    guarded.expect("pod-1c", near, "pod-1a", &by_both)?;
    guarded.expect("pod-1c", far, "pod-2a", &by_both)?;
    guarded.expect("pod-1c", pod("pod-2a")?, "pod-2a", &by_both)?;
    // The Service's pod is judged, not its address.
    guarded.expect("pod-1c", shut, "pod-2b", &["egress denied"])?;
    guarded.expect("pod-1b", shut, "pod-2b", &[open, "ingress not_isolated"])?;
    // A Service of the pod itself.
    guarded.expect("pod-1a", near, "pod-1a", &["ingress itself"])?;

    let text = guarded.cluster.proxy(1)?.command(&[
        "explain",
        "--in",
        &guarded.cluster.bed().pod("pod-1c")?.device(),
        &guarded.addresses("pod-1c")?.v4.to_string(),
        &SocketAddr::new(shut.0.of(Family::V4), 80).to_string(),
    ])?;
    let text = String::from_utf8(text.stdout)?;
    println!("{text}");
    let why = format!(
        "verdict     DROP denied: shop/to-a isolates shop/pod-1c for egress, without a rule for TCP port {TARGET_PORT} to {} (shop/pod-2b)",
        guarded.addresses("pod-2b")?.v4
    );
    for line in [&*why, "checked     programs agree (tc_pod_in, policy_from_pod)"] {
        ensure!(text.lines().any(|one| one == line), "{line:?} is no line of:\n{text}");
    }
    Ok(())
}

#[test]
fn explain_knows_pods_that_the_firewall_does_not_know_foreign_sources_and_the_own_node() -> Result<()> {
    let guarded = Guarded::start(2, 2, &[])?;
    let cluster = &guarded.cluster;
    cluster.apply(&cluster.service("unknown", 1, &["pod-1a"])?, &[1, 2])?;
    guarded.put_pods(&["pod-1a"])?;
    guarded.expect(
        "pod-1b",
        (cluster_ip(1), 80),
        "pod-1a",
        &["egress not_isolated", "ingress no_policies"],
    )?;
    let closed = json!({"podSelector": {"matchLabels": {"app": "b"}}, "policyTypes": ["Ingress"]});
    guarded.put_policies(&[("closed", closed)])?;
    guarded.wait_until_pod("pod-1a", "pod-2a", false)?;
    guarded.wait_until_pod("pod-2a", "pod-2b", false)?;
    guarded.expect(
        "pod-1b",
        (cluster_ip(1), 80),
        "pod-1a",
        &["egress not_isolated", "ingress unknown_pod"],
    )?;
    guarded.expect(
        "pod-2b",
        (cluster_ip(1), 80),
        "pod-1a",
        &["egress not_isolated", "ingress unknown_pod"],
    )?;
    let far = (guarded.addresses("pod-2a")?, TARGET_PORT);
    guarded.expect("pod-1a", far, "pod-2a", &["egress unknown_pod"])?;
    // What the node makes itself passes, to both.
    for (pod, ruling) in [("pod-1a", "ingress own_node"), ("pod-1b", "ingress own_node")] {
        let to = SocketAddr::new(guarded.addresses(pod)?.v4.into(), TARGET_PORT).to_string();
        let item = guarded.explained(1, &["--from-host", &to])?;
        ensure!(rulings_of(&item) == [ruling] && item["drop"] == false, "{item:#}");
    }
    for family in Family::ALL {
        let stolen = guarded.addresses("pod-2a")?.of(family).to_string();
        let to = SocketAddr::new(guarded.addresses("pod-2b")?.of(family), TARGET_PORT).to_string();
        let device = cluster.bed().pod("pod-1b")?.device();
        let item = guarded.explained(1, &["--in", &device, &stolen, &to])?;
        ensure!(rulings_of(&item) == ["egress foreign_source"] && item["agree"] == true, "{item:#}");
        ensure!(item["reason"] == "foreign_source" && item["drop"] == true, "{item:#}");
    }
    // Nothing of it has come to pass.
    let dropped = cluster.proxy(1)?.command(&["monitor", "--last", "1000", "-o", "jsonl"])?;
    let dropped = String::from_utf8(dropped.stdout)?;
    ensure!(dropped.contains("unknown_pod") && !dropped.contains("foreign_source"), "{dropped}");
    Ok(())
}

#[test]
fn a_reply_is_explained_by_its_connection() -> Result<()> {
    let guarded = Guarded::start(1, 2, &[])?;
    let both = json!({"podSelector": {"matchLabels": {"app": "a"}}, "policyTypes": ["Ingress", "Egress"],
        "ingress": from_app("b")});
    guarded.put_policies(&[("from-b", both)])?;
    guarded.wait_until_pod("pod-1a", "pod-1b", false)?;
    let (server, client) = (guarded.addresses("pod-1a")?, guarded.addresses("pod-1b")?);
    let to = SocketAddr::new(server.v4.into(), TARGET_PORT);
    let port = guarded.pod("pod-1b")?.run(async move || {
        let stream = tokio::net::TcpStream::connect(to).await?;
        Ok(stream.local_addr()?.port())
    })?;
    let device = guarded.cluster.bed().pod("pod-1a")?.device();
    let reply = [to.to_string(), SocketAddr::new(client.v4.into(), port).to_string()];
    let arguments = ["--in", &device, "--flags", "A", &reply[0], &reply[1]];
    let item = guarded.explained(1, &arguments)?;
    ensure!(
        rulings_of(&item) == ["egress allowed by shop/from-b", "ingress not_isolated"]
            && item["agree"] == true,
        "{item:#}"
    );
    // Without the entry it would be a packet of a connection that the pod opens.
    let item = guarded.explained(1, &[&["--state", "new"], &arguments[..]].concat())?;
    ensure!(item["firewall"][0]["ruling"] != "connection" && item["agree"] == true, "{item:#}");
    Ok(())
}

#[test]
fn without_the_firewall_an_explanation_says_nothing_of_it() -> Result<()> {
    let cluster = own(1, 1)?;
    let to = SocketAddr::new(cluster.bed().pod("pod-1a")?.addresses().v4.into(), TARGET_PORT).to_string();
    let output = cluster.proxy(1)?.command(&["explain", "-o", "json", "198.51.100.7", &to])?;
    let list: Value = serde_json::from_slice(&output.stdout)?;
    ensure!(
        list["items"][0]["reason"] == "not_ours" && list["items"][0].get("firewall").is_none(),
        "{list:#}"
    );
    Ok(())
}
