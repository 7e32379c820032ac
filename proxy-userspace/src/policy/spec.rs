//! Parses NetworkPolicies.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::networking::v1::{
    NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec,
};

use super::block::{Block, read_block};
use super::labels::{Selector, read_selector};
use super::ports::{PortMatch, read_ports};
use super::problem::Notes;

/// The side of a connection on which a policy judges it. Replies have no direction of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// Connections to the selected pods.
    Ingress,
    /// Connections from the selected pods.
    Egress,
}

/// A policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PolicySpec {
    /// The pods of its namespace that it applies to.
    pub selector: Selector,
    /// The rules for connections to these pods; `None` = it does not isolate them in this direction.
    ingress: Option<Vec<Rule>>,
    /// The same for connections from these pods.
    egress: Option<Vec<Rule>>,
}

/// A rule: it allows what matches one of its peers and one of its ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    /// Its place in the list of its direction.
    pub index: usize,
    /// `None` = everyone. Of invalid peers alone, the set is empty.
    pub peers: Option<Arc<BTreeSet<Peer>>>,
    /// `None` = all traffic. Of invalid ports alone, the list is empty.
    pub ports: Option<Vec<PortMatch>>,
}

/// A peer of a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Peer {
    /// Pods of some namespaces.
    Pods { namespaces: Namespaces, pods: Selector },
    /// Addresses.
    Block(Block),
}

/// The namespaces of a peer's pods.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Namespaces {
    /// The policy's own, by its name.
    Own(String),
    /// Those with these labels.
    Matching(Selector),
}

/// A rule as the API has it, in either direction.
struct RawRule<'a> {
    peers: Option<&'a [NetworkPolicyPeer]>,
    ports: Option<&'a [NetworkPolicyPort]>,
}

impl PolicySpec {
    /// Returns the rules of a direction; `None` = the policy does not isolate its pods there.
    pub fn rules(&self, direction: Direction) -> Option<&[Rule]> {
        match direction {
            Direction::Ingress => self.ingress.as_deref(),
            Direction::Egress => self.egress.as_deref(),
        }
    }
}

impl Direction {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Ingress, Self::Egress];

    /// Returns the name of its list of rules.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        }
    }

    /// Returns the name of a rule's list of peers.
    const fn peers(self) -> &'static str {
        match self {
            Self::Ingress => "from",
            Self::Egress => "to",
        }
    }

    /// Returns its name in `policyTypes`.
    const fn policy_type(self) -> &'static str {
        match self {
            Self::Ingress => "Ingress",
            Self::Egress => "Egress",
        }
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

pub(super) fn read_policy(policy: &NetworkPolicy, namespace: &str, notes: &mut Notes) -> PolicySpec {
    let empty = NetworkPolicySpec::default();
    let spec = policy.spec.as_ref().unwrap_or(&empty);
    let (selector, is_valid) = match read_selector(spec.pod_selector.as_ref(), "spec.podSelector", notes) {
        Ok(selector) => (selector, true),
        Err(rest) => {
            let message =
                "the policy isolates the pods that the valid requirements select, and allows nothing";
            notes.warn("spec.podSelector", message);
            (rest, false)
        }
    };
    let isolates = read_types(spec, notes);
    let mut read = |direction: Direction, rules: &[RawRule<'_>]| {
        let mut rules = read_rules(rules, direction, namespace, notes);
        if !is_valid {
            rules.clear();
        }
        isolates.contains(&direction).then_some(rules)
    };
    let rules = spec.ingress.iter().flatten();
    let ingress: Vec<RawRule<'_>> =
        rules.map(|rule| RawRule { peers: rule.from.as_deref(), ports: rule.ports.as_deref() }).collect();
    let rules = spec.egress.iter().flatten();
    let egress: Vec<RawRule<'_>> =
        rules.map(|rule| RawRule { peers: rule.to.as_deref(), ports: rule.ports.as_deref() }).collect();
    PolicySpec {
        ingress: read(Direction::Ingress, &ingress),
        egress: read(Direction::Egress, &egress),
        selector,
    }
}

