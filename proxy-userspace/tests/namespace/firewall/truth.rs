//! Who reaches whom under policies: pods of one node and of two, their own node, the client outside.

use anyhow::Result;
use millrace_lab::cluster::TARGET_PORT;
use serde_json::{Value, json};

use super::bench::{Guarded, ask_all, judge};

const PODS: [&str; 6] = ["pod-1a", "pod-1b", "pod-1c", "pod-2a", "pod-2b", "pod-2c"];

/// Checks all pairs of pods. A pod always reaches itself.
fn expect_pairs(guarded: &Guarded, is_allowed: impl Fn(&str, &str) -> bool) -> Result<()> {
    let mut questions = Vec::new();
    for from in PODS {
        for to in PODS {
            questions.extend(guarded.ask_pod(from, to, from == to || is_allowed(from, to))?);
        }
    }
    judge(questions)
}

fn app(name: &str) -> Value {
    json!({"podSelector": {"matchLabels": {"app": name}}})
}

#[test]
fn each_pair_of_pods_is_judged_at_both_ends_and_changes_are_in_force() -> Result<()> {
    let guarded = Guarded::start(2, 3, &[])?;
    let is = |pod: &str, app: char| pod.ends_with(app);
    expect_pairs(&guarded, |_, _| true)?;

    // Only b reaches a.
    let from_b = json!({"podSelector": {"matchLabels": {"app": "a"}}, "ingress": [{"from": [app("b")]}]});
    guarded.put_policies(&[("from-b", from_b.clone())])?;
    println!("closed after {:?}", guarded.wait_until_pod("pod-1c", "pod-1a", false)?);
    guarded.wait_until_pod("pod-1c", "pod-2a", false)?;
    expect_pairs(&guarded, |from, to| !is(to, 'a') || is(from, 'b'))?;
    // The nodes reach their own pods, and nobody else does.
    let bed = guarded.cluster.bed();
    let to = guarded.addresses("pod-1a")?;
    let mut questions = ask_all(bed.node(1)?.namespace(), "node 1", to, TARGET_PORT, true);
    questions.extend(ask_all(bed.node(2)?.namespace(), "node 2", to, TARGET_PORT, false));
    questions.extend(ask_all(bed.client(), "client", to, TARGET_PORT, false));
    judge(questions)?;

    // c sends nothing, a only to the server's port of b, and b only to the others of its node.
    let none = json!({"podSelector": {"matchLabels": {"app": "c"}}, "policyTypes": ["Egress"]});
    let to_b = json!({"podSelector": {"matchLabels": {"app": "a"}}, "policyTypes": ["Egress"], "egress": [
        {"to": [app("b")], "ports": [{"port": "web"}, {"port": TARGET_PORT, "protocol": "UDP"}]},
    ]});
    guarded.put_policies(&[("from-b", from_b), ("none", none), ("to-b", to_b)])?;
    println!("closed after {:?}", guarded.wait_until_pod("pod-1c", "pod-1b", false)?);
    guarded.wait_until_pod("pod-2c", "pod-2b", false)?;
    expect_pairs(&guarded, |from, to| {
        let ingress = !is(to, 'a') || is(from, 'b');
        let egress = if is(from, 'a') { is(to, 'b') } else { !is(from, 'c') };
        ingress && egress
    })?;

    guarded.put_policies(&[])?;
    println!("open after {:?}", guarded.wait_until_pod("pod-1c", "pod-1a", true)?);
    guarded.wait_until_pod("pod-2c", "pod-1a", true)?;
    guarded.wait_until_pod("pod-1c", "pod-2a", true)?;
    expect_pairs(&guarded, |_, _| true)
}
