//! The form of the tables: what is shared, what is left out, and that the order of objects does not matter.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::{Value, json};

use super::clusters::random::Random;
use super::clusters::world::World;
use super::testing::{cluster, node, pod, policy};
use super::{Compiled, Direction, Index, NamespacedName, SelectedPod, Site, Traffic};

fn compile(index: &Index, name: &str) -> Compiled {
    index.compile(&Site { node: name.to_owned(), addresses: node(name) })
}

/// Returns the entries for peers as `prefix class`, without those of the node. Classes are numbered in their order here.
fn peers(compiled: &Compiled) -> Vec<String> {
    let mut seen = vec![0];
    let others = compiled.peers.iter().filter(|(_, entry)| !entry.is_own_node);
    let mut number = |class: u32| {
        seen.iter().position(|one| *one == class).unwrap_or_else(|| {
            seen.push(class);
            seen.len() - 1
        })
    };
    others.map(|(prefix, entry)| format!("{prefix} {}", number(entry.class))).collect()
}

fn index(spec: Value) -> Index {
    let mut index = cluster();
    index.tell(policy("shop/p", spec));
    index
}

#[test]
fn without_policies_the_tables_have_only_the_nodes_addresses() {
    let compiled = compile(&cluster(), "node-1");
    assert!(compiled.pods.is_empty() && compiled.rules.is_empty());
    assert_eq!((compiled.profiles(), compiled.classes(), compiled.peers.len()), (0, 1, 2));
    assert!(compiled.peers.iter().all(|(_, entry)| entry.is_own_node && entry.class == 0));
    assert!(Index::default().compile(&Site { node: String::new(), addresses: [].into() }).peers.is_empty());
}

#[test]
fn exceptions_and_nested_blocks_are_prefixes_of_their_own() {
    let compiled = compile(
        &index(json!({"podSelector": {}, "ingress": [
            {"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16", "10.9.0.0/16"]}}], "ports": [{"port": 1}]},
            {"from": [{"ipBlock": {"cidr": "10.1.2.0/24"}}], "ports": [{"port": 2}]},
            {"from": [{"ipBlock": {"cidr": "10.9.0.0/24", "except": ["10.9.0.0/28"]}}], "ports": [{"port": 1}]},
        ]})),
        "node-1",
    );
    // Sets in their order: 10.0.0.0/8 is 0, 10.1.2.0/24 is 1, 10.9.0.0/24 is 2. Class 0 takes the exceptions out.
    assert_eq!(
        peers(&compiled),
        ["10.0.0.0/8 1", "10.1.0.0/16 0", "10.1.2.0/24 2", "10.9.0.0/16 0", "10.9.0.0/24 3", "10.9.0.0/28 0"]
    );
    assert_eq!(compiled.classes(), 4);
}

#[test]
fn a_prefix_or_an_address_that_changes_nothing_is_left_out() {
    let compiled = compile(
        &index(json!({"podSelector": {}, "ingress": [{"from": [
            {"ipBlock": {"cidr": "10.0.0.0/8"}},
            {"ipBlock": {"cidr": "10.1.0.0/16", "except": ["10.1.7.0/24"]}},
            {"podSelector": {}},
        ]}]})),
        "node-1",
    );
    // The whole rule is one set, and every IPv4 address of its pods is inside.
    assert_eq!(peers(&compiled), ["10.0.0.0/8 1", "fd00:1::11/128 1"]);
    assert_eq!(compiled.rules.len(), 1);
}

