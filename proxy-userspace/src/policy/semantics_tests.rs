//! The rules of NetworkPolicy v1, one by one.

use serde_json::{Value, json};

use super::testing::{check, cluster, egress, ingress, namespace, policy, with};

#[test]
fn without_a_policy_everything_is_allowed() {
    check(
        &cluster(),
        &["shop/job > shop/web TCP 1", "192.0.2.1 > data/db UDP 53", "data/db > 192.0.2.1 ICMP"],
        &[],
    );
}

#[test]
fn a_policy_isolates_the_selected_pods_of_its_namespace_alone() {
    let index = with(json!({"podSelector": {"matchLabels": {"app": "web"}}}));
    check(
        &index,
        &["shop/job > shop/api TCP 80", "shop/job > data/web TCP 80", "shop/web > shop/job TCP 80"],
        &["shop/job > shop/web TCP 80", "192.0.2.1 > shop/web TCP 80", "2001:db8::1 > fd00:1::11 TCP 80"],
    );
}

#[test]
fn an_empty_or_missing_pod_selector_selects_all_pods_of_the_namespace() {
    for spec in [json!({"podSelector": {}}), json!({}), json!({"podSelector": {"matchLabels": {}}})] {
        check(
            &with(spec),
            &["shop/web > data/db TCP 80"],
            &["data/db > shop/web TCP 80", "data/db > shop/job UDP 1"],
        );
    }
}

#[test]
fn types_default_to_ingress_and_to_egress_only_with_egress_rules() {
    let selector = json!({"podSelector": {}});
    let with_types = |more: Value| {
        let mut spec = selector.clone();
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        with(spec)
    };
    let (into, out) = ("192.0.2.1 > shop/web TCP 80", "shop/web > 192.0.2.1 TCP 80");
    check(&with_types(json!({})), &[out], &[into]);
    check(&with_types(json!({"policyTypes": []})), &[out], &[into]);
    check(&with_types(json!({"egress": []})), &[out], &[into]);
    check(&with_types(json!({"egress": [{"ports": [{"port": 81}]}]})), &[], &[into, out]);
    check(&with_types(json!({"policyTypes": ["Egress"]})), &[into], &[out]);
    check(&with_types(json!({"policyTypes": ["Ingress", "Egress"]})), &[], &[into, out]);
    check(
        &with_types(json!({"policyTypes": ["Ingress", "Egress"], "ingress": [{}], "egress": [{}]})),
        &[into, out],
        &[],
    );
}

#[test]
fn rules_of_a_direction_that_the_types_leave_out_have_no_effect() {
    let mut index = cluster();
    index.tell(policy(
        "shop/p",
        json!({"podSelector": {}, "policyTypes": ["Ingress"], "egress": [{"ports": [{"port": 1}]}]}),
    ));
    check(&index, &["shop/web > 192.0.2.1 TCP 80"], &["192.0.2.1 > shop/web TCP 80"]);
    assert_eq!(index.complaints(), ["spec.egress: has no effect, because policyTypes lacks Egress"]);
}

#[test]
fn both_ends_must_allow_a_connection_between_pods() {
    let mut index = egress(json!({"to": [{"namespaceSelector": {}}]}));
    check(&index, &["shop/web > data/db TCP 80"], &["shop/web > 192.0.2.1 TCP 80"]);
    index.tell(policy("data/closed", json!({"podSelector": {"matchLabels": {"app": "db"}}})));
    check(&index, &["shop/web > data/web TCP 80"], &["shop/web > data/db TCP 80"]);
    index.tell(policy("data/open", json!({"podSelector": {}, "ingress": [{"ports": [{"port": 80}]}]})));
    check(&index, &["shop/web > data/db TCP 80"], &["shop/web > data/db TCP 81"]);
}

#[test]
fn missing_and_empty_lists_of_peers_and_ports_mean_all() {
    for rule in [json!({}), json!({"from": [], "ports": []})] {
        check(
            &ingress(rule),
            &["192.0.2.1 > shop/web TCP 80", "shop/job > shop/web SCTP 9", "2001:db8::1 > fd00:1::11 ICMP"],
            &[],
        );
    }
    check(&egress(json!({})), &["shop/web > 192.0.2.1 TCP 80", "fd00:1::11 > 2001:db8::1 ICMP"], &[]);
}

