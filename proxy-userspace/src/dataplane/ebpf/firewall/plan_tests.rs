use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;
use crate::policy::{Change, Index, Object, Site};

const DEVICE: u32 = 7;

fn policy(name: &str, app: &str, port: u16) -> Value {
    json!({"metadata": {"namespace": "shop", "name": name}, "spec": {"podSelector": {}, "ingress": [
        {"from": [{"podSelector": {"matchLabels": {"app": app}}}], "ports": [{"port": port}]},
    ]}})
}

fn pod(name: &str, app: &str, address: &str) -> Value {
    json!({"metadata": {"namespace": "shop", "name": name, "labels": {"app": app}},
        "spec": {"nodeName": "node-1", "containers": []}, "status": {"podIPs": [{"ip": address}]}})
}

struct World {
    index: Index,
    site: Site,
}

impl World {
    fn new(pods: &[Value]) -> Self {
        let site = Site { node: "node-1".to_owned(), addresses: ["10.1.0.1".parse().unwrap()].into() };
        let mut world = Self { index: Index::default(), site };
        for pod in pods {
            world.tell_pod(pod);
        }
        world
    }

    fn tell_pod(&mut self, pod: &Value) {
        let pod = Box::new(serde_json::from_value(pod.clone()).unwrap());
        self.index.apply(Change::Upsert { object: Object::Pod(pod), file: None });
    }

    fn tell(&mut self, policy: &Value) {
        let policy = Box::new(serde_json::from_value(policy.clone()).unwrap());
        self.index.apply(Change::Upsert { object: Object::NetworkPolicy(policy), file: None });
    }

    /// Returns the tables with the pod `web` on [`DEVICE`].
    fn tables(compiled: &Compiled) -> Tables {
        let selected = compiled.pods.values().next();
        let ingress = selected.and_then(|pod| pod.ingress).unwrap_or(0);
        let pod = PolicyPod { address4: [1], ingress, epoch: 1, ..PolicyPod::default() };
        Tables::of(compiled, BTreeMap::from([(DEVICE, pod)]), &BTreeSet::new(), true)
    }
}

/// What a program finds for the pod, an address and a port.
fn allows(tables: &Tables, address: &str, port: u16) -> bool {
    let address: IpNet = format!("{address}/32").parse().unwrap();
    let longest =
        tables.peers.iter().filter(|(net, _)| net.contains(&address)).max_by_key(|(net, _)| net.prefix_len());
    let class = longest.map_or(0, |(_, value)| *value);
    let profile = tables.pods[&DEVICE].ingress;
    tables
        .rules
        .iter()
        .any(|key| (key.profile, key.class, key.protocol, key.port) == (profile, class, 6, port))
}

#[test]
fn at_no_step_is_anything_open_that_neither_table_allows_or_closed_that_both_allow() {
    let pods = [pod("web", "web", "10.1.0.2"), pod("a", "a", "10.1.0.3"), pod("b", "b", "10.1.0.4")];
    let mut world = World::new(&pods);
    world.tell(&policy("p", "a", 80));
    world.tell(&policy("q", "b", 82));
    let first = world.index.compile(&world.site);
    // Another selector, another port and another rule at once: sets, classes and profiles change.
    world.tell(&policy("p", "b", 80));
    world.tell(&policy("r", "a", 81));
    let second = world.index.compile_after(&world.site, &first);
    let between = world.index.compile_between(&world.site, &first, &second).unwrap();
    let (mut held, between, wanted) =
        (World::tables(&first), World::tables(&between), World::tables(&second));
    let (before, mut seen) = (held.clone(), 0);
    let connections = || {
        let to = |address| [80, 81, 82].map(|port| (address, port));
        ["10.1.0.3", "10.1.0.4", "192.0.2.1"].into_iter().flat_map(to)
    };
    for op in held.clone().changes_to(Some(&between), &wanted) {
        held.apply(op);
        for (address, port) in connections() {
            let (was, will) = (allows(&before, address, port), allows(&wanted, address, port));
            let now = allows(&held, address, port);
            assert!(if was == will { now == was } else { true }, "{address}:{port} after {op:?}");
        }
        seen += 1;
    }
    assert!(seen > 6, "{seen}");
    assert_eq!(held, wanted);
    // Both tables do allow something that the other one does not.
    assert!(allows(&before, "10.1.0.3", 80) && !allows(&wanted, "10.1.0.3", 80));
    assert!(!allows(&before, "10.1.0.4", 80) && allows(&wanted, "10.1.0.4", 80));
    assert!(allows(&before, "10.1.0.4", 82) && allows(&wanted, "10.1.0.4", 82));
}