#[test]
fn policies_with_the_same_peers_share_one_set_and_pods_with_the_same_rules_one_profile() {
    let rule = |port: u16| {
        json!({"podSelector": {}, "ingress": [
            {"from": [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "db"}}}], "ports": [{"port": port}]},
        ]})
    };
    let mut index = index(rule(80));
    index.tell(policy("shop/q", rule(81)));
    let compiled = compile(&index, "node-1");
    // One profile for both pods, and one for each policy alone.
    assert_eq!((compiled.classes(), compiled.profiles()), (2, 3));
    let profiles: BTreeSet<u32> = compiled.pods.values().filter_map(|pod| pod.ingress).collect();
    assert_eq!((compiled.pods.len(), profiles.len()), (2, 1));
    // 80 and 81 are one prefix.
    let judging = compiled.rules.iter().filter(|rule| profiles.contains(&rule.profile));
    assert_eq!((judging.count(), compiled.rules.len()), (1, 3));
    assert!(compiled.pods.values().all(|pod| pod.ingress.is_some() && pod.egress.is_none()));
}

#[test]
fn a_set_that_no_pod_of_the_node_needs_is_left_out() {
    let index = index(json!({"podSelector": {"matchLabels": {"app": "job"}}, "ingress": [
        {"from": [{"namespaceSelector": {}}]},
    ]}));
    assert!(peers(&compile(&index, "node-1")).is_empty());
    assert!(!peers(&compile(&index, "node-2")).is_empty());
}

#[test]
fn where_everything_is_allowed_no_set_is_needed() {
    let index = index(json!({"podSelector": {}, "ingress": [
        {"from": [{"namespaceSelector": {}}], "ports": [{"port": 80}]}, {},
    ]}));
    let compiled = compile(&index, "node-1");
    assert!(peers(&compiled).is_empty());
    assert_eq!((compiled.classes(), compiled.rules.len()), (1, 1));
}

#[test]
fn equal_rules_of_both_directions_are_one_profile() {
    let compiled =
        compile(&index(json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]})), "node-1");
    assert_eq!(compiled.profiles(), 1);
    assert!(compiled.rules.is_empty());
    assert!(compiled.pods.values().all(|pod| pod.ingress == pod.egress && pod.ingress.is_some()));
}

#[test]
fn a_range_of_ports_is_written_as_prefixes() {
    let ports = json!([{"port": 1000, "endPort": 2000}]);
    let index = index(json!({"podSelector": {}, "ingress": [{"ports": ports}]}));
    let compiled = compile(&index, "node-1");
    assert_eq!(compiled.rules.len(), 8);
    assert!(compiled.rules.iter().all(|key| key.protocol == 6 && (72..=88).contains(&key.length)));
}

#[test]
fn a_pod_without_an_address_is_there_with_its_uid() {
    let mut index = index(json!({"podSelector": {}}));
    index.tell(pod("shop/new", "node-1", &[], json!({}), json!([])));
    let compiled = compile(&index, "node-1");
    let new = &compiled.pods[&NamespacedName::new("shop", "new")];
    assert!(new.addresses.is_empty());
    assert_eq!((new.uid.as_str(), new.ingress.is_some(), new.egress), ("uid-new", true, None));
}

#[test]
fn a_pod_that_the_tables_do_not_have_is_not_isolated() {
    let compiled = compile(&cluster(), "node-1");
    let peer: IpAddr = "192.0.2.1".parse().unwrap();
    let traffic = Traffic { direction: Direction::Ingress, peer, protocol: 6, port: 80 };
    assert!(compiled.decide(&NamespacedName::new("shop", "web"), traffic).is_allowed());
}

#[test]
fn any_order_of_changes_ends_in_the_same_tables() {
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let (world, former) = (World::new(&mut random), World::new(&mut random));
        let mut straight = Index::default();
        straight.tell_all(world.objects());
        let mut crooked = Index::default();
        // Objects of another world come and go, and some are told twice.
        crooked.tell_all(former.objects());
        let mut objects: Vec<Value> = world.objects().cloned().collect();
        while !objects.is_empty() {
            let object = objects.swap_remove(random.below(objects.len()));
            crooked.tell(object.clone());
            if random.one_in(4) {
                crooked.tell(object);
            }
        }
        let name = |one: &Value| {
            let metadata = &one["metadata"];
            [one["kind"].clone(), metadata["namespace"].clone(), metadata["name"].clone()]
        };
        let is_same = |one: &Value, other: &Value| name(one) == name(other);
        for object in former.objects().filter(|old| !world.objects().any(|new| is_same(old, new))) {
            crooked.forget(object.clone());
        }
        for name in ["node-1", "node-2"] {
            assert_eq!(compile(&straight, name), compile(&crooked, name), "seed {seed}");
        }
        assert_eq!(straight.complaints(), crooked.complaints(), "seed {seed}");
    }
}

