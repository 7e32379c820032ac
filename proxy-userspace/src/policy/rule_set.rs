//! The rules of a pod in one direction, joined over all policies that select it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::index::Index;
use super::pod::Traits;
use super::ports::{NamedPort, PortMatch, Ports, numbers};
use super::sets::PeerSet;
use super::spec::{Direction, Peer, Rule};

/// The peers of a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Peers {
    /// Every address.
    Everyone,
    /// The members of a set.
    Set(Arc<PeerSet>),
}

/// What a pod allows in one direction: the ports by peers.
///
/// Equal sets are one profile, whatever policies they come from.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RuleSet(BTreeMap<Peers, Ports>);

impl RuleSet {
    /// Returns the rules of pods with these traits; `None` = they are not isolated in this direction.
    ///
    /// `named` has the named ports of all pods.
    pub fn of(
        index: &Index,
        traits: &Traits,
        direction: Direction,
        named: &BTreeSet<NamedPort>,
    ) -> Option<Self> {
        let mut found: Option<Self> = None;
        for (_, policy) in index.selecting(traits) {
            let Some(rules) = policy.rules(direction) else { continue };
            let set = found.get_or_insert_default();
            // The pod that gets the packet says what a name stands for.
            let named = match direction {
                Direction::Ingress => &traits.ports,
                Direction::Egress => named,
            };
            for rule in rules {
                set.add(rule, direction, named);
            }
        }
        found.map(Self::without_needless)
    }

    /// Returns the peers with their ports.
    pub fn iter(&self) -> impl Iterator<Item = (&Peers, &Ports)> {
        self.0.iter()
    }

    fn add(&mut self, rule: &Rule, direction: Direction, named: &BTreeSet<NamedPort>) {
        let peers = rule.peers.as_ref();
        let Some(ports) = &rule.ports else { return self.allow(peers, None, &Ports::All) };
        for port in ports {
            match port {
                PortMatch::Range { protocol, first, last } => {
                    self.allow(peers, None, &Ports::range(*protocol, *first, *last));
                }
                PortMatch::Name { protocol, name } => {
                    for number in numbers(named, name, *protocol) {
                        // Of the peers, only those count that have the name for this number.
                        let port = NamedPort { name: name.clone(), protocol: *protocol, number };
                        let port = Some(port).filter(|_| direction == Direction::Egress);
                        self.allow(peers, port, &Ports::range(*protocol, number, number));
                    }
                }
            }
        }
    }

    /// Allows ports to the peers, or only to those with a named port.
    fn allow(&mut self, peers: Option<&Arc<BTreeSet<Peer>>>, port: Option<NamedPort>, ports: &Ports) {
        let peers = match (peers, port) {
            (None, None) => Peers::Everyone,
            (Some(peers), _) if peers.is_empty() => return,
            (peers, port) => Peers::Set(Arc::new(PeerSet { peers: peers.cloned(), port })),
        };
        self.0.entry(peers).or_insert_with(Ports::none).add(ports);
    }

    /// Leaves out everything else where everything is allowed: fewer sets of peers are fewer classes.
    fn without_needless(mut self) -> Self {
        if self.0.get(&Peers::Everyone) == Some(&Ports::All) {
            self.0.retain(|peers, _| *peers == Peers::Everyone);
        }
        self
    }
}
