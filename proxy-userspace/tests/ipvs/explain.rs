//! `millrace explain` on a node in IPVS mode, beside what real packets meet.

use std::net::SocketAddr;

use anyhow::Result;
use millrace_lab::cluster::{Cluster, TARGET_PORT};
use millrace_lab::topology::{Family, vip};
use millrace_lab::traffic::{Protocol, ask};
use serde_json::Value;

use crate::fixture::{LIMIT, apply, shared};

/// Explains a packet in node 1. Returns the text, and the item in JSON.
fn explain(cluster: &Cluster, words: &[&str]) -> Result<(String, Value)> {
    let run = |more: &[&str]| {
        let output = cluster.proxy(1)?.command(&[&["explain"], words, more].concat())?;
        anyhow::ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    };
    let json: Value = serde_json::from_str(&run(&["-o", "json"])?)?;
    Ok((run(&[])?, json["items"][0].clone()))
}

#[test]
fn the_walk_says_what_packets_meet() -> Result<()> {
    let cluster = shared();
    let ranges = ["198.51.100.0/24", "2001:db8:c::/48"];
    let service =
        cluster.service("explained", 74, &["pod-1a"])?.load_balancer(vip(74)).source_ranges(&ranges);
    apply(&cluster, 74, &service)?;
    for (family, stranger) in Family::ALL.into_iter().zip(["192.0.2.77", "2001:db8:dead::1"]) {
        let target = SocketAddr::new(vip(74).of(family), 80);
        let pod = SocketAddr::new(cluster.bed().pod("pod-1a")?.addresses().of(family), TARGET_PORT);
        let client = cluster.bed().client();
        cluster
            .proxy(1)?
            .wait_until_within(LIMIT, "an answer", || Ok(ask(client, Protocol::Tcp, target).is_ok()))?;
        let asked = ask(client, Protocol::Tcp, target)?;

        let to = target.to_string();
        let (text, item) = explain(&cluster, &[&asked.client.ip().to_string(), &to])?;
        assert!(text.contains(&format!("verdict     served_local -> {pod}\n")), "{text}");
        assert_eq!(
            (&item["backends"][0], &item["mode"]),
            (&serde_json::json!(pod), &"ipvs".into()),
            "{item}"
        );
        // The very connection, which IPVS still knows.
        let (text, _) = explain(&cluster, &[&asked.client.to_string(), &to])?;
        assert!(text.contains(" flow     "), "{text}");

        let (text, item) = explain(&cluster, &[stranger, &to])?;
        assert!(text.contains("verdict     DROP source_refused: "), "{text}");
        assert_eq!(item["reasons"], serde_json::json!(["source_refused"]));
        let other = SocketAddr::new(target.ip(), 81).to_string();
        let (text, _) = explain(&cluster, &[&other])?;
        assert!(text.contains("verdict     DROP unknown_port: ") && text.contains("80/TCP"), "{text}");
        ask(client, Protocol::Tcp, SocketAddr::new(target.ip(), 81)).unwrap_err();
    }
    let output = cluster.proxy(1)?.command(&["explain", "default/explained"])?;
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("has no names of Services") && output.status.code() == Some(2), "{errors}");
    Ok(())
}
