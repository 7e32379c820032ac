//! A truth table: tables and explanations against the oracle, for random policies and all pairs of addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::clusters::oracle::Oracle;
use super::clusters::random::Random;
use super::clusters::world::{ASKED, World, nodes};
use super::testing::{decision_of, node};
use super::{Compiled, Connection, Decision, Direction, Explanation, Index, NamespacedName, Site, Traffic};

/// Random clusters of a usual run.
const WORLDS: u64 = 300;

#[test]
fn tables_and_explanations_agree_with_the_oracle_for_every_connection() {
    let mut tally: BTreeMap<&str, usize> = BTreeMap::new();
    for seed in 0..WORLDS {
        let world = World::new(&mut Random::new(seed));
        let mut index = Index::default();
        index.tell_all(world.objects());
        judge(seed, &world, &index, &mut tally);
    }
    println!("{tally:?}");
    // Each way to come to a decision occurs often, else the table says little.
    for name in ["NotIsolated", "Itself", "OwnNode", "Allowed", "Denied"] {
        assert!(tally.get(name).is_some_and(|count| *count > 1_000), "{name}: {tally:?}");
    }
}

fn judge(seed: u64, world: &World, index: &Index, tally: &mut BTreeMap<&str, usize>) {
    let nodes = nodes();
    let oracle =
        Oracle { namespaces: &world.namespaces, pods: &world.pods, policies: &world.policies, nodes: &nodes };
    let compiled: BTreeMap<&str, Compiled> = nodes
        .iter()
        .map(|(name, _)| (*name, index.compile(&Site { node: (*name).to_owned(), addresses: node(name) })))
        .collect();
    for family in [0, 1] {
        let addresses = world.ends(family);
        let ends: Vec<End> = addresses.iter().map(|address| End::of(&oracle, address)).collect();
        for from in &ends {
            for to in ends.iter().filter(|to| from.pod.is_some() || to.pod.is_some()) {
                let pair = oracle.pair(from.text, to.text);
                for (name, protocol, ports) in ASKED {
                    for port in ports {
                        let asked = Connection { from: from.address, to: to.address, protocol, port: *port };
                        let explanation = index.explain(asked, &to.own_node);
                        let decisions = decide(&compiled, from, to, asked, &explanation);
                        let is_allowed = decisions.iter().all(|decision| decision.is_allowed());
                        let context = || {
                            let policies = serde_json::to_string_pretty(&world.policies).unwrap();
                            format!("seed {seed}: {} > {} {name} {port}\n{policies}", from.text, to.text)
                        };
                        assert_eq!(is_allowed, pair.allows(name, (*port).into()), "{}", context());
                        assert_eq!(is_allowed, explanation.is_allowed(), "{}", context());
                        for decision in decisions {
                            *tally.entry(label(decision)).or_default() += 1;
                        }
                    }
                }
            }
        }
    }
}

/// Decides at both ends by the tables of their nodes. The explanation must come to the same.
fn decide(
    compiled: &BTreeMap<&str, Compiled>,
    from: &End<'_>,
    to: &End<'_>,
    asked: Connection,
    explanation: &Explanation,
) -> Vec<Decision> {
    let ends = [
        (Direction::Egress, from, to, &explanation.egress),
        (Direction::Ingress, to, from, &explanation.ingress),
    ];
    let mut decisions = Vec::new();
    for (direction, own, peer, side) in ends {
        assert_eq!(own.pod.as_ref(), side.as_ref().map(|side| &side.pod));
        let (Some(pod), Some(side)) = (&own.pod, side) else { continue };
        let traffic = Traffic { direction, peer: peer.address, protocol: asked.protocol, port: asked.port };
        let decision = compiled[own.node.as_str()].decide(pod, traffic);
        assert_eq!(decision, decision_of(&side.verdict), "{direction} of {pod}: {asked:?}");
        decisions.push(decision);
    }
    decisions
}

/// An end of a connection.
struct End<'a> {
    text: &'a str,
    address: IpAddr,
    /// The pod that policies can select.
    pod: Option<NamespacedName>,
    node: String,
    /// The addresses of its node.
    own_node: BTreeSet<IpAddr>,
}

impl<'a> End<'a> {
    fn of(oracle: &Oracle<'_>, text: &'a str) -> Self {
        let pod = oracle.pod_at(text);
        let field = |part: &str, name: &str| {
            pod.map(|pod| pod[part][name].as_str().unwrap().to_owned()).unwrap_or_default()
        };
        let on = field("spec", "nodeName");
        Self {
            text,
            address: text.parse().unwrap(),
            pod: pod.map(|_| NamespacedName::new(field("metadata", "namespace"), field("metadata", "name"))),
            own_node: node(&on),
            node: on,
        }
    }
}

const fn label(decision: Decision) -> &'static str {
    match decision {
        Decision::NotIsolated => "NotIsolated",
        Decision::Itself => "Itself",
        Decision::OwnNode => "OwnNode",
        Decision::Allowed => "Allowed",
        Decision::Denied => "Denied",
    }
}
