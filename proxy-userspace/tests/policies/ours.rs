//! The tables of this agent.

use std::collections::BTreeMap;
use std::net::IpAddr;

use millrace::model::Severity;
use millrace::policy::{Change, Compiled, Direction, Index, NamespacedName, Object, Site, Traffic};
use serde_json::{Value, from_value};

use crate::clusters::world::{ASKED, World, nodes};
use crate::peer::Question;

/// The tables of both nodes, and the pods with an address.
pub struct Ours {
    tables: BTreeMap<String, Compiled>,
    pods: BTreeMap<String, Pod>,
}

/// A pod that policies can select.
struct Pod {
    name: NamespacedName,
    node: String,
    /// The TCP ports of init containers that run on beside the others.
    sidecar_ports: Vec<u64>,
}

impl Ours {
    /// Compiles a cluster.
    pub fn of(world: &World) -> Self {
        let mut index = Index::default();
        for object in world.objects().cloned().map(object) {
            index.apply(Change::Upsert { object, file: None });
        }
        let problems: Vec<_> =
            index.problems().filter(|problem| problem.severity != Severity::Info).collect();
        assert!(problems.is_empty(), "{problems:?}");
        let tables = nodes().into_iter().map(|(name, addresses)| {
            let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
            let site = Site { node: name.to_owned(), addresses };
            (name.to_owned(), index.compile(&site))
        });
        let pods = world
            .pods
            .iter()
            .filter(|pod| pod["status"]["phase"] == "Running" && pod["spec"]["hostNetwork"] != true);
        let pods = pods.flat_map(|pod| {
            let addresses = pod["status"]["podIPs"].as_array().unwrap();
            addresses.iter().map(|address| (address["ip"].as_str().unwrap().to_owned(), Pod::of(pod)))
        });
        Self { tables: tables.collect(), pods: pods.collect() }
    }

    /// Returns a question for each connection with a pod at one of its ends.
    pub fn questions(&self, world: &World) -> Vec<Question> {
        let mut questions = Vec::new();
        for ends in [0, 1].map(|family| world.ends(family)) {
            let pairs = ends.iter().flat_map(|from| ends.iter().map(move |to| (from, to)));
            for (from, to) in
                pairs.filter(|(from, to)| [from, to].iter().any(|end| self.pods.contains_key(**end)))
            {
                questions.extend(ASKED.iter().flat_map(|(protocol, _, ports)| {
                    ports.iter().map(move |port| Question {
                        from: from.clone(),
                        to: to.clone(),
                        protocol,
                        port: *port,
                    })
                }));
            }
        }
        questions
    }

    /// Returns whether the tables of an end allow the connection; `None` if it is no pod's.
    pub fn judge(&self, asked: &Question, direction: Direction) -> Option<bool> {
        let (own, peer) = match direction {
            Direction::Egress => (&asked.from, &asked.to),
            Direction::Ingress => (&asked.to, &asked.from),
        };
        let pod = self.pods.get(own)?;
        let (_, protocol, _) = ASKED.iter().find(|(name, _, _)| *name == asked.protocol).unwrap();
        let peer: IpAddr = peer.parse().unwrap();
        let traffic = Traffic { direction, peer, protocol: *protocol, port: asked.port };
        Some(self.tables[&pod.node].decide(&pod.name, traffic).is_allowed())
    }

    /// Returns whether the other implementation is meant to come to another verdict.
    ///
    /// - A pod always reaches itself, and its node always reaches it: the module `policy` says why. The other implementation never
    ///   sees such packets. Those of the node pass by its rules in the kernel, before it is asked.
    /// - A named port may be that of a sidecar, an init container that runs on. The other one knows those of usual
    ///   containers alone.
    ///
    /// The two agree about everything else that the API leaves open: pods of the host's network, ICMP, and names of
    /// ports behind an `ipBlock`.
    pub fn is_meant_to_differ(&self, asked: &Question, direction: Direction) -> bool {
        let target = self.pods.get(&asked.to);
        let is_of_own_node = || target.is_some_and(|pod| is_of_node(&asked.from, &pod.node));
        let has_sidecar = || target.is_some_and(|pod| pod.sidecar_ports.contains(&asked.port.into()));
        asked.from == asked.to
            || direction == Direction::Ingress && is_of_own_node()
            || asked.protocol == "TCP" && has_sidecar()
    }
}

fn is_of_node(address: &str, node: &str) -> bool {
    nodes().iter().any(|(name, addresses)| *name == node && addresses.iter().any(|one| one == address))
}

impl Pod {
    fn of(pod: &Value) -> Self {
        let text = |part: &str, field: &str| pod[part][field].as_str().unwrap().to_owned();
        let init = pod["spec"]["initContainers"].as_array().into_iter().flatten();
        let sidecars = init.filter(|container| container["restartPolicy"] == "Always");
        let ports = sidecars.flat_map(|container| container["ports"].as_array().into_iter().flatten());
        Self {
            name: NamespacedName::new(text("metadata", "namespace"), text("metadata", "name")),
            node: text("spec", "nodeName"),
            sidecar_ports: ports.map(|port| port["containerPort"].as_u64().unwrap()).collect(),
        }
    }
}

fn object(manifest: Value) -> Object {
    match manifest["kind"].as_str().unwrap() {
        "Namespace" => Object::Namespace(from_value(manifest).unwrap()),
        "Pod" => Object::Pod(from_value(manifest).unwrap()),
        _ => Object::NetworkPolicy(from_value(manifest).unwrap()),
    }
}