/// Returns the directions in which the policy isolates its pods.
fn read_types(spec: &NetworkPolicySpec, notes: &mut Notes) -> BTreeSet<Direction> {
    let has_egress = spec.egress.as_ref().is_some_and(|rules| !rules.is_empty());
    let types = spec.policy_types.as_deref().unwrap_or_default();
    if types.is_empty() {
        let egress = has_egress.then_some(Direction::Egress);
        return [Direction::Ingress].into_iter().chain(egress).collect();
    }
    let mut directions = BTreeSet::new();
    for (index, text) in types.iter().enumerate() {
        if let Some(direction) = Direction::ALL.into_iter().find(|one| one.policy_type() == text) {
            directions.insert(direction);
            continue;
        }
        // Whatever was meant, nothing is more open than without the fault.
        let message =
            format!("{text:?} is not a type; takes Ingress or Egress; the policy isolates both ways");
        notes.warn(format!("spec.policyTypes[{index}]"), message);
        directions.extend(Direction::ALL);
    }
    let has_ingress = spec.ingress.as_ref().is_some_and(|rules| !rules.is_empty());
    for (direction, has_rules) in [(Direction::Ingress, has_ingress), (Direction::Egress, has_egress)] {
        if has_rules && !directions.contains(&direction) {
            let message = format!("has no effect, because policyTypes lacks {}", direction.policy_type());
            notes.info(format!("spec.{direction}"), message);
        }
    }
    directions
}

fn read_rules(rules: &[RawRule<'_>], direction: Direction, namespace: &str, notes: &mut Notes) -> Vec<Rule> {
    let mut read = Vec::new();
    for (index, rule) in rules.iter().enumerate() {
        let field = format!("spec.{direction}[{index}]");
        let peers = format!("{field}.{}", direction.peers());
        read.push(Rule {
            index,
            peers: read_peers(rule.peers, &peers, namespace, notes).map(Arc::new),
            ports: read_ports(rule.ports, &format!("{field}.ports"), notes),
        });
    }
    read
}

/// Parses the peers of a rule; `None` = everyone. An invalid peer is left out, so that it matches nothing.
fn read_peers(
    peers: Option<&[NetworkPolicyPeer]>,
    field: &str,
    namespace: &str,
    notes: &mut Notes,
) -> Option<BTreeSet<Peer>> {
    let peers = peers.filter(|peers| !peers.is_empty())?;
    let mut read = BTreeSet::new();
    for (index, peer) in peers.iter().enumerate() {
        read.extend(read_peer(peer, &format!("{field}[{index}]"), namespace, notes));
    }
    Some(read)
}

fn read_peer(peer: &NetworkPolicyPeer, field: &str, namespace: &str, notes: &mut Notes) -> Option<Peer> {
    let NetworkPolicyPeer { ip_block, namespace_selector, pod_selector } = peer;
    let has_selector = namespace_selector.is_some() || pod_selector.is_some();
    match ip_block {
        Some(_) if has_selector => {
            let message = "has an ipBlock and a selector, takes one of both; this peer matches nothing";
            notes.warn(field, message);
            return None;
        }
        Some(block) => return read_block(block, &format!("{field}.ipBlock"), notes).map(Peer::Block),
        None if !has_selector => {
            let message =
                "is empty; takes podSelector, namespaceSelector or ipBlock; this peer matches nothing";
            notes.warn(field, message);
            return None;
        }
        None => {}
    }
    let pods = read_selector(pod_selector.as_ref(), &format!("{field}.podSelector"), notes);
    let namespaces = namespace_selector
        .as_ref()
        .map(|selector| read_selector(Some(selector), &format!("{field}.namespaceSelector"), notes));
    let (Ok(pods), Ok(namespaces)) = (pods, namespaces.transpose()) else {
        notes.warn(field, "this peer matches nothing");
        return None;
    };
    let namespaces = namespaces.map_or_else(|| Namespaces::Own(namespace.to_owned()), Namespaces::Matching);
    Some(Peer::Pods { namespaces, pods })
}
