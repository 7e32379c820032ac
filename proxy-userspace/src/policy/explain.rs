//! Names the policies and rules that allow a connection, from the objects and not from the tables.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use super::index::Index;
use super::object::NamespacedName;
use super::pod::{PodSpec, Traits};
use super::ports::{PortMatch, numbers};
use super::spec::{Direction, Peer, Rule};

/// The first packet of a connection, with the addresses that the pods see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The source.
    pub from: IpAddr,
    /// The destination.
    pub to: IpAddr,
    /// IP protocol number.
    pub protocol: u8,
    /// The destination port; 0 for protocols without ports.
    pub port: u16,
}

/// The judgement about a connection at both of its ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The source's end; `None` = the source is no pod that policies can select.
    pub egress: Option<Side>,
    /// The destination's end; `None` = the destination is no pod that policies can select.
    pub ingress: Option<Side>,
}

/// The judgement at one end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Side {
    /// The pod. Of several pods with its address, it is the first one by name that denies, or else the first one.
    pub pod: NamespacedName,
    /// What the policies say.
    pub verdict: Verdict,
}

/// What the policies of a pod say about a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Allowed: no policy isolates the pod in this direction.
    NotIsolated,
    /// Allowed: both ends are the same pod.
    Itself,
    /// Allowed: the pod's own node connects to it.
    OwnNode,
    /// Allowed by each of these rules, sorted.
    Allowed(Vec<RuleName>),
    /// Denied: these policies isolate the pod, and none of their rules allows it.
    Denied(Vec<NamespacedName>),
}

/// A rule of a policy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RuleName {
    /// The policy.
    pub policy: NamespacedName,
    /// The list with the rule.
    pub direction: Direction,
    /// Its place in the list.
    pub index: usize,
}

impl Explanation {
    /// Returns whether both ends allow the connection.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        [&self.egress, &self.ingress].into_iter().flatten().all(|side| side.verdict.is_allowed())
    }
}

impl Verdict {
    /// Returns whether the connection is allowed.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        !matches!(self, Self::Denied(_))
    }
}

impl fmt::Display for RuleName {
    /// Writes `shop/web ingress[0]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}[{}]", self.policy, self.direction, self.index)
    }
}

impl Index {
    /// Explains what policies say about a connection. `node` has the addresses of the destination's node.
    #[must_use]
    pub fn explain(&self, connection: Connection, node: &BTreeSet<IpAddr>) -> Explanation {
        self.explain_between(connection, node, [None, None])
    }

    /// Explains the same between pods with these names, source and destination; `None` = whoever has the address.
    #[must_use]
    pub fn explain_between(
        &self,
        connection: Connection,
        node: &BTreeSet<IpAddr>,
        [from, to]: [Option<&NamespacedName>; 2],
    ) -> Explanation {
        let side = |direction| {
            let (own, peer, named) = match direction {
                Direction::Ingress => (connection.to, connection.from, to),
                Direction::Egress => (connection.from, connection.to, from),
            };
            let is_meant = |name: &NamespacedName| named.is_none_or(|named| named == name);
            let holders = self.holders(own).filter(|(name, _)| is_meant(name));
            let mut sides = holders.map(|(name, pod)| {
                let verdict = self.judge(pod, direction, peer, connection, node);
                Side { pod: name.clone(), verdict }
            });
            // Of several pods with the address, one that denies counts.
            let first = sides.next()?;
            let denies = |side: &Side| !side.verdict.is_allowed();
            Some(if denies(&first) { first } else { sides.find(denies).unwrap_or(first) })
        };
        Explanation { egress: side(Direction::Egress), ingress: side(Direction::Ingress) }
    }

    fn judge(
        &self,
        pod: &PodSpec,
        direction: Direction,
        peer: IpAddr,
        connection: Connection,
        node: &BTreeSet<IpAddr>,
    ) -> Verdict {
        let mut isolating = Vec::new();
        let mut allowing = Vec::new();
        for (policy, spec) in self.selecting(&pod.traits) {
            let Some(rules) = spec.rules(direction) else { continue };
            isolating.push(policy.clone());
            let end = End { index: self, own: &pod.traits, direction, peer, connection };
            let rules = rules.iter().filter(|rule| end.is_allowed_by(rule));
            allowing.extend(rules.map(|rule| RuleName {
                policy: policy.clone(),
                direction,
                index: rule.index,
            }));
        }
        if isolating.is_empty() {
            Verdict::NotIsolated
        } else if pod.addresses.contains(&peer) {
            Verdict::Itself
        } else if direction == Direction::Ingress && node.contains(&peer) {
            Verdict::OwnNode
        } else if allowing.is_empty() {
            Verdict::Denied(isolating)
        } else {
            Verdict::Allowed(allowing)
        }
    }
}

/// A connection at one of its ends.
struct End<'a> {
    index: &'a Index,
    own: &'a Traits,
    direction: Direction,
    peer: IpAddr,
    connection: Connection,
}

impl End<'_> {
    fn is_allowed_by(&self, rule: &Rule) -> bool {
        match &rule.ports {
            None => self.is_each_holder(|holder| self.is_peer(rule, holder)),
            Some(ports) => ports.iter().any(|port| {
                self.is_each_holder(|holder| self.is_peer(rule, holder) && self.is_port(port, holder))
            }),
        }
    }

    /// Returns whether this holds for each pod with the peer's address, or for an address without a pod.
    fn is_each_holder(&self, holds: impl Fn(Option<&Traits>) -> bool) -> bool {
        let mut holders = self.index.holders(self.peer).peekable();
        if holders.peek().is_none() {
            return holds(None);
        }
        holders.all(|(_, pod)| holds(Some(&pod.traits)))
    }

    fn is_peer(&self, rule: &Rule, holder: Option<&Traits>) -> bool {
        let Some(peers) = &rule.peers else { return true };
        peers.iter().any(|peer| match peer {
            Peer::Block(block) => block.contains(self.peer),
            Peer::Pods { namespaces, pods } => {
                holder.is_some_and(|holder| self.index.is_peer(namespaces, pods, holder))
            }
        })
    }

    fn is_port(&self, port: &PortMatch, holder: Option<&Traits>) -> bool {
        let Connection { protocol: given, port: number, .. } = self.connection;
        match port {
            PortMatch::Range { protocol, first, last } => {
                protocol.number() == given && (*first..=*last).contains(&number)
            }
            PortMatch::Name { protocol, name } => {
                // The pod that gets the packet says what a name stands for.
                let target = match self.direction {
                    Direction::Ingress => Some(self.own),
                    Direction::Egress => holder,
                };
                protocol.number() == given
                    && target.is_some_and(|target| {
                        numbers(&target.ports, name, *protocol).any(|one| one == number)
                    })
            }
        }
    }
}