#[test]
fn what_stays_keeps_its_numbers_and_new_numbers_are_not_those_of_the_former_tables() {
    let allow = |app: &str| {
        json!({"podSelector": {"matchLabels": {"app": app}}, "ingress": [
            {"from": [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "db"}}}], "ports": [{"port": 80}]},
        ]})
    };
    let site = Site { node: "node-1".to_owned(), addresses: node("node-1") };
    let mut index = index(allow("web"));
    let first = index.compile(&site);
    // The new policy comes first in every order, and its peers, too.
    index.tell(policy(
        "shop/a",
        json!({"podSelector": {"matchLabels": {"app": "api"}}, "ingress": [{"from": [
            {"podSelector": {}},
        ]}]}),
    ));
    let second = index.compile_after(&site, &first);
    let profile = |compiled: &Compiled, name: &str| compiled.pods[&NamespacedName::new("shop", name)].ingress;
    let class =
        |compiled: &Compiled, address: &str| compiled.peers.longest(address.parse().unwrap()).unwrap().class;
    assert_eq!(profile(&first, "web"), profile(&second, "web"));
    assert_eq!(class(&first, "10.1.2.2"), class(&second, "10.1.2.2"));
    assert!(first.rules.iter().all(|key| second.rules.iter().any(|other| other == key)));
    let known = |compiled: &Compiled, number: u32| {
        compiled.rules.iter().any(|key| key.profile == number || key.class == number)
    };
    let (api, own) = (profile(&second, "api").unwrap(), class(&second, "10.1.1.2"));
    assert!(own != 0 && !known(&first, api) && !known(&first, own));
    // The first policy goes, and another one does not get its numbers at once.
    index.forget(policy("shop/p", json!({})));
    index.tell(policy("shop/q", json!({"podSelector": {"matchLabels": {"app": "web"}}})));
    let third = index.compile_after(&site, &second);
    let web = profile(&third, "web").unwrap();
    assert!(web != api && Some(web) != profile(&first, "web"));
    assert_eq!(class(&third, "10.1.1.2"), own);
    // An agent that begins anew has the same numbers.
    let again = index.compile(&site);
    assert_eq!((&again.pods, &again.peers, &again.rules), (&third.pods, &third.peers, &third.rules));
}

#[test]
fn the_tables_between_two_judge_as_each_of_both_would() {
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let site = Site { node: "node-1".to_owned(), addresses: node("node-1") };
        let (world, other) = (World::new(&mut random), World::new(&mut random));
        let mut index = Index::default();
        index.tell_all(world.objects());
        let former = index.compile(&site);
        for policy in &world.policies {
            index.forget(policy.clone());
        }
        index.tell_all(&other.policies);
        let next = index.compile_after(&site, &former);
        let Some(between) = index.compile_between(&site, &former, &next) else { continue };
        let ends: Vec<IpAddr> = index.pod_addresses().map(|(address, _)| address).collect();
        for (tables, decides) in [(&former, "former"), (&next, "next")] {
            // The pods have the profiles of one of both, and everything else is of the tables between.
            let mixed = Compiled { pods: tables.pods.clone(), ..between.clone() };
            for (name, _) in index.pods_on("node-1") {
                for peer in &ends {
                    for (direction, port) in [(Direction::Ingress, 80), (Direction::Egress, 8080)] {
                        let traffic = Traffic { direction, peer: *peer, protocol: 6, port };
                        let (mixed, alone) = (mixed.decide(name, traffic), tables.decide(name, traffic));
                        assert_eq!(mixed, alone, "seed {seed}, {decides}");
                    }
                }
            }
        }
        // A change of the next tables' own needs no step: they have all that those had.
        assert!(index.compile_between(&site, &next, &next).is_none());
    }
}

