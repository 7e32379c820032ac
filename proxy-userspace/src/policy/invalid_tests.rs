//! Invalid parts have a problem with a name, and never admit more than the valid rest.

use serde_json::{Value, json};

use super::testing::{check, cluster, pod, policy};
use super::{Index, NamespacedName};

/// Tells a policy that selects all pods of `shop`, and checks its problems.
#[track_caller]
fn with(spec: Value, problems: &[&str]) -> Index {
    let mut index = cluster();
    index.tell(policy("shop/p", spec));
    assert_eq!(index.complaints(), problems);
    index
}

#[track_caller]
fn from(peers: Value, problems: &[&str]) -> Index {
    let mut spec = json!({"podSelector": {}, "ingress": [{}]});
    spec["ingress"][0]["from"] = peers;
    with(spec, problems)
}

#[track_caller]
fn ports(ports: Value, problems: &[&str]) -> Index {
    let mut spec = json!({"podSelector": {}, "ingress": [{}]});
    spec["ingress"][0]["ports"] = ports;
    with(spec, problems)
}

const OUTSIDE: &str = "192.0.2.1 > shop/web TCP 80";
const INSIDE: &str = "data/db > shop/web TCP 80";

#[test]
fn an_invalid_block_matches_nothing() {
    let field = "spec.ingress[0].from[0].ipBlock";
    for cidr in ["192.0.2.0", "192.0.2.0/33", "2001:db8::/129", "example/24", "", "0.0.0.0/-1", "0.0.0.0/"] {
        let problem = format!(
            "{field}.cidr: {cidr:?} is not a CIDR; takes one such as 192.0.2.0/24 or 2001:db8::/64; the ipBlock \
             matches nothing"
        );
        check(&from(json!([{"ipBlock": {"cidr": cidr}}]), &[&problem]), &[], &[OUTSIDE, INSIDE]);
    }
    // The exception counts as it was meant, or else nothing of the block does.
    for except in ["192.0.3.0/24", "192.0.0.0/16", "192.0.2.0/24", "2001:db8::/64"] {
        let problem = format!(
            "{field}.except[0]: {except:?} is not a part of 192.0.2.0/24; the ipBlock matches nothing"
        );
        let block = json!([{"ipBlock": {"cidr": "192.0.2.0/24", "except": [except]}}]);
        check(&from(block, &[&problem]), &[], &[OUTSIDE, INSIDE]);
    }
    let problem = format!(
        "{field}.except[1]: \"nonsense\" is not a CIDR; takes one such as 192.0.2.0/24 or 2001:db8::/64; the \
         ipBlock matches nothing"
    );
    let block = json!([{"ipBlock": {"cidr": "192.0.2.0/24", "except": ["192.0.2.9/32", "nonsense"]}}]);
    check(&from(block, &[&problem]), &[], &[OUTSIDE]);
}

#[test]
fn an_invalid_peer_matches_nothing_and_the_others_count() {
    let both = json!([{"ipBlock": {"cidr": "192.0.2.0/24"}, "podSelector": {}}, {"namespaceSelector": {}}]);
    let problem = "spec.ingress[0].from[0]: has an ipBlock and a selector, takes one of both; this peer matches nothing";
    check(&from(both, &[problem]), &[INSIDE], &[OUTSIDE]);
    let problem = "spec.ingress[0].from[0]: is empty; takes podSelector, namespaceSelector or ipBlock; this peer \
                   matches nothing";
    check(&from(json!([{}]), &[problem]), &[], &[OUTSIDE, INSIDE, "shop/api > shop/web TCP 80"]);
}

#[test]
fn a_peer_with_an_invalid_selector_matches_nothing() {
    for part in ["podSelector", "namespaceSelector"] {
        let selector =
            json!({"matchExpressions": [{"key": "app", "operator": "DoesNotEquals", "values": ["x"]}]});
        let mut peer = json!({"namespaceSelector": {}});
        peer[part] = selector;
        let field = "spec.ingress[0].from[0]";
        let problems = [
            format!(
                "{field}.{part}.matchExpressions[0].operator: \"DoesNotEquals\" is not an operator; takes In, NotIn, \
                 Exists or DoesNotExist"
            ),
            format!("{field}: this peer matches nothing"),
        ];
        check(&from(json!([peer]), &[&problems[0], &problems[1]]), &[], &[OUTSIDE, INSIDE]);
    }
}

#[test]
fn an_invalid_port_matches_nothing_and_the_others_count() {
    for (port, field, message) in [
        (json!({"port": 80, "endPort": 79}), "endPort", "79 is below the port 80"),
        (json!({"port": 80, "endPort": 70000}), "endPort", "70000 is not a port; takes 1 to 65535"),
        (
            json!({"port": "http", "endPort": 81}),
            "endPort",
            "81 is behind the name of a port; takes the last port behind a number",
        ),
        (json!({"endPort": 81}), "endPort", "81 has no port before it; takes the last port of a range"),
        (json!({"port": 0}), "port", "0 is not a port; takes 1 to 65535"),
        (json!({"port": -80}), "port", "-80 is not a port; takes 1 to 65535"),
        (json!({"port": 65536}), "port", "65536 is not a port; takes 1 to 65535"),
        (
            json!({"port": "80"}),
            "port",
            "\"80\" is not a name of a port; takes one such as http, or a number",
        ),
        (
            json!({"port": 80, "protocol": "ICMP"}),
            "protocol",
            "\"ICMP\" is not a protocol; takes TCP, UDP or SCTP",
        ),
    ] {
        let problem =
            |at: usize| format!("spec.ingress[0].ports[{at}].{field}: {message}; this entry matches nothing");
        check(&ports(json!([port]), &[&problem(0)]), &[], &[OUTSIDE, INSIDE, "192.0.2.1 > shop/web ICMP"]);
        let index = ports(json!([{"port": 22}, port]), &[&problem(1)]);
        check(&index, &["192.0.2.1 > shop/web TCP 22"], &[OUTSIDE, "192.0.2.1 > shop/web TCP 8080"]);
    }
}

