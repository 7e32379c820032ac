//! The rules of a pod in one direction, joined over all policies that select it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::index::Index;
use super::object::NamespacedName;
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

/// The rules of pods that are alike in one direction: those of all policies that select them, and of each one alone.
#[derive(Clone, Debug, Default)]
pub(super) struct Joined {
    /// The rules of all policies, by which programs judge.
    pub all: RuleSet,
    /// The rules of each policy alone, which say to people what allows a connection. Where `all` allows everything, only
    /// policies that allow everything are here.
    pub apart: BTreeMap<NamespacedName, RuleSet>,
}

/// The numbers of [`Joined`] rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Profiles {
    /// The profile by which programs judge.
    pub all: u32,
    /// The profile of each policy alone.
    pub apart: BTreeMap<NamespacedName, u32>,
}

impl Joined {
    /// Returns the rules of pods with these traits; `None` = they are not isolated in this direction.
    ///
    /// `named` has the named ports of all pods.
    pub fn of(
        index: &Index,
        traits: &Traits,
        direction: Direction,
        named: &BTreeSet<NamedPort>,
    ) -> Option<Self> {
        // The pod that gets the packet says what a name stands for.
        let named = match direction {
            Direction::Ingress => &traits.ports,
            Direction::Egress => named,
        };
        let mut found: Option<Self> = None;
        for (name, policy) in index.selecting(traits) {
            let Some(rules) = policy.rules(direction) else { continue };
            let joined = found.get_or_insert_default();
            let mut set = RuleSet::default();
            for rule in rules {
                set.add(rule, direction, named);
            }
            joined.all.add_all(&set);
            joined.apart.insert(name.clone(), set.without_needless());
        }
        found.map(Self::without_needless)
    }

    /// Returns the numbers of these rules; `None` if one of them has none.
    pub fn profiles(&self, numbers: &BTreeMap<RuleSet, u32>) -> Option<Profiles> {
        let apart = self.apart.iter().map(|(name, set)| Some((name.clone(), *numbers.get(set)?)));
        Some(Profiles { all: *numbers.get(&self.all)?, apart: apart.collect::<Option<_>>()? })
    }

    /// Leaves out sets of peers that only people would need: fewer sets of peers are fewer classes.
    fn without_needless(self) -> Self {
        let (all, mut apart) = (self.all.without_needless(), self.apart);
        if all.is_everything() {
            apart.retain(|_, set| set.is_everything());
        }
        Self { all, apart }
    }
}

impl RuleSet {
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

    fn add_all(&mut self, more: &Self) {
        for (peers, ports) in more.iter() {
            self.0.entry(peers.clone()).or_insert_with(Ports::none).add(ports);
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
        if self.is_everything() {
            self.0.retain(|peers, _| *peers == Peers::Everyone);
        }
        self
    }

    fn is_everything(&self) -> bool {
        self.0.get(&Peers::Everyone) == Some(&Ports::All)
    }
}