#[test]
fn without_the_tables_between_an_allowed_connection_would_be_refused_for_a_moment() {
    let pods = [pod("web", "web", "10.1.0.2"), pod("b", "b", "10.1.0.4")];
    let mut world = World::new(&pods);
    // At first, b is in two sets, and later in one.
    let mut all = policy("p", "b", 80);
    all["spec"]["ingress"][0]["from"][0]["podSelector"] = json!({});
    world.tell(&all);
    world.tell(&policy("q", "b", 82));
    let first = world.index.compile(&world.site);
    world.tell(&policy("p", "a", 80));
    let second = world.index.compile_after(&world.site, &first);
    let between = world.index.compile_between(&world.site, &first, &second).unwrap();
    let (before, between, wanted) = (World::tables(&first), World::tables(&between), World::tables(&second));
    let is_refused = |between: Option<&Tables>| {
        let mut held = before.clone();
        let ops = held.changes_to(between, &wanted);
        ops.into_iter().any(|op| {
            held.apply(op);
            !allows(&held, "10.1.0.4", 82)
        })
    };
    assert!(is_refused(None), "the test above shows nothing");
    assert!(!is_refused(Some(&between)));
}

#[test]
fn the_same_tables_are_no_change_and_all_of_them_are_written_once() {
    let mut world = World::new(&[pod("web", "web", "10.1.0.2"), pod("a", "a", "10.1.0.3")]);
    world.tell(&policy("p", "a", 80));
    let compiled = world.index.compile(&world.site);
    let wanted = World::tables(&compiled);
    let ops = Tables::default().changes_to(None, &wanted);
    let place = |wanted: fn(&Op) -> bool| ops.iter().position(wanted).unwrap();
    assert!(place(|op| matches!(op, Op::Rule(_))) < place(|op| matches!(op, Op::Peer(..))));
    assert!(place(|op| matches!(op, Op::Peer(..))) < place(|op| matches!(op, Op::Pod(..))));
    assert_eq!(ops.last(), Some(&Op::Generation));
    assert!(wanted.changes_to(None, &wanted).is_empty());
    // An agent that starts anew has the same numbers, and writes nothing.
    let again = world.index.compile(&world.site);
    assert!(wanted.changes_to(None, &World::tables(&again)).is_empty());
}

#[test]
fn a_longer_prefix_is_written_before_one_around_it() {
    let net = |text: &str| text.parse::<IpNet>().unwrap();
    let wanted = Tables {
        peers: [(net("10.0.0.0/8"), 1), (net("10.1.0.0/16"), 0), (net("10.1.0.2/32"), 2)].into(),
        ..Tables::default()
    };
    let ops = Tables::default().changes_to(None, &wanted);
    let lengths: Vec<u8> = ops
        .iter()
        .filter_map(|op| if let Op::Peer(net, _) = op { Some(net.prefix_len()) } else { None })
        .collect();
    assert_eq!(lengths, [32, 16, 8]);
}

#[test]
fn devices_close_before_pods_are_written_and_open_after_them() {
    let tables = |flags, epoch| {
        let pod = PolicyPod { epoch, ..PolicyPod::default() };
        Tables { flags, pods: [(DEVICE, pod)].into(), ..Tables::default() }
    };
    let (open, closed) = (tables(POLICY_OPEN_UNKNOWN, 1), tables(0, 2));
    assert!(matches!(open.changes_to(None, &closed).as_slice(), [Op::Flags(0), Op::Pod(..), Op::Generation]));
    let ops = closed.changes_to(None, &open);
    assert!(matches!(ops.as_slice(), [Op::Pod(..), Op::Flags(POLICY_OPEN_UNKNOWN), Op::Generation]));
}

