//! The sets of peers that rules name, and their members.
//!
//! Members are kept from one computation to the next: they hold as long as policies and Namespaces stay the same.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use ipnet::IpNet;

use super::block::Block;
use super::index::Index;
use super::labels::Selector;
use super::pod::Traits;
use super::ports::NamedPort;
use super::prefixes::Prefixes;
use super::spec::{Namespaces, Peer};

/// A set of peers. Rules of several policies with the same peers share it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PeerSet {
    /// Its members, of any of these; `None` = everyone.
    pub peers: Option<Arc<BTreeSet<Peer>>>,
    /// Only pods with this named port are members.
    pub port: Option<NamedPort>,
}

/// A set with its number.
type Numbered<'a> = (u32, &'a PeerSet);

/// The numbers of sets, sorted.
pub(super) type SetNumbers = BTreeSet<u32>;

/// Who is a member of which set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Members {
    /// By traits, the sets that a pod is in for its labels.
    by_traits: BTreeMap<Arc<Traits>, SetNumbers>,
    /// By prefix, the sets that an address is in for an `ipBlock`. The longest prefix counts.
    by_prefix: Prefixes<InBlocks>,
}

/// The sets of an address for the `ipBlock`s around it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct InBlocks {
    /// Those of any address.
    pub any: SetNumbers,
    /// Those of an address only if its pod has the named port.
    pub named: BTreeSet<(u32, NamedPort)>,
}

impl Members {
    /// Finds the members of the sets.
    pub fn of(index: &Index, sets: &BTreeMap<Arc<PeerSet>, u32>) -> Self {
        let sets = || sets.iter().map(|(set, number)| (*number, &**set));
        Self { by_traits: by_traits(index, sets()), by_prefix: by_prefix(sets()) }
    }

    /// Finds the sets of pods with these traits, if they are new.
    pub fn learn(&mut self, index: &Index, sets: &BTreeMap<Arc<PeerSet>, u32>, traits: &Arc<Traits>) {
        if !self.by_traits.contains_key(traits) {
            let of = sets.iter().filter(|(set, _)| set.has(index, traits)).map(|(_, number)| *number);
            self.by_traits.insert(traits.clone(), of.collect());
        }
    }

    /// Returns the prefixes of all `ipBlock`s and of their exceptions.
    pub fn prefixes(&self) -> impl Iterator<Item = (&IpNet, &InBlocks)> {
        self.by_prefix.iter()
    }

    /// Returns the longest prefixes that contain this one, itself included, the longest first.
    pub fn containing(&self, prefix: IpNet) -> impl Iterator<Item = (&IpNet, &InBlocks)> {
        self.by_prefix.containing(prefix)
    }

    /// Returns the sets that a pod is in behind an address in these `ipBlock`s.
    pub fn of_pod(&self, traits: &Traits, blocks: &InBlocks) -> SetNumbers {
        let mut numbers = self.by_traits.get(traits).cloned().unwrap_or_default();
        numbers.extend(&blocks.any);
        let named = blocks.named.iter().filter(|(_, port)| traits.ports.contains(port));
        numbers.extend(named.map(|(number, _)| number));
        numbers
    }
}

impl PeerSet {
    /// Returns whether pods with these traits are members for their labels.
    fn has(&self, index: &Index, traits: &Traits) -> bool {
        let is_meant = |peer: &Peer| match peer {
            Peer::Pods { namespaces, pods } => index.is_peer(namespaces, pods, traits),
            Peer::Block(_) => false,
        };
        self.peers.as_ref().is_none_or(|peers| peers.iter().any(is_meant))
            && self.port.as_ref().is_none_or(|port| traits.ports.contains(port))
    }
}

