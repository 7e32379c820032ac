//! Random clusters: the agent's own code writes the tables of both nodes, and the programs judge the first packet of
//! every connection. They must come to the verdicts of an oracle that is written apart.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use millrace::policy::{Change, Index, NamespacedName, Object};
use millrace_lab::frame::{Frame, Icmp, chunk, flag};
use millrace_lab::patience::patience;
use proxy_common::policy::PolicyDirection;
use serde_json::{Value, from_value};

use super::node::Node;
use crate::clusters::oracle::{Oracle, Pair};
use crate::clusters::random::Random;
use crate::clusters::world::{ASKED, World, nodes};
use crate::network::in_an_empty_namespace;

/// Clusters of a usual run. With `MILLRACE_LONG=1` there are ten times as many. A slow machine, which has
/// `MILLRACE_PATIENCE`, has so much fewer of them.
const CLUSTERS: u64 = 300;
/// After so many clusters both agents start anew.
const RESTART: u64 = 7;
/// A device that no pod has.
const UPLINK: u32 = 1 << 20;

#[test]
fn the_programs_agree_with_the_oracle_about_every_connection_of_random_clusters() {
    let is_long = std::env::var_os("MILLRACE_LONG").is_some_and(|value| value == "1");
    let clusters =
        if is_long { 10 * CLUSTERS } else { CLUSTERS } / patience(Duration::from_secs(1)).as_secs();
    in_an_empty_namespace(|| {
        let mut nodes = Node::both();
        let mut tally = BTreeMap::new();
        for seed in 0..clusters {
            let world = World::new(&mut Random::new(seed));
            let mut index = Index::default();
            for object in world.objects().cloned().map(object) {
                index.apply(Change::Upsert { object, file: None });
            }
            for node in &mut nodes {
                if seed % RESTART == RESTART - 1 {
                    node.restart();
                }
                node.write(&index);
            }
            Round { seed, world: &world, nodes: &nodes }.judge(&mut tally);
            for node in &nodes {
                node.check_drops(seed);
            }
        }
        println!("{tally:?}");
        // Each verdict occurs often, else the table says little.
        assert!(tally.len() == 4 && tally.values().all(|count| *count > 10_000), "{tally:?}");
    });
}

fn object(manifest: Value) -> Object {
    match manifest["kind"].as_str().unwrap() {
        "Namespace" => Object::Namespace(from_value(manifest).unwrap()),
        "Pod" => Object::Pod(from_value(manifest).unwrap()),
        _ => Object::NetworkPolicy(from_value(manifest).unwrap()),
    }
}

/// A cluster, and the nodes that have its tables.
struct Round<'a> {
    seed: u64,
    world: &'a World,
    nodes: &'a [Node; 2],
}

/// An end of a connection.
struct End<'a> {
    text: &'a str,
    address: IpAddr,
    /// The node that has this address, or whose pod has it.
    node: Option<&'a Node>,
    /// The device of its pod.
    device: Option<u32>,
}

/// Verdicts by direction: egress, ingress.
type Tally = BTreeMap<(&'static str, bool), usize>;

impl<'a> Round<'a> {
    fn judge(&self, tally: &mut Tally) {
        let of_nodes = nodes();
        let World { namespaces, pods, policies } = self.world;
        let oracle = Oracle { namespaces, pods, policies, nodes: &of_nodes };
        for family in [0, 1] {
            let addresses = self.world.ends(family);
            let ends: Vec<End<'_>> = addresses.iter().map(|address| self.end(&oracle, address)).collect();
            for from in &ends {
                // What a pod sends to itself passes no device.
                for to in ends.iter().filter(|to| to.text != from.text) {
                    self.judge_pair(from, to, &oracle.pair(from.text, to.text), tally);
                }
            }
        }
    }

    fn end<'b>(&self, oracle: &Oracle<'_>, text: &'b str) -> End<'b>
    where
        'a: 'b,
    {
        let pod = oracle.pod_at(text);
        let part = |part: &str, name: &str| pod.map(|pod| pod[part][name].as_str().unwrap().to_owned());
        let name = part("metadata", "namespace").zip(part("metadata", "name"));
        let address: IpAddr = text.parse().unwrap();
        let on = part("spec", "nodeName");
        let node = self.nodes.iter().find(|node| {
            on.as_ref().map_or_else(|| node.addresses().contains(&address), |on| on == node.name())
        });
        let device =
            name.map(|(namespace, name)| node.unwrap().device_of(&NamespacedName::new(namespace, name)));
        End { text, address, node, device }
    }

    fn judge_pair(&self, from: &End<'_>, to: &End<'_>, pair: &Pair<'_>, tally: &mut Tally) {
        let asked = ASKED.iter().flat_map(|(name, _, ports)| ports.iter().map(move |port| (*name, *port)));
        for (protocol, port) in asked {
            let frame = self.first_packet(from.address, to.address, protocol, port).build();
            let mut compare = |direction: &'static str, is_allowed: bool, expected: bool| {
                let verdict = |is_allowed| if is_allowed { "allow" } else { "deny" };
                assert!(
                    is_allowed == expected,
                    "seed {}, {direction}: {} > {} {protocol} {port}: the programs {}, the oracle says {}\n{}",
                    self.seed,
                    from.text,
                    to.text,
                    verdict(is_allowed),
                    verdict(expected),
                    serde_json::to_string_pretty(&self.world.policies).unwrap(),
                );
                *tally.entry((direction, expected)).or_default() += 1;
            };
            // The packet goes on to the other end even if the sender's node would drop it: that one judges by itself.
            if let (Some(device), Some(node)) = (from.device, from.node) {
                let passes = node.passes(PolicyDirection::Egress, device, device, &frame);
                compare("egress", passes, pair.egress.allows(protocol, port.into()));
            }
            if let (Some(device), Some(node)) = (to.device, to.node) {
                let is_near = from.node.is_some_and(|other| other.name() == node.name());
                let by = if is_near { from.device.unwrap_or(0) } else { UPLINK };
                let passes = node.passes(PolicyDirection::Ingress, by, device, &frame);
                compare("ingress", passes, pair.ingress.allows(protocol, port.into()));
            }
        }
    }

    /// Returns the first packet of a connection. Its source port was in no earlier cluster.
    fn first_packet(&self, from: IpAddr, to: IpAddr, protocol: &str, port: u16) -> Frame {
        let own = 10_000 + u16::try_from(self.seed).unwrap();
        let frame = Frame::ip(from, to);
        match protocol {
            "TCP" => frame.tcp(own, port, flag::SYN),
            "UDP" => frame.udp(own, port),
            "SCTP" => frame.sctp(own, port, chunk::INIT),
            _ => {
                let [high, low] = own.to_be_bytes();
                let kind = if from.is_ipv4() { 8 } else { 128 };
                frame.layer(Icmp { kind, code: 0, rest: [high, low, 0, 1] })
            }
        }
    }
}
