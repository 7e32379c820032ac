use super::*;

fn setting(nodes: u8, from_here: bool) -> Setting {
    let frontends = |kind: Kind| {
        let has_ports = matches!(kind, Kind::Plain | Kind::External | Kind::Dsr);
        let ports = [(Protocol::Tcp, 30080), (Protocol::Udp, 30081)];
        Frontends {
            cluster_ips: vec!["10.96.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
            balancer_ips: kind.balancer_ips().to_vec(),
            node_ports: if has_ports { ports.into() } else { BTreeMap::new() },
        }
    };
    let node =
        |number: u8| Node { name: format!("node-{number}"), addresses: vec![[192, 0, 2, number].into()] };
    Setting {
        nodes: (1..=nodes).map(node).collect(),
        services: Kind::ALL.map(|kind| (kind, frontends(kind))).into(),
        from_here,
    }
}

fn shown(setting: &Setting, test: Test) -> Vec<String> {
    let (cases, _) = setting.cases(&[test]);
    cases.iter().map(|case| format!("{} {} {:?}", case.client, case.probe, case.expected)).collect()
}

#[test]
fn every_test_has_cases_or_a_reason() {
    for (nodes, from_here, without) in [(3, true, 0), (2, false, 4), (1, false, 5)] {
        let (cases, skipped) = setting(nodes, from_here).cases(&ALL);
        assert_eq!(skipped.len(), without);
        for test in ALL {
            let is_skipped = skipped.iter().any(|(skipped, _)| *skipped == test);
            assert_eq!(cases.iter().any(|case| case.test == test), !is_skipped, "{}", test.id);
        }
    }
}

#[test]
fn a_pod_asks_each_address_by_both_protocols_and_any_server_may_answer() {
    let found = shown(&setting(1, false), CLUSTERIP_POD);
    let servers =
        "Answer { servers: {\"echo-a-node-1\", \"echo-b-node-1\"}, is_one: false, is_source_kept: false }";
    assert_eq!(
        found,
        [
            format!("a pod on node-1 tcp,10.96.0.1:80,4,64 {servers}"),
            format!("a pod on node-1 udp,10.96.0.1:80,4,64 {servers}"),
            format!("a pod on node-1 tcp,[fd00::1]:80,4,64 {servers}"),
            format!("a pod on node-1 udp,[fd00::1]:80,4,64 {servers}"),
        ]
    );
}

#[test]
fn the_policy_local_answers_beside_the_server_alone() {
    let found = shown(&setting(3, false), NODEPORT_LOCAL);
    let of = |words: &str| found.iter().filter(|line| line.contains(words)).cloned().collect::<Vec<_>>();
    assert_eq!(
        of("node-2 tcp"),
        [
            "node-2 tcp,192.0.2.1:30080,4,64 Answer { servers: {\"echo-a-node-1\"}, is_one: false, is_source_kept: \
             true }",
            "node-2 tcp,192.0.2.3:30080,1,64 NoAnswer",
        ]
    );
    assert_eq!(of("node-1 tcp").len(), 2, "its own NodePort is no address outside");
    let internal = shown(&setting(3, false), CLUSTERIP_LOCAL);
    assert!(
        internal.iter().all(|line| !line.starts_with("a pod on node-2") || line.contains("echo-b-node-2"))
    );
}

#[test]
fn a_cluster_of_one_family_has_node_ports_of_that_family_alone() {
    let mut setting = setting(2, true);
    for frontends in setting.services.values_mut() {
        frontends.cluster_ips.retain(IpAddr::is_ipv6);
    }
    assert_eq!(shown(&setting, OUTSIDE_NODEPORT), [""; 0], "the nodes have IPv4 addresses alone");
    setting.nodes[0].addresses.push("fd00::a".parse().unwrap());
    assert_eq!(shown(&setting, OUTSIDE_NODEPORT).len(), 2);
}

#[test]
fn addresses_of_load_balancers_are_asked_where_the_test_may_give_them() {
    let mut setting = setting(1, false);
    let refused = shown(&setting, LOADBALANCER_SOURCES);
    assert_eq!(refused.len(), 4, "{refused:?}");
    assert_eq!(refused[0], "a pod on node-1 tcp,198.18.255.2:80,1,64 NoAnswer");
    let served = shown(&setting, LOADBALANCER_HOST);
    assert!(served[3].starts_with("node-1 udp,[2001:2:0:ff::1]:80,4,64 Answer"), "{served:?}");
    setting.services.values_mut().for_each(|found| found.balancer_ips.clear());
    let (_, skipped) = setting.cases(&ALL);
    assert_eq!(skipped.iter().filter(|(test, _)| test.is_named("loadbalancer")).count(), 3);
}

#[test]
fn a_test_is_named_by_its_first_part_too() {
    let named = |name: &str| ALL.iter().filter(|test| test.is_named(name)).count();
    assert_eq!([named("outside"), named("clusterip.pod"), named("clusterip.p"), named("")], [4, 1, 0, 0]);
}