#[test]
fn kept_numbers_make_no_difference_to_decisions() {
    for seed in 0..10 {
        let mut random = Random::new(seed);
        let mut index = Index::default();
        let site = Site { node: "node-1".to_owned(), addresses: node("node-1") };
        let mut kept = Compiled::default();
        let world = World::new(&mut random);
        index.tell_all(world.namespaces.iter().chain(&world.pods));
        for _ in 0..6 {
            // The policies of one world after the other come to those that are there.
            index.tell_all(&World::new(&mut random).policies);
            kept = index.compile_after(&site, &kept);
            let fresh = index.compile(&site);
            assert_eq!((kept.classes(), kept.profiles()), (fresh.classes(), fresh.profiles()), "seed {seed}");
            assert_eq!(
                (kept.peers.len(), kept.rules.len()),
                (fresh.peers.len(), fresh.rules.len()),
                "seed {seed}"
            );
            let ends: Vec<IpAddr> = index.pod_addresses().map(|(address, _)| address).collect();
            for (name, _) in index.pods_on("node-1") {
                for peer in &ends {
                    for (direction, port) in [(Direction::Ingress, 80), (Direction::Egress, 8080)] {
                        let traffic = Traffic { direction, peer: *peer, protocol: 6, port };
                        assert_eq!(kept.decide(name, traffic), fresh.decide(name, traffic), "seed {seed}");
                    }
                }
            }
        }
    }
}

#[test]
fn each_policy_of_a_pod_has_a_profile_of_its_own_rules_which_no_pod_has() {
    let from = |port: u16| json!({"podSelector": {}, "ingress": [{"ports": [{"port": port}]}]});
    let mut index = index(from(80));
    index.tell(policy("shop/q", from(90)));
    index.tell(policy("shop/none", json!({"podSelector": {}})));
    let compiled = compile(&index, "node-1");
    for pod in compiled.pods.values() {
        let allows = |profile: Option<&u32>, port: u16| {
            let mut rules = compiled.rules.iter().filter(|rule| Some(&rule.profile) == profile);
            rules.any(|rule| rule.port == port)
        };
        let apart = |name: &str| pod.ingress_apart.get(&NamespacedName::new("shop", name));
        assert!(allows(apart("p"), 80) && !allows(apart("p"), 90));
        assert!(allows(apart("q"), 90) && !allows(apart("q"), 80));
        assert!(apart("none").is_some() && !allows(apart("none"), 80) && pod.egress_apart.is_empty());
        assert!(!pod.ingress_apart.values().any(|profile| Some(*profile) == pod.ingress));
    }
}

#[test]
fn a_policy_that_is_alone_shares_its_pods_profile_and_one_that_allows_everything_leaves_no_other() {
    let mut index = index(json!({"podSelector": {}, "ingress": [{"ports": [{"port": 80}]}]}));
    let compiled = compile(&index, "node-1");
    let name = |name: &str| NamespacedName::new("shop", name);
    assert_eq!(compiled.profiles(), 1);
    let is_shared = |pod: &SelectedPod| pod.ingress_apart.get(&name("p")) == pod.ingress.as_ref();
    assert!(compiled.pods.values().all(is_shared));
    index.tell(policy("shop/all", json!({"podSelector": {}, "ingress": [{}]})));
    let compiled = compile(&index, "node-1");
    assert_eq!(compiled.profiles(), 1);
    let apart = |pod: &SelectedPod| pod.ingress_apart.keys().cloned().collect::<Vec<_>>();
    assert!(compiled.pods.values().all(|pod| apart(pod) == [name("all")]));
}
