//! What pods, nodes and changes of objects mean to policies.

use serde_json::json;

use super::testing::{check, cluster, egress, explain, ingress, namespace, pod, policy, with};
use super::{Direction, Index, Verdict};

#[test]
fn a_restartable_init_container_has_named_ports_and_a_usual_one_has_none() {
    for (restart, expected) in [(Some("Always"), true), (None, false)] {
        let mut index = ingress(json!({"ports": [{"port": "metrics"}]}));
        let mut web = pod("shop/web", "node-1", &["10.1.1.1"], json!({"app": "web"}), json!([]));
        let port = json!({"name": "metrics", "containerPort": 9100});
        web["spec"]["initContainers"] = json!([{"name": "side", "restartPolicy": restart, "ports": [port]}]);
        index.tell(web);
        let row = ["192.0.2.1 > shop/web TCP 9100"];
        let (allowed, denied) = if expected { (&row[..], &[][..]) } else { (&[][..], &row[..]) };
        check(&index, allowed, denied);
    }
}

#[test]
fn a_name_that_two_containers_have_is_both_ports() {
    let mut index = ingress(json!({"ports": [{"port": "http"}]}));
    let mut web = pod("shop/web", "node-1", &["10.1.1.1"], json!({"app": "web"}), json!([]));
    let container =
        |name: &str, port: u16| json!({"name": name, "ports": [{"name": "http", "containerPort": port}]});
    web["spec"]["containers"] = json!([container("a", 1), container("b", 2)]);
    index.tell(web);
    check(
        &index,
        &["192.0.2.1 > shop/web TCP 1", "192.0.2.1 > shop/web TCP 2"],
        &["192.0.2.1 > shop/web TCP 3"],
    );
}

#[test]
fn pods_of_the_hosts_network_are_neither_selected_nor_peers_of_selectors() {
    let index = with(json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"], "ingress": [
        {"from": [{"podSelector": {"matchLabels": {"app": "agent"}}}]},
    ]}));
    let selected = index.pods().find(|pod| pod.is_host_network).unwrap();
    assert_eq!(selected.policies, []);
    // From another node, the agent's address is that of any process of the node.
    let mut index = index;
    index.tell(policy(
        "data/p",
        json!({"podSelector": {}, "ingress": [
            {"from": [{"namespaceSelector": {}}]}, {"from": [{"ipBlock": {"cidr": "172.16.0.8/29"}}]},
        ]}),
    ));
    check(&index, &["172.16.0.9 > data/db TCP 80"], &["172.16.0.1 > data/db TCP 80"]);
    let explanation = explain(&index, "172.16.0.1", "data/db", "TCP 80");
    assert_eq!(explanation.egress, None);
    // A block matches the node's address.
    index.tell(policy(
        "data/q",
        json!({"podSelector": {}, "ingress": [{"from": [{"ipBlock": {"cidr": "172.16.0.1/32"}}]}]}),
    ));
    check(&index, &["172.16.0.1 > data/db TCP 80"], &[]);
}

#[test]
fn the_own_node_always_reaches_its_pods_and_another_node_does_not() {
    let index = with(json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}));
    check(
        &index,
        &["172.16.0.1 > shop/web TCP 80", "fd00:16::1 > fd00:1::11 ICMP", "172.16.0.2 > shop/job TCP 80"],
        &["172.16.0.2 > shop/web TCP 80", "172.16.0.1 > shop/job TCP 80"],
    );
    // Policies do apply to packets from the pod to its node.
    check(&index, &[], &["shop/web > 172.16.0.1 TCP 80"]);
    let index = egress(json!({"to": [{"ipBlock": {"cidr": "172.16.0.0/24"}}]}));
    check(
        &index,
        &["shop/web > 172.16.0.1 TCP 80", "shop/web > 172.16.0.2 TCP 80"],
        &["shop/web > 192.0.2.1 TCP 1"],
    );
}

#[test]
fn a_pod_always_reaches_itself() {
    let index = with(json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}));
    check(
        &index,
        &["shop/web > shop/web TCP 80", "fd00:1::11 > fd00:1::11 UDP 1"],
        &["shop/web > shop/api TCP 80"],
    );
}

#[test]
fn a_pod_that_has_ended_counts_no_more() {
    let mut index = ingress(json!({"from": [{"podSelector": {"matchLabels": {"app": "job"}}}]}));
    check(&index, &["shop/job > shop/web TCP 80"], &[]);
    let mut job = pod("shop/job", "node-2", &["10.1.2.1"], json!({"app": "job"}), json!([]));
    for phase in ["Succeeded", "Failed"] {
        job["status"]["phase"] = json!(phase);
        index.tell(job.clone());
        check(&index, &[], &["10.1.2.1 > shop/web TCP 80"]);
        assert!(index.pods().all(|pod| pod.name.name != "job"));
        job["status"]["phase"] = json!("Running");
        index.tell(job.clone());
        check(&index, &["10.1.2.1 > shop/web TCP 80"], &[]);
    }
    // Its address belongs to the next pod, and carries nothing over.
    job["status"]["phase"] = json!("Failed");
    index.tell(job);
    index.tell(pod("shop/next", "node-2", &["10.1.2.1"], json!({"app": "next"}), json!([])));
    check(&index, &[], &["shop/next > shop/web TCP 80"]);
}