#[test]
fn a_policy_with_an_invalid_selector_isolates_and_allows_nothing() {
    let selector =
        json!({"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "x", "operator": "="}]});
    let index = with(
        json!({"podSelector": selector, "ingress": [{}]}),
        &[
            "spec.podSelector.matchExpressions[0].operator: \"=\" is not an operator; takes In, NotIn, Exists or \
             DoesNotExist",
            "spec.podSelector: the policy isolates the pods that the valid requirements select, and allows nothing",
        ],
    );
    check(&index, &["192.0.2.1 > shop/api TCP 80", "shop/web > 192.0.2.1 TCP 80"], &[OUTSIDE]);
}

#[test]
fn an_unknown_type_isolates_both_ways() {
    let index = with(
        json!({"podSelector": {}, "policyTypes": ["egress"], "egress": [{"ports": [{"port": 80}]}]}),
        &[
            "spec.policyTypes[0]: \"egress\" is not a type; takes Ingress or Egress; the policy isolates both ways",
        ],
    );
    check(&index, &["shop/web > 192.0.2.1 TCP 80"], &[OUTSIDE, "shop/web > 192.0.2.1 TCP 81"]);
}

#[test]
fn an_invalid_address_or_port_of_a_pod_is_left_out() {
    let mut index = cluster();
    let ports =
        json!([{"name": "a", "containerPort": 0}, {"name": "b", "containerPort": 1, "protocol": "X"}]);
    let mut odd = pod("shop/odd", "node-1", &["10.1.1.300", "10.1.1.9"], json!({}), ports);
    index.tell(odd.clone());
    assert_eq!(
        index.complaints(),
        [
            "status.podIPs[0].ip: \"10.1.1.300\" is not an IP address; takes IPv4 or IPv6",
            "spec.containers[main].ports[a]: 0 is not a port; takes 1 to 65535; no policy finds this port by its name",
            "spec.containers[main].ports[b]: \"X\" is not a protocol; takes TCP, UDP or SCTP; no policy finds this port \
             by its name",
        ]
    );
    let (_, read) = index.pod(&NamespacedName::new("shop", "odd")).unwrap();
    assert_eq!(read.addresses.len(), 1);
    // With the fault its problem goes, too.
    odd["spec"]["containers"][0]["ports"] = json!([]);
    odd["status"] = json!({"podIP": "10.1.1.9"});
    index.tell(odd.clone());
    assert_eq!(index.complaints(), [""; 0]);
    odd["status"]["podIP"] = json!("x");
    index.tell(odd.clone());
    assert_eq!(index.complaints().len(), 1);
    index.forget(odd);
    assert_eq!(index.complaints(), [""; 0]);
}

#[test]
fn a_name_of_a_port_that_no_pod_has_is_reported() {
    let unresolved = |spec: Value| -> Vec<String> {
        let mut index = cluster();
        index.tell(policy("shop/p", spec));
        index.unresolved_ports().iter().map(ToString::to_string).collect()
    };
    let ingress = |name: &str| json!({"podSelector": {"matchLabels": {"app": "web"}}, "ingress": [{"ports": [{"port": name}]}]});
    assert_eq!(unresolved(ingress("http")), [""; 0]);
    // Another pod of the cluster has it, but none that is selected.
    assert_eq!(
        unresolved(ingress("sql")),
        [
            "NetworkPolicy shop/p: spec.ingress[0].ports: no pod that the policy selects has a TCP port with the name \
             \"sql\"; it matches nothing"
        ]
    );
    let egress = |peer: Value| {
        let rule = json!({"to": [peer], "ports": [{"port": "sql"}]});
        json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": [rule]})
    };
    assert_eq!(unresolved(egress(json!({"namespaceSelector": {}}))), [""; 0]);
    assert_eq!(unresolved(egress(json!({"ipBlock": {"cidr": "0.0.0.0/0"}}))), [""; 0]);
    assert_eq!(unresolved(egress(json!({"podSelector": {}}))).len(), 1);
}

#[test]
fn a_problem_is_one_plain_line_with_its_object() {
    let mut index = cluster();
    index.tell(policy("shop/p\n", json!({"policyTypes": ["\u{1b}[31m\n"]})));
    let lines: Vec<String> = index.problems().map(ToString::to_string).collect();
    assert_eq!(lines.len(), 1);
    assert!(lines[0].starts_with("NetworkPolicy shop/p : spec.policyTypes[0]: "), "{}", lines[0]);
    assert!(!lines[0].contains(char::is_control), "{}", lines[0]);
}
