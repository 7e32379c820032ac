//! Tables that follow pods one by one against tables that are computed anew.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::{Value, json};

use super::clusters::random::Random;
use super::clusters::world::World;
use super::testing::{namespace, node, pod};
use super::{Changes, Compiled, Direction, Index, RuleKey, Site, Traffic};

const WORLDS: u64 = 80;
/// Changes of one cluster.
const CHANGES: usize = 25;

#[test]
fn tables_that_follow_pods_judge_as_those_that_are_computed_anew() {
    let (mut steps, mut wholes, mut new_classes) = (0, 0, 0);
    for seed in 0..WORLDS {
        let random = &mut Random::new(seed);
        let mut index = Index::default();
        // The other pods come later, with new classes.
        let world = World::new(random);
        index.tell_all(world.namespaces.iter().chain(world.pods.iter().take(3)));
        for number in 0..4 {
            index.tell_all(&policies(random, number));
        }
        let ends = (0..2).flat_map(|family| world.ends(family)).map(|end| end.parse().unwrap());
        let ends: Vec<IpAddr> = ends.collect();
        let on = *random.pick(&["node-1", "node-2"]);
        let site = Site { node: on.to_owned(), addresses: node(on) };
        let mut tables = index.compile(&site);
        drop(index.take_changes());
        for number in 0..CHANGES {
            change(random, &mut index);
            let changes = index.take_changes();
            let before = tables.clone();
            if let Some(step) = index.step(&site, &mut tables, &changes) {
                steps += 1;
                new_classes += usize::from(!step.rules.is_empty());
                check_step(&before, &tables, &step.addresses, &step.rules);
            } else {
                wholes += 1;
                tables = index.compile_after(&site, &before);
            }
            check(
                &tables,
                &index.compile_after(&site, &tables),
                &ends,
                &format!("seed {seed}, change {number}"),
            );
        }
    }
    println!("{steps} steps, {wholes} whole computations, {new_classes} new classes");
    assert!(steps > 500 && wholes > 50 && new_classes > 20, "{steps}, {wholes}, {new_classes}");
}

/// Returns further policies, with names of their own.
fn policies(random: &mut Random, number: usize) -> Vec<Value> {
    let mut policies = World::new(random).policies;
    for policy in &mut policies {
        policy["metadata"]["name"] =
            json!(format!("{}-{number}", policy["metadata"]["name"].as_str().unwrap()));
    }
    policies
}

/// Changes a pod, and seldom something else.
fn change(random: &mut Random, index: &mut Index) {
    let other = World::new(random);
    let objects = match random.below(40) {
        0 => &other.policies,
        1 => &other.namespaces,
        _ => &other.pods,
    };
    let mut object = random.pick(objects).clone();
    if object["kind"] == "Pod" && !random.one_in(10) {
        // Else each pod would bring or take the name of a port.
        object["spec"]["containers"][0]["ports"] = json!([{"name": "http", "containerPort": 80}]);
    }
    if random.one_in(3) { index.forget(object) } else { index.tell(object) }
}

/// Checks that the tables judge as those that are computed anew. Their classes may be finer: sets that no pod of the node
/// needs any more are still there.
fn check(tables: &Compiled, whole: &Compiled, ends: &[IpAddr], context: &str) {
    const PORTS: [(u8, u16); 5] = [(6, 80), (6, 8080), (17, 53), (132, 9), (1, 0)];
    assert_eq!(tables.pods, whole.pods, "{context}");
    let of_entries = tables.peers.iter().chain(whole.peers.iter()).map(|(net, _)| net.addr());
    let peers: BTreeSet<IpAddr> = of_entries.chain(ends.iter().copied()).collect();
    for pod in whole.pods.keys() {
        for (direction, peer) in
            Direction::ALL.into_iter().flat_map(|one| peers.iter().map(move |peer| (one, *peer)))
        {
            for (protocol, port) in PORTS {
                let traffic = Traffic { direction, peer, protocol, port };
                assert_eq!(
                    tables.decide(pod, traffic),
                    whole.decide(pod, traffic),
                    "{context}: {pod} {traffic:?}"
                );
            }
        }
    }
}

/// Checks that a step names everything that has changed.
fn check_step(before: &Compiled, after: &Compiled, addresses: &BTreeSet<IpAddr>, rules: &[RuleKey]) {
    for (net, _) in before.peers.iter().chain(after.peers.iter()) {
        assert!(before.peers.get(*net) == after.peers.get(*net) || addresses.contains(&net.addr()), "{net}");
    }
    let former: BTreeSet<&RuleKey> = before.rules.iter().collect();
    let new: BTreeSet<&RuleKey> = after.rules.iter().filter(|rule| !former.contains(rule)).collect();
    assert_eq!(new, rules.iter().collect());
    assert!(former.iter().all(|rule| after.rules.iter().any(|one| one == *rule)));
}

#[test]
fn a_named_port_that_is_new_or_gone_takes_a_whole_computation_and_one_that_stays_does_not() {
    let http = || json!([{"name": "http", "containerPort": 80}]);
    let web = |name: &str| pod(&format!("red/{name}"), "node-1", &[], json!({"app": name}), http());
    let mut index = Index::default();
    let is_whole = |index: &mut Index| index.take_changes() == Changes::whole();
    index.tell(namespace("red", json!({})));
    assert!(is_whole(&mut index));
    index.tell(web("a"));
    assert!(is_whole(&mut index), "the first pod with a name");
    index.tell(web("b"));
    index.forget(web("a"));
    assert!(!is_whole(&mut index));
    index.tell(web("b"));
    assert!(!is_whole(&mut index), "the only pod with the name changes, and keeps it");
    index.forget(web("b"));
    assert!(is_whole(&mut index));
}