#[test]
fn a_node_keeps_the_class_of_the_block_around_it_and_counts_as_a_node() {
    let mut world = World::new(&[pod("web", "web", "10.1.0.2")]);
    let mut block = policy("p", "a", 80);
    block["spec"]["ingress"][0]["from"] = json!([{"ipBlock": {"cidr": "172.30.0.0/24"}}]);
    world.tell(&block);
    let compiled = world.index.compile(&world.site);
    let nodes = ["172.30.0.12", "192.0.2.9", "10.1.0.1"].map(|text| text.parse().unwrap()).into();
    let tables = Tables::of(&compiled, BTreeMap::new(), &nodes, true);
    let value = |text: &str| tables.peers[&text.parse::<IpNet>().unwrap()];
    let class = value("172.30.0.0/24");
    assert!(class != 0 && class & PEER_NODE == 0);
    assert_eq!(value("172.30.0.12/32"), class | PEER_NODE);
    assert_eq!(value("192.0.2.9/32"), PEER_NODE);
    assert_eq!(value("10.1.0.1/32"), PEER_NODE | PEER_OWN_NODE, "the node itself");
}

#[test]
fn a_step_ends_in_the_same_entries_as_all_tables_do() {
    let mut world = World::new(&[pod("web", "web", "10.1.0.2"), pod("a", "a", "10.1.0.3")]);
    world.tell(&policy("p", "a", 80));
    world.tell(&policy("q", "b", 81));
    let mut compiled = world.index.compile(&world.site);
    drop(world.index.take_changes());
    let nodes: BTreeSet<IpAddr> = ["10.1.0.1", "10.1.0.9"].map(|text| text.parse().unwrap()).into();
    let of = |compiled: &Compiled, pods: &BTreeMap<u32, PolicyPod>| {
        Tables::of(compiled, pods.clone(), &nodes, true)
    };
    let pods = |epoch: u32| BTreeMap::from([(DEVICE, PolicyPod { epoch, ..PolicyPod::default() })]);
    let mut held = of(&compiled, &pods(1));
    let changes = [
        // The first pod of its kind has a new class with rules.
        (pod("b", "b", "10.1.0.4"), pods(1)),
        (pod("b", "b", "10.1.0.5"), pods(2)),
        // An address of a node stays one.
        (pod("a", "a", "10.1.0.9"), pods(2)),
        (pod("a", "none", "10.1.0.9"), BTreeMap::new()),
    ];
    for (number, (changed, pods)) in changes.into_iter().enumerate() {
        world.tell_pod(&changed);
        let changes = world.index.take_changes();
        let step = world.index.step(&world.site, &mut compiled, &changes).unwrap();
        let ops = held.changes_of_step(&step, &compiled, &pods, [&nodes, &nodes]);
        assert_eq!(ops.last(), Some(&Op::Generation), "{number}");
        assert_eq!(number == 0, ops.iter().any(|op| matches!(op, Op::Rule(_))), "{ops:?}");
        for op in ops {
            held.apply(op);
        }
        assert_eq!(held, of(&compiled, &pods), "{number}");
    }
    let none = Step::default();
    assert!(held.changes_of_step(&none, &compiled, &BTreeMap::new(), [&nodes, &nodes]).is_empty());
    // A node comes, and one goes.
    let later: BTreeSet<IpAddr> =
        ["10.1.0.1", "10.1.0.5", "fe80::1"].map(|text| text.parse().unwrap()).into();
    for op in held.changes_of_step(&none, &compiled, &BTreeMap::new(), [&nodes, &later]) {
        held.apply(op);
    }
    assert_eq!(held, Tables::of(&compiled, BTreeMap::new(), &later, true));
}
