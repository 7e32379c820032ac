//! Classes of addresses: those of one class are members of the same sets.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::Range;

use ipnet::IpNet;

use super::basis::Blocks;
use super::compiled::PeerEntry;
use super::index::Index;
use super::numbers::{keep, number};
use super::prefixes::Prefixes;
use super::sets::{InBlocks, Members, SetNumbers};

/// The numbers of classes. 0 is that of no set, and the two highest bits are flags in the maps.
const CLASSES: Range<u32> = 1..1 << 30;

/// The class of every address.
#[derive(Debug)]
pub(super) struct Classes {
    /// The classes by longest prefix; elsewhere it is 0.
    pub peers: Prefixes<PeerEntry>,
    /// The number of each class, by the sets that its addresses are in.
    pub numbers: BTreeMap<SetNumbers, u32>,
    /// The classes whose addresses are in a set.
    pub of_set: BTreeMap<u32, BTreeSet<u32>>,
    /// The classes of prefixes.
    pub blocks: Blocks,
}

impl Classes {
    /// Computes the classes. `own` has the addresses of the node, `former` the numbers that are kept.
    pub fn of(
        index: &Index,
        members: &Members,
        own: &BTreeSet<IpAddr>,
        former: &BTreeMap<SetNumbers, u32>,
    ) -> Self {
        let blocks: Vec<(IpNet, &SetNumbers)> =
            members.prefixes().map(|(prefix, inside)| (*prefix, &inside.any)).collect();
        let pods: Vec<(IpAddr, SetNumbers)> =
            index.pod_addresses().map(|(address, _)| (address, sets_of(index, members, address))).collect();
        let all = blocks.iter().map(|(_, sets)| *sets).chain(pods.iter().map(|(_, sets)| sets));
        let different: BTreeSet<&SetNumbers> = all.filter(|sets| !sets.is_empty()).collect();
        let mut numbers = keep(different.into_iter().cloned().collect(), former, CLASSES);
        numbers.insert(SetNumbers::new(), 0);
        let class = |sets: &SetNumbers| numbers.get(sets).copied().unwrap_or_default();

        let mut of_blocks = Prefixes::default();
        for (prefix, sets) in blocks {
            of_blocks.insert(prefix, class(sets));
        }
        let blocks = Blocks::new(of_blocks);
        let mut peers = Prefixes::default();
        for prefix in blocks.iter() {
            if let Some(class) = blocks.of_prefix(*prefix) {
                peers.insert(*prefix, PeerEntry { class, is_own_node: false });
            }
        }
        for (address, sets) in &pods {
            if let Some(class) = blocks.entry(*address, Some(class(sets))) {
                peers.insert((*address).into(), PeerEntry { class, is_own_node: false });
            }
        }
        for address in own {
            // Selectors match no address of a node.
            peers.insert((*address).into(), PeerEntry { class: blocks.around(*address), is_own_node: true });
        }
        let mut of_set: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        for (sets, class) in &numbers {
            for set in sets {
                of_set.entry(*set).or_default().insert(*class);
            }
        }
        Self { peers, numbers, of_set, blocks }
    }
}

/// Returns a number for a new class; `None` if all are taken.
pub(super) fn new_class(sets: &SetNumbers, numbers: &BTreeMap<SetNumbers, u32>) -> Option<u32> {
    number(sets, &numbers.values().copied().collect(), CLASSES)
}

/// Returns the sets that an address of pods is in: those of each of its pods.
pub(super) fn sets_of(index: &Index, members: &Members, address: IpAddr) -> SetNumbers {
    let nothing = InBlocks::default();
    let blocks = members.containing(address.into()).next().map_or(&nothing, |(_, blocks)| blocks);
    let all = index.holders(address).map(|(_, pod)| members.of_pod(&pod.traits, blocks));
    all.reduce(|all, one| &all & &one).unwrap_or_default()
}