#[test]
fn a_pod_selector_alone_means_pods_of_the_namespace_of_the_policy() {
    check(
        &ingress(json!({"from": [{"podSelector": {"matchLabels": {"app": "api"}}}]})),
        &["shop/api > shop/web TCP 80"],
        &["shop/job > shop/web TCP 80", "data/db > shop/web TCP 80", "192.0.2.1 > shop/web TCP 80"],
    );
    check(
        &ingress(json!({"from": [{"podSelector": {}}]})),
        &["shop/api > shop/web TCP 80", "shop/job > shop/web TCP 80"],
        &["data/web > shop/web TCP 80"],
    );
}

#[test]
fn a_namespace_selector_alone_means_all_pods_of_these_namespaces() {
    check(
        &ingress(json!({"from": [{"namespaceSelector": {"matchLabels": {"team": "b"}}}]})),
        &["data/db > shop/web TCP 80", "data/web > shop/web TCP 80", "fd00:1::22 > fd00:1::11 TCP 80"],
        &["shop/job > shop/web TCP 80", "192.0.2.1 > shop/web TCP 80"],
    );
    check(
        &ingress(json!({"from": [{"namespaceSelector": {}}]})),
        &["data/db > shop/web TCP 80", "shop/job > shop/web TCP 80"],
        &["192.0.2.1 > shop/web TCP 80"],
    );
}

#[test]
fn both_selectors_in_one_peer_must_match_and_of_two_peers_one_suffices() {
    let (pods, namespaces) = (json!({"matchLabels": {"app": "web"}}), json!({"matchLabels": {"team": "b"}}));
    check(
        &ingress(json!({"from": [{"podSelector": pods, "namespaceSelector": namespaces}]})),
        &["data/web > shop/web TCP 80"],
        &["data/db > shop/web TCP 80", "shop/api > shop/web TCP 80"],
    );
    let api = json!({"matchLabels": {"app": "api"}});
    check(
        &ingress(json!({"from": [{"podSelector": api}, {"namespaceSelector": namespaces}]})),
        &["data/db > shop/web TCP 80", "shop/api > shop/web TCP 80"],
        &["shop/job > shop/web TCP 80"],
    );
}

#[test]
fn expressions_of_selectors_have_four_operators() {
    let rows = ["shop/web > shop/web TCP 1", "shop/api > shop/web TCP 1", "shop/job > shop/web TCP 1"];
    let from = |operator: &str, key: &str, values: &[&str]| {
        let expression = json!({"key": key, "operator": operator, "values": values});
        ingress(json!({"from": [{"podSelector": {"matchExpressions": [expression]}}]}))
    };
    check(&from("In", "app", &["api", "db"]), &rows[1..2], &rows[2..]);
    check(&from("NotIn", "app", &["api", "db"]), &rows[2..], &rows[1..2]);
    // A pod without the label is selected, too.
    check(&from("NotIn", "tier", &["front"]), &rows[1..], &[]);
    check(&from("Exists", "tier", &[]), &rows[..1], &rows[1..]);
    check(&from("DoesNotExist", "tier", &[]), &rows[1..], &[]);
    let all = json!([
        {"key": "app", "operator": "Exists"},
        {"key": "app", "operator": "NotIn", "values": ["api"]},
    ]);
    check(&ingress(json!({"from": [{"podSelector": {"matchExpressions": all}}]})), &rows[2..], &rows[1..2]);
    let both =
        json!({"matchLabels": {"app": "api"}, "matchExpressions": [{"key": "tier", "operator": "Exists"}]});
    check(&ingress(json!({"from": [{"podSelector": both}]})), &[], &rows[1..]);
}

#[test]
fn a_namespace_has_its_name_as_a_label() {
    let by_name = json!({"matchLabels": {"kubernetes.io/metadata.name": "data"}});
    check(
        &ingress(json!({"from": [{"namespaceSelector": by_name}]})),
        &["data/db > shop/web TCP 80"],
        &["shop/job > shop/web TCP 80"],
    );
}