#[test]
fn an_address_of_two_pods_counts_only_where_a_rule_admits_both() {
    let mut index = ingress(json!({"from": [{"podSelector": {"matchLabels": {"app": "job"}}}]}));
    index.tell(pod("shop/late", "node-1", &["10.1.2.1"], json!({"app": "late"}), json!([])));
    check(&index, &[], &["10.1.2.1 > shop/web TCP 80"]);
    index.tell(pod("shop/late", "node-1", &["10.1.2.1"], json!({"app": "job", "x": "y"}), json!([])));
    check(&index, &["10.1.2.1 > shop/web TCP 80"], &[]);
}

#[test]
fn a_changed_label_an_address_and_a_deleted_object_take_effect() {
    let mut index = ingress(json!({"from": [{"namespaceSelector": {"matchLabels": {"team": "b"}}}]}));
    let row = ["data/db > shop/web TCP 80"];
    check(&index, &row, &[]);
    index.tell(namespace("data", json!({"team": "c"})));
    check(&index, &[], &row);
    index.tell(namespace("data", json!({"team": "b"})));
    index.tell(pod("data/db", "node-2", &["10.1.2.9"], json!({"app": "db"}), json!([])));
    check(&index, &["10.1.2.9 > shop/web TCP 80"], &["10.1.2.2 > shop/web TCP 80"]);
    index.forget(pod("data/db", "", &[], json!({}), json!([])));
    check(&index, &[], &["10.1.2.9 > shop/web TCP 80"]);
    index.forget(policy("shop/p", json!({})));
    check(&index, &["10.1.2.9 > shop/web TCP 80"], &[]);
}

#[test]
fn an_explanation_names_every_rule_that_allows_or_every_policy_that_isolates() {
    let mut index = cluster();
    let allow = |port: u16| json!({"podSelector": {}, "ingress": [{"ports": [{"port": 9}]}, {"ports": [{"port": port}]}]});
    index.tell(policy("shop/b", allow(80)));
    index.tell(policy("shop/a", allow(80)));
    index.tell(policy("shop/c", allow(81)));
    let side = |port: &str| explain(&index, "192.0.2.1", "shop/web", port).ingress.unwrap();
    let Verdict::Allowed(rules) = side("TCP 80").verdict else { panic!("denied") };
    let names: Vec<String> = rules.iter().map(ToString::to_string).collect();
    assert_eq!(names, ["shop/a ingress[1]", "shop/b ingress[1]"]);
    let Verdict::Denied(policies) = side("TCP 82").verdict else { panic!("allowed") };
    let names: Vec<String> = policies.iter().map(ToString::to_string).collect();
    assert_eq!(names, ["shop/a", "shop/b", "shop/c"]);
    let open = explain(&index, "shop/web", "192.0.2.1", "TCP 80");
    assert_eq!((open.egress.unwrap().verdict, open.ingress), (Verdict::NotIsolated, None));
}

#[test]
fn a_view_of_a_pod_has_the_policies_that_select_it() {
    let mut index = with(json!({"podSelector": {"matchLabels": {"app": "web"}}}));
    index.tell(policy("shop/q", json!({"podSelector": {}, "policyTypes": ["Egress"]})));
    let web = index.pods().find(|pod| pod.name.to_string() == "shop/web").unwrap();
    let policies: Vec<_> =
        web.policies.iter().map(|one| (one.policy.name.as_str(), one.directions.as_slice())).collect();
    assert_eq!(policies, [("p", &[Direction::Ingress][..]), ("q", &[Direction::Egress][..])]);
    assert!(web.is_isolated(Direction::Ingress) && web.is_isolated(Direction::Egress));
    let db = index.pods().find(|pod| pod.name.name == "db").unwrap();
    assert!(db.policies.is_empty() && !db.is_isolated(Direction::Ingress));
}

#[test]
fn an_address_is_of_the_only_pod_that_has_it() {
    let mut index = cluster();
    let owner = |index: &Index, address: &str| {
        let address = address.parse().unwrap();
        let one = index.owner(address).map(ToString::to_string);
        let of_all = index.owners().find(|(of, _)| *of == address).map(|(_, pod)| pod.to_string());
        assert_eq!(one, of_all, "{address}");
        one
    };
    let known = |name: &str| Some(name.to_owned());
    assert_eq!(owner(&index, "10.1.2.2"), known("data/db"));
    assert_eq!(owner(&index, "fd00:1::22"), known("data/db"));
    // One of a pod of the host's network is the node's.
    assert_eq!(owner(&index, "172.16.0.1"), None);
    // Another pod gets the address while the former one has not ended: nobody can say whose it is.
    let next = pod("shop/next", "node-1", &["10.1.2.2"], json!({}), json!([]));
    index.tell(next.clone());
    assert_eq!(owner(&index, "10.1.2.2"), None);
    assert_eq!(owner(&index, "fd00:1::22"), known("data/db"));
    index.forget(pod("data/db", "node-2", &[], json!({}), json!([])));
    assert_eq!(owner(&index, "10.1.2.2"), known("shop/next"));
    assert_eq!(owner(&index, "fd00:1::22"), None);
    index.forget(next);
    assert_eq!(owner(&index, "10.1.2.2"), None);
}
