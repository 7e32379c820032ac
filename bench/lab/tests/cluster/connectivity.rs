//! `kubectl millrace test`: in a cluster that serves everything, and in one with a fault.

use std::process::Output;

use millrace_lab::kubernetes::{Cluster, Proxy};
use serde_json::Value;

use super::fixture::{proxy, shared};
use super::install::wait_for_agents;

/// Runs it with a client outside. Returns the results by test, and the whole output.
fn test(cluster: &Cluster, words: &[&str]) -> (Vec<(String, String)>, Output) {
    let words = [&["test", "--from-here", "-o", "json"], words].concat();
    let output = cluster.plugin(&words).unwrap().output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    let list: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {errors}"));
    let field = |item: &Value, name: &str| item[name].as_str().unwrap().to_owned();
    let items = list["items"].as_array().unwrap();
    (items.iter().map(|item| (field(item, "test"), field(item, "result"))).collect(), output)
}

fn shown(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Changes the firewall of node 3.
fn firewall(cluster: &Cluster, script: &str) {
    assert!(cluster.command("node-3", &["nft", script]).unwrap().status().unwrap().success());
}

#[test]
fn every_test_passes_and_nothing_is_left() {
    if proxy() != Proxy::Millrace {
        return;
    }
    let cluster = shared();
    wait_for_agents(&cluster.kubectl()).unwrap();
    let (results, output) = test(&cluster, &[]);
    assert!(results.iter().all(|(_, result)| result == "PASS"), "{}", shown(&output));
    assert!(output.status.success() && results.len() == 18, "{}", shown(&output));
    let left = cluster.kubectl().json(&["get", "namespace", "millrace-test", "--ignore-not-found"]);
    assert!(left.map_or(true, |left| left["status"]["phase"] == "Terminating"));
}

#[test]
fn a_node_that_drops_what_its_pods_are_sent_fails_with_the_way_of_each_probe() {
    if proxy() != Proxy::Millrace {
        return;
    }
    let cluster = shared();
    wait_for_agents(&cluster.kubectl()).unwrap();
    firewall(
        &cluster,
        "table inet fault { chain forward { type filter hook forward priority 0; iifname eth0 udp dport 8080 drop; }; }",
    );
    let (results, output) = test(&cluster, &["clusterip.pod", "clusterip.hairpin"]);
    firewall(&cluster, "delete table inet fault");
    let text = shown(&output);
    let expected = [("clusterip.pod", "FAIL"), ("clusterip.hairpin", "PASS")];
    assert_eq!(results, expected.map(|(test, result)| (test.to_owned(), result.to_owned())), "{text}");
    assert_eq!(output.status.code(), Some(4));
    assert!(text.contains("a pod on node-1 > ") && text.contains("/udp: no answer ("), "{text}");
    assert!(text.contains("kubectl millrace explain --on node-"), "{text}");
}
