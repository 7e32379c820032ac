//! Policies behind Services: the pod and the policy see the same client, and egress is to the pod, not to the Service.

use std::net::SocketAddr;

use anyhow::Result;
use millrace_lab::cluster::TARGET_PORT;
use millrace_lab::topology::{Dual, Family, cluster_ip, vip};
use serde_json::{Value, json};

use super::bench::{Guarded, ask_all, judge, wait_until_answer};

fn allow(blocks: &[String]) -> Value {
    let blocks: Vec<Value> = blocks.iter().map(|cidr| json!({"ipBlock": {"cidr": cidr}})).collect();
    json!({"podSelector": {"matchLabels": {"app": "a"}}, "ingress": [{"from": blocks}]})
}

fn hosts(addresses: Dual) -> Vec<String> {
    vec![format!("{}/32", addresses.v4), format!("{}/128", addresses.v6)]
}

/// The client outside is judged by its own address behind a Service's.
fn expect_client(flags: &[&str], local: bool) -> Result<()> {
    let guarded = Guarded::start(2, 2, flags)?;
    let cluster = &guarded.cluster;
    let mut service = cluster.service("web", 1, &["pod-1a", "pod-2a"])?.load_balancer(vip(1));
    if local {
        service = service.local();
    }
    cluster.apply(&service, &[1, 2])?;
    let client = cluster.bed().client();
    // Each of both nodes has its own agent.
    let wait = |is_allowed| {
        ["pod-1a", "pod-2a"].into_iter().try_for_each(|pod| {
            let target = SocketAddr::new(guarded.addresses(pod)?.of(Family::V4), TARGET_PORT);
            wait_until_answer(client, target, is_allowed).map(drop)
        })
    };
    guarded.put_policies(&[("p", allow(&["192.0.2.0/24".to_owned()]))])?;
    wait(false)?;
    let mut questions = Vec::new();
    for _ in 0..4 {
        questions.extend(ask_all(client, "client", vip(1), 80, false));
    }
    judge(questions)?;
    guarded.put_policies(&[("p", allow(&hosts(cluster.bed().client_addresses())))])?;
    wait(true)?;
    let mut questions = Vec::new();
    for _ in 0..4 {
        questions.extend(ask_all(client, "client", vip(1), 80, true));
    }
    judge(questions)
}

#[test]
fn a_block_of_clients_works_behind_direct_server_return() -> Result<()> {
    expect_client(&["--forwarding", "dsr"], false)
}

#[test]
fn a_block_of_clients_works_behind_traffic_policy_local() -> Result<()> {
    expect_client(&[], true)
}

#[test]
fn egress_is_judged_by_the_pod_behind_a_service() -> Result<()> {
    let guarded = Guarded::start(2, 3, &[])?;
    let cluster = &guarded.cluster;
    cluster.apply(&cluster.service("web", 1, &["pod-1a", "pod-2a"])?, &[1, 2])?;
    cluster.apply(&cluster.service("db", 2, &["pod-1b", "pod-2b"])?, &[1, 2])?;
    let to_a = json!({"podSelector": {"matchLabels": {"app": "c"}}, "policyTypes": ["Egress"], "egress": [
        {"to": [{"podSelector": {"matchLabels": {"app": "a"}}}]},
    ]});
    guarded.put_policies(&[("to-a", to_a)])?;
    guarded.wait_until_pod("pod-1c", "pod-1b", false)?;
    guarded.wait_until_pod("pod-2c", "pod-1b", false)?;
    let mut questions = Vec::new();
    for from in ["pod-1c", "pod-2c"] {
        for _ in 0..4 {
            questions.extend(ask_all(guarded.pod(from)?, from, cluster_ip(1), 80, true));
            questions.extend(ask_all(guarded.pod(from)?, from, cluster_ip(2), 80, false));
        }
    }
    judge(questions)
}

#[test]
fn replies_pass_where_packets_are_translated_one_by_one() -> Result<()> {
    let guarded = Guarded::start(2, 3, &["--socket-lb", "off"])?;
    let cluster = &guarded.cluster;
    cluster.apply(&cluster.service("web", 1, &["pod-1a", "pod-2a"])?, &[1, 2])?;
    cluster.apply(&cluster.service("db", 2, &["pod-1b"])?, &[1, 2])?;
    // Isolated in both directions: a reply that is not known as one is dropped.
    let c = json!({"podSelector": {"matchLabels": {"app": "c"}}, "policyTypes": ["Ingress", "Egress"], "egress": [
        {"to": [{"podSelector": {"matchLabels": {"app": "a"}}}]},
    ]});
    let b = json!({"podSelector": {"matchLabels": {"app": "b"}}, "policyTypes": ["Ingress", "Egress"]});
    guarded.put_policies(&[("b", b), ("c", c)])?;
    guarded.wait_until_pod("pod-1c", "pod-1b", false)?;
    guarded.wait_until_pod("pod-2c", "pod-2b", false)?;
    let mut questions = Vec::new();
    for from in ["pod-1c", "pod-2c"] {
        for _ in 0..6 {
            questions.extend(ask_all(guarded.pod(from)?, from, cluster_ip(1), 80, true));
        }
        questions.extend(ask_all(guarded.pod(from)?, from, cluster_ip(2), 80, false));
    }
    // The only backend of its Service is the pod itself.
    questions.extend(ask_all(guarded.pod("pod-1b")?, "pod-1b to itself", cluster_ip(2), 80, true));
    judge(questions)
}