#[test]
fn of_an_unknown_namespace_only_what_holds_in_any_case_holds() {
    let from = |selector: Value| {
        let mut index = ingress(json!({"from": [{"namespaceSelector": selector}]}));
        index.forget(namespace("data", json!({})));
        index
    };
    let row = ["data/db > shop/web TCP 80"];
    check(&from(json!({})), &row, &[]);
    check(&from(json!({"matchLabels": {"kubernetes.io/metadata.name": "data"}})), &row, &[]);
    check(&from(json!({"matchLabels": {"team": "b"}})), &[], &row);
    for operator in ["NotIn", "DoesNotExist"] {
        let values = if operator == "NotIn" { json!(["a"]) } else { json!([]) };
        let expression = json!({"key": "team", "operator": operator, "values": values});
        check(&from(json!({"matchExpressions": [expression]})), &[], &row);
    }
}

#[test]
fn a_block_matches_addresses_inside_without_its_exceptions() {
    let block = |cidr: &str, except: &[&str]| {
        ingress(json!({"from": [{"ipBlock": {"cidr": cidr, "except": except}}]}))
    };
    check(
        &block("192.0.2.0/24", &["192.0.2.64/26", "192.0.2.1/32"]),
        &["192.0.2.2 > shop/web TCP 80", "192.0.2.128 > shop/web TCP 80"],
        &["192.0.2.1 > shop/web TCP 80", "192.0.2.65 > shop/web TCP 80", "192.0.3.1 > shop/web TCP 80"],
    );
    check(
        &block("2001:db8::/32", &["2001:db8:1::/48"]),
        &["2001:db8::1 > fd00:1::11 TCP 80"],
        &["2001:db8:1::1 > fd00:1::11 TCP 80", "192.0.2.1 > shop/web TCP 80"],
    );
    // Every IPv4 address, and no IPv6 address.
    check(
        &block("0.0.0.0/0", &[]),
        &["192.0.2.1 > shop/web TCP 80", "shop/job > shop/web TCP 80"],
        &["2001:db8::1 > fd00:1::11 TCP 80"],
    );
    // Host bits do not count.
    check(&block("192.0.2.77/24", &[]), &["192.0.2.1 > shop/web TCP 80"], &["192.0.3.1 > shop/web TCP 80"]);
}

