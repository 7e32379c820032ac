//! The tables of one node, and the decision that a program takes by them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::basis::Basis;
use super::numbers::Numbers;
use super::object::NamespacedName;
use super::pod::PodSpec;
use super::prefixes::Prefixes;
use super::rule_set::Profiles;
use super::spec::Direction;

/// The policies of one node as tables for programs.
///
/// Numbers of classes and profiles have a meaning in one result. The next one may keep them
/// ([`Index::compile_after`](super::Index::compile_after)).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compiled {
    /// The pods on the node that a policy selects. All traffic of the others is allowed.
    pub pods: BTreeMap<NamespacedName, SelectedPod>,
    /// The peers, by longest prefix. An address in none has class 0 and is not the own node.
    pub peers: Prefixes<PeerEntry>,
    /// What is allowed, by longest prefix. Anything in none is denied.
    pub rules: Rules,
    pub(super) numbers: Numbers,
    pub(super) basis: Basis,
}

/// A pod that at least one policy selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectedPod {
    /// `metadata.uid`, which tells pods of the same name apart.
    pub uid: String,
    /// Its addresses; none before it has any.
    pub addresses: BTreeSet<IpAddr>,
    /// The profile for connections to it; `None` = no policy isolates it in this direction.
    pub ingress: Option<u32>,
    /// The profile for connections from it; `None` = no policy isolates it in this direction.
    pub egress: Option<u32>,
    /// The profile of each policy that isolates it for ingress, as if the policy were alone. No program judges by it: it says
    /// to people which policy allows a connection. A policy that adds nothing to one that allows everything is left out.
    pub ingress_apart: BTreeMap<NamespacedName, u32>,
    /// As `ingress_apart`.
    pub egress_apart: BTreeMap<NamespacedName, u32>,
}

/// What is known of an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerEntry {
    /// Addresses of one class are in the same sets of peers, and those of class 0 in none.
    pub class: u32,
    /// Whether it is an address of the pod's own node, which always reaches the pod.
    pub is_own_node: bool,
}

/// An allowed combination of profile, class, protocol and port: the key of an LPM trie.
///
/// The bits are those of the fields in this order, each in network byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RuleKey {
    /// The rules of a pod in a direction, from 1 on. Pods with equal rules share it.
    pub profile: u32,
    /// The class of the peer.
    pub class: u32,
    /// IP protocol number.
    pub protocol: u8,
    /// The destination port; 0 for protocols without ports.
    pub port: u16,
    /// The leading bits that count: 64 = any protocol, 72 = any port of the protocol, 88 = one port.
    pub length: u8,
}

/// The allowed combinations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    keys: BTreeSet<RuleKey>,
    /// The lengths that occur. A look-up tries each of them.
    lengths: BTreeSet<u8>,
}

/// The first packet of a connection, as the pod at one end sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// Whether it goes to the pod or comes from it.
    pub direction: Direction,
    /// The address at the other end.
    pub peer: IpAddr,
    /// IP protocol number.
    pub protocol: u8,
    /// The destination port; 0 for protocols without ports.
    pub port: u16,
}

/// What becomes of a connection at one of its ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Allowed: no policy isolates the pod in this direction.
    NotIsolated,
    /// Allowed: both ends are the same pod.
    Itself,
    /// Allowed: the pod's own node connects to it.
    OwnNode,
    /// Allowed by a rule.
    Allowed,
    /// Denied: policies isolate the pod, and none of their rules allows it.
    Denied,
}

impl Decision {
    /// Returns whether the connection is allowed.
    #[must_use]
    pub const fn is_allowed(self) -> bool {
        !matches!(self, Self::Denied)
    }
}

impl SelectedPod {
    /// Returns a pod with its profiles; `None` if no policy isolates it.
    pub(super) fn of(pod: &PodSpec, ingress: Option<Profiles>, egress: Option<Profiles>) -> Option<Self> {
        if ingress.is_none() && egress.is_none() {
            return None;
        }
        let split = |profiles: Option<Profiles>| {
            profiles.map_or_else(Default::default, |Profiles { all, apart }| (Some(all), apart))
        };
        let ((ingress, ingress_apart), (egress, egress_apart)) = (split(ingress), split(egress));
        let (uid, addresses) = (pod.uid.clone(), pod.addresses.clone());
        Some(Self { uid, addresses, ingress, egress, ingress_apart, egress_apart })
    }
}

impl Compiled {
    /// Returns the number of different classes, class 0 included.
    #[must_use]
    pub fn classes(&self) -> usize {
        self.numbers.classes.len()
    }

    /// Returns the number of different profiles.
    #[must_use]
    pub fn profiles(&self) -> usize {
        self.numbers.profiles.len()
    }

    /// Decides about a connection of a pod on the node, by two look-ups.
    #[must_use]
    pub fn decide(&self, pod: &NamespacedName, traffic: Traffic) -> Decision {
        let Some(pod) = self.pods.get(pod) else { return Decision::NotIsolated };
        let profile = match traffic.direction {
            Direction::Ingress => pod.ingress,
            Direction::Egress => pod.egress,
        };
        let Some(profile) = profile else { return Decision::NotIsolated };
        if pod.addresses.contains(&traffic.peer) {
            return Decision::Itself;
        }
        let peer = self.peers.longest(traffic.peer).copied().unwrap_or_default();
        if peer.is_own_node && traffic.direction == Direction::Ingress {
            return Decision::OwnNode;
        }
        let (class, Traffic { protocol, port, .. }) = (peer.class, traffic);
        let key = RuleKey { profile, class, protocol, port, length: RuleKey::EXACT };
        if self.rules.has_prefix_of(key) { Decision::Allowed } else { Decision::Denied }
    }
}

impl RuleKey {
    /// The bits of profile and class.
    pub const ANY_PROTOCOL: u8 = 64;
    /// The same, and those of the protocol.
    pub const ANY_PORT: u8 = 72;
    /// All bits.
    const EXACT: u8 = 88;

    /// Returns the key of a prefix: IP protocol number, port, and the leading bits of the port; `None` = any
    /// protocol.
    pub(super) fn of(profile: u32, class: u32, prefix: Option<(u8, u16, u8)>) -> Self {
        match prefix {
            None => Self { profile, class, protocol: 0, port: 0, length: Self::ANY_PROTOCOL },
            Some((protocol, port, bits)) => {
                Self { profile, class, protocol, port, length: Self::ANY_PORT + bits }
            }
        }
    }

    /// Returns the first bits of the key, at least those of profile and class.
    fn cut(self, length: u8) -> Self {
        let Some(bits) = length.checked_sub(Self::ANY_PORT) else {
            return Self { protocol: 0, port: 0, length, ..self };
        };
        let mask = !u16::MAX.checked_shr(bits.into()).unwrap_or(0);
        Self { port: self.port & mask, length, ..self }
    }
}

impl Rules {
    /// Returns all combinations, sorted.
    pub fn iter(&self) -> impl Iterator<Item = &RuleKey> {
        self.keys.iter()
    }

    /// Returns the number of combinations.
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns whether there is no combination.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    pub(super) fn insert(&mut self, key: RuleKey) {
        self.lengths.insert(key.length);
        self.keys.insert(key);
    }

    /// Returns whether a combination is a prefix of this key: one look-up in an LPM trie.
    fn has_prefix_of(&self, key: RuleKey) -> bool {
        self.lengths.iter().rev().any(|length| self.keys.contains(&key.cut(*length)))
    }
}