fn by_traits<'a>(
    index: &'a Index,
    sets: impl Iterator<Item = Numbered<'a>>,
) -> BTreeMap<Arc<Traits>, SetNumbers> {
    let mut groups = Groups::of(index);
    // Each selector is evaluated once, however many sets have it.
    let mut selectors: BTreeMap<(&Namespaces, &Selector), Vec<Numbered<'_>>> = BTreeMap::new();
    for (number, set) in sets {
        let Some(peers) = &set.peers else {
            groups.add(0..groups.all.len(), (number, set));
            continue;
        };
        for peer in peers.iter() {
            if let Peer::Pods { namespaces, pods } = peer {
                selectors.entry((namespaces, pods)).or_default().push((number, set));
            }
        }
    }
    for ((namespaces, pods), sets) in selectors {
        let places = groups.matching(index, namespaces, pods);
        for set in sets {
            groups.add(places.iter().copied(), set);
        }
    }
    groups.all.into_iter().map(|(traits, sets)| (traits.clone(), sets)).collect()
}

/// Pods that are alike, with the sets that they are in.
struct Groups<'a> {
    all: Vec<(&'a Arc<Traits>, SetNumbers)>,
    /// Their places by namespace.
    namespaces: BTreeMap<&'a str, Range<usize>>,
}

impl<'a> Groups<'a> {
    fn of(index: &'a Index) -> Self {
        let all: Vec<(&Arc<Traits>, SetNumbers)> =
            index.traits().map(|traits| (traits, SetNumbers::new())).collect();
        let mut namespaces: BTreeMap<&str, Range<usize>> = BTreeMap::new();
        for (place, (traits, _)) in all.iter().enumerate() {
            namespaces.entry(traits.namespace.as_str()).or_insert(place..place).end = place + 1;
        }
        Self { all, namespaces }
    }

    /// Returns the places of the groups that a peer selects.
    fn matching(&self, index: &Index, namespaces: &Namespaces, pods: &Selector) -> Vec<usize> {
        let ranges: Vec<&Range<usize>> = match namespaces {
            Namespaces::Own(name) => self.namespaces.get(name.as_str()).into_iter().collect(),
            Namespaces::Matching(selector) => {
                let is_meant = |name: &str| selector.matches(&index.namespace(name));
                self.namespaces.iter().filter(|(name, _)| is_meant(name)).map(|(_, range)| range).collect()
            }
        };
        let is_meant =
            |place: &usize| self.all.get(*place).is_some_and(|(traits, _)| pods.matches(&traits.labels));
        ranges.into_iter().cloned().flatten().filter(is_meant).collect()
    }

    /// Adds groups to a set, as far as they have its named port.
    fn add(&mut self, places: impl Iterator<Item = usize>, (number, set): Numbered<'_>) {
        for place in places {
            let Some((traits, numbers)) = self.all.get_mut(place) else { continue };
            if set.port.as_ref().is_none_or(|port| traits.ports.contains(port)) {
                numbers.insert(number);
            }
        }
    }
}

fn by_prefix<'a>(sets: impl Iterator<Item = Numbered<'a>>) -> Prefixes<InBlocks> {
    let mut prefixes = Prefixes::default();
    let mut starting: BTreeMap<IpNet, Vec<(Numbered<'_>, &Block)>> = BTreeMap::new();
    for set in sets {
        for peer in set.1.peers.iter().flat_map(|peers| peers.iter()) {
            if let Peer::Block(block) = peer {
                starting.entry(block.cidr).or_default().push((set, block));
                for except in &block.except {
                    starting.entry(*except).or_default();
                }
            }
        }
    }
    for (prefix, blocks) in starting {
        prefixes.insert(prefix, blocks);
    }
    // Prefixes nest or lie apart. So an address whose longest prefix is this one is in a block exactly if the
    // whole prefix is, and the block begins at one of the prefixes around it.
    let mut found = Prefixes::default();
    for (prefix, _) in prefixes.iter() {
        let mut inside = InBlocks::default();
        let around = prefixes.containing(*prefix).flat_map(|(_, blocks)| blocks);
        for ((number, set), _) in around.filter(|(_, block)| block.covers(*prefix)) {
            match &set.port {
                None => {
                    inside.any.insert(*number);
                }
                Some(port) => {
                    inside.named.insert((*number, port.clone()));
                }
            }
        }
        found.insert(*prefix, inside);
    }
    found
}