#[test]
fn nested_blocks_of_several_rules_open_again_what_one_excepts() {
    let index = with(json!({"podSelector": {}, "ingress": [
        {"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}], "ports": [{"port": 1}]},
        {"from": [{"ipBlock": {"cidr": "10.1.2.0/24", "except": ["10.1.2.2/32"]}}], "ports": [{"port": 2}]},
        {"from": [{"ipBlock": {"cidr": "10.1.0.0/16"}}], "ports": [{"port": 3}]},
    ]}));
    check(
        &index,
        &[
            "10.2.0.1 > shop/web TCP 1",
            "10.1.2.9 > shop/web TCP 2",
            "10.1.2.9 > shop/web TCP 3",
            "data/db > shop/web TCP 3",
            "data/web > shop/web TCP 2",
        ],
        &[
            "10.2.0.1 > shop/web TCP 2",
            "10.1.2.9 > shop/web TCP 1",
            "10.1.9.9 > shop/web TCP 1",
            "data/db > shop/web TCP 1",
            "data/db > shop/web TCP 2",
        ],
    );
}

#[test]
fn a_pod_inside_a_block_is_in_the_block_and_in_the_sets_of_its_labels() {
    let index = with(json!({"podSelector": {"matchLabels": {"app": "web"}}, "ingress": [
        {"from": [{"ipBlock": {"cidr": "10.1.0.0/16"}}], "ports": [{"port": 1}]},
        {"from": [{"namespaceSelector": {"matchLabels": {"team": "b"}}}], "ports": [{"port": 2}]},
    ]}));
    check(
        &index,
        &["data/db > shop/web TCP 1", "data/db > shop/web TCP 2", "shop/job > shop/web TCP 1"],
        &["shop/job > shop/web TCP 2", "fd00:1::22 > fd00:1::11 TCP 1", "10.2.0.1 > shop/web TCP 1"],
    );
    check(&index, &["fd00:1::22 > fd00:1::11 TCP 2"], &[]);
}

#[test]
fn ports_are_numbers_ranges_and_whole_protocols() {
    let ports =
        json!([{"port": 80}, {"port": 1000, "endPort": 2047, "protocol": "UDP"}, {"protocol": "SCTP"}]);
    check(
        &ingress(json!({"ports": ports})),
        &[
            "192.0.2.1 > shop/web TCP 80",
            "192.0.2.1 > shop/web UDP 1000",
            "192.0.2.1 > shop/web UDP 1500",
            "192.0.2.1 > shop/web UDP 2047",
            "192.0.2.1 > shop/web SCTP 1",
            "192.0.2.1 > shop/web SCTP 65535",
        ],
        &[
            "192.0.2.1 > shop/web TCP 81",
            "192.0.2.1 > shop/web UDP 80",
            "192.0.2.1 > shop/web UDP 999",
            "192.0.2.1 > shop/web UDP 2048",
            "192.0.2.1 > shop/web TCP 1500",
            "192.0.2.1 > shop/web ICMP",
        ],
    );
}

#[test]
fn a_port_belongs_to_the_peers_of_its_own_rule() {
    let index = with(json!({"podSelector": {}, "ingress": [
        {"from": [{"podSelector": {"matchLabels": {"app": "api"}}}], "ports": [{"port": 1}]},
        {"from": [{"namespaceSelector": {"matchLabels": {"team": "b"}}}], "ports": [{"port": 2}]},
    ]}));
    check(
        &index,
        &["shop/api > shop/web TCP 1", "data/db > shop/web TCP 2"],
        &["shop/api > shop/web TCP 2", "data/db > shop/web TCP 1"],
    );
}

#[test]
fn a_named_port_of_ingress_is_that_of_the_selected_pod() {
    let index = with(json!({"podSelector": {}, "ingress": [{"ports": [{"port": "http"}]}]}));
    check(
        &index,
        &["192.0.2.1 > shop/web TCP 8080", "192.0.2.1 > shop/api TCP 9090"],
        &["192.0.2.1 > shop/web TCP 9090", "192.0.2.1 > shop/job TCP 8080", "192.0.2.1 > shop/web UDP 8080"],
    );
    // Name and protocol count together.
    for (protocol, name, row) in
        [("UDP", "dns", "192.0.2.1 > shop/web UDP 5353"), ("SCTP", "sig", "192.0.2.1 > shop/web SCTP 3868")]
    {
        let ports = json!([{"port": name, "protocol": protocol}]);
        check(&ingress(json!({"ports": ports})), &[row], &["192.0.2.1 > shop/web TCP 5353"]);
    }
    check(&ingress(json!({"ports": [{"port": "dns"}]})), &[], &["192.0.2.1 > shop/web UDP 5353"]);
}

#[test]
fn a_named_port_of_egress_is_that_of_each_peer() {
    let rows = [
        "shop/web > shop/api TCP 9090",
        "shop/web > data/web TCP 80",
        "shop/web > shop/api TCP 80",
        "shop/web > data/web TCP 9090",
        "shop/web > shop/job TCP 8080",
        "shop/web > 192.0.2.1 TCP 8080",
    ];
    check(&egress(json!({"ports": [{"port": "http"}]})), &rows[..2], &rows[2..]);
    let selector = json!([{"namespaceSelector": {"matchLabels": {"team": "b"}}}]);
    check(&egress(json!({"to": selector, "ports": [{"port": "http"}]})), &rows[1..2], &rows[..1]);
    // Behind an address it is the port of the pod that has the address.
    let block = json!([{"ipBlock": {"cidr": "10.1.1.0/24"}}]);
    check(&egress(json!({"to": block, "ports": [{"port": "http"}]})), &rows[..1], &rows[1..]);
    let mixed = json!([{"port": "http"}, {"port": 53, "protocol": "UDP"}]);
    check(&egress(json!({"ports": mixed})), &[rows[0], "shop/web > 192.0.2.1 UDP 53"], &rows[2..]);
}
