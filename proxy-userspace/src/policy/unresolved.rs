//! Finds names of ports that no pod has: rules that can't be carried out.

use super::index::Index;
use super::object::{Kind, NamespacedName, ObjectKey};
use super::pod::Traits;
use super::ports::{PortMatch, numbers};
use super::problem::{Notes, Problem};
use super::spec::{Direction, Peer, PolicySpec, Rule};
use crate::model::Protocol;

impl Index {
    /// Returns a problem for each name of a port that no pod has to which the rule allows connections.
    ///
    /// It comes from several objects: a pod may bring the name at any time. The manifests are not known here.
    #[must_use]
    pub fn unresolved_ports(&self) -> Vec<Problem> {
        self.policies().flat_map(|(name, policy)| self.unresolved_of(name, policy)).collect()
    }

    fn unresolved_of(&self, name: &NamespacedName, policy: &PolicySpec) -> Vec<Problem> {
        let mut notes = Notes::on(ObjectKey { kind: Kind::NetworkPolicy, name: name.clone() }, None);
        for direction in Direction::ALL {
            for rule in policy.rules(direction).unwrap_or_default() {
                for (port, protocol) in names(rule) {
                    let mut targets = self.traits().filter(|traits| match direction {
                        Direction::Ingress => {
                            traits.namespace == name.namespace && policy.selector.matches(&traits.labels)
                        }
                        Direction::Egress => self.may_be_peer(rule, traits),
                    });
                    if !targets.any(|traits| numbers(&traits.ports, port, protocol).next().is_some()) {
                        let whose = match direction {
                            Direction::Ingress => "pod that the policy selects",
                            Direction::Egress => "pod among the peers",
                        };
                        let message = format!(
                            "no {whose} has a {protocol} port with the name {port:?}; it matches nothing"
                        );
                        notes.info(format!("spec.{direction}[{}].ports", rule.index), message);
                    }
                }
            }
        }
        notes.problems
    }

    /// Returns whether pods with these traits are among the peers, as far as their labels say.
    fn may_be_peer(&self, rule: &Rule, traits: &Traits) -> bool {
        let Some(peers) = &rule.peers else { return true };
        peers.iter().any(|peer| match peer {
            // Any pod may have an address of the block.
            Peer::Block(_) => true,
            Peer::Pods { namespaces, pods } => self.is_peer(namespaces, pods, traits),
        })
    }
}

fn names(rule: &Rule) -> impl Iterator<Item = (&str, Protocol)> {
    rule.ports.iter().flatten().filter_map(|port| match port {
        PortMatch::Name { protocol, name } => Some((name.as_str(), *protocol)),
        PortMatch::Range { .. } => None,
    })
}
