//! A node's place among the candidates for an address: rendezvous hashing, which every node computes alike.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use proxy_common::addr::mapped;
use proxy_common::hash::mix;

use super::claim::Place;
use crate::model::{Candidates, Desired};

/// The addresses that a node may announce, and its place among the candidates.
pub type Ranks = BTreeMap<IpAddr, Place>;

/// What the announcer is to announce.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The addresses that this node is a candidate for.
    pub ranks: Ranks,
    /// The addresses whose Services were read by this agent, now or before.
    pub known: BTreeSet<IpAddr>,
    /// Whether all objects could be read. If not, an address of an earlier agent may be that of one which could not.
    pub is_complete: bool,
}

impl Wanted {
    /// Returns whether this node is to announce the address no more.
    #[must_use]
    pub fn is_over(&self, address: IpAddr) -> bool {
        !self.ranks.contains_key(&address) && (self.is_complete || self.known.contains(&address))
    }
}

/// Returns the addresses inside ranges that this node is a candidate for.
#[must_use]
pub fn ranks(desired: &Desired, ranges: &[IpNet]) -> Ranks {
    let may_announce = |node: &&str| !desired.without_clients.contains(*node);
    let place = |address: IpAddr, candidates: &Candidates| match candidates {
        Candidates::All => {
            place(desired, desired.nodes.keys().map(String::as_str).filter(may_announce), address)
        }
        Candidates::Only(nodes) => {
            // The endpoints of a node that is gone stay for a while.
            let present = nodes.iter().map(|node| &**node).filter(|node| desired.nodes.contains_key(*node));
            place(desired, present.filter(may_announce), address)
        }
    };
    let is_inside = |address: &IpAddr| ranges.iter().any(|range| range.contains(address));
    let announced = desired.announced.iter().filter(|(address, _)| is_inside(address));
    announced.filter_map(|(address, candidates)| Some((*address, place(*address, candidates)?))).collect()
}

/// Returns how many candidates come before this node; `None` if it is no candidate.
///
/// Nodes that are not ready may be silent, and each that is costs half a second: the others do not wait for their turn. They
/// keep their rank, because they may answer all the same, and may not know that they count as not ready.
fn place<'a>(desired: &Desired, candidates: impl Iterator<Item = &'a str>, address: IpAddr) -> Option<Place> {
    let own = desired.node_name.as_str();
    let is_ready = |node: &str| !desired.not_ready.contains(node);
    let own_weight = (weight(own, address), own);
    let mut is_candidate = false;
    let mut place = Place { rank: 0, turn: 0 };
    for node in candidates {
        is_candidate |= node == own;
        let is_higher = (weight(node, address), node) > own_weight;
        place.rank += usize::from(is_higher);
        let is_before = if is_ready(node) == is_ready(own) { is_higher } else { is_ready(node) };
        place.turn += usize::from(is_before);
    }
    is_candidate.then_some(place)
}

/// Returns the weight of a node for an address. Part of the contract between the nodes of a cluster.
fn weight(node: &str, address: IpAddr) -> u64 {
    const SEED: u64 = 0x616e_6e6f_756e_6365;
    let of_address =
        mapped(address).into_iter().fold(SEED, |sum, word| mix(sum ^ u64::from(u32::from_be(word))));
    node.bytes().fold(of_address, |sum, byte| mix(sum ^ u64::from(byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn desired(own: &str, nodes: usize, candidates: &Candidates) -> Desired {
        let addresses = (1..=100).map(|n| IpAddr::from([203, 0, 113, n]));
        Desired {
            node_name: own.to_owned(),
            nodes: (0..nodes).map(|n| (format!("node-{n}"), BTreeSet::new())).collect(),
            announced: addresses.map(|address| (address, candidates.clone())).collect(),
            ..Desired::default()
        }
    }

    fn all_ranks(desired: &Desired) -> Ranks {
        ranks(desired, &["203.0.113.0/24".parse().unwrap()])
    }

    #[test]
    fn only_addresses_inside_the_ranges_have_a_rank() {
        let desired = desired("node-0", 2, &Candidates::All);
        assert_eq!(ranks(&desired, &["203.0.113.16/28".parse().unwrap()]).len(), 16);
        assert!(ranks(&desired, &[]).is_empty());
    }

    #[test]
    fn nodes_agree_and_share_the_addresses_about_evenly() {
        let of = |n: usize| all_ranks(&desired(&format!("node-{n}"), 4, &Candidates::All));
        let all: Vec<Ranks> = (0..4).map(of).collect();
        for address in all[0].keys() {
            let places: BTreeSet<usize> = all.iter().map(|ranks| ranks[address].rank).collect();
            assert_eq!(places, BTreeSet::from([0, 1, 2, 3]), "{address}");
        }
        for ranks in &all {
            let first = ranks.values().filter(|place| place.rank == 0).count();
            assert!((10..=45).contains(&first), "{first} of 100");
        }
    }

    #[test]
    fn a_node_that_goes_moves_no_address_of_the_others() {
        let first = |nodes: usize, n: usize| {
            let ranks = all_ranks(&desired(&format!("node-{n}"), nodes, &Candidates::All));
            ranks
                .into_iter()
                .filter(|(_, place)| place.rank == 0)
                .map(|(address, _)| address)
                .collect::<BTreeSet<_>>()
        };
        for n in 0..3 {
            assert!(first(3, n).is_superset(&first(4, n)));
        }
    }

    #[test]
    fn a_node_without_endpoints_is_no_candidate() {
        let only = Candidates::Only(["node-1".into()].into());
        assert!(all_ranks(&desired("node-0", 2, &only)).is_empty());
        assert!(all_ranks(&desired("node-1", 2, &only)).values().all(|place| place.rank == 0));
        assert!(all_ranks(&desired("node-9", 2, &Candidates::All)).is_empty());
    }

    #[test]
    fn a_node_that_is_to_get_no_clients_has_no_place() {
        let mut desired = desired("node-0", 3, &Candidates::All);
        desired.without_clients = ["node-1".to_owned(), "node-2".to_owned()].into();
        assert!(all_ranks(&desired).values().all(|place| place.rank == 0));
        desired.without_clients = ["node-0".to_owned()].into();
        assert!(all_ranks(&desired).is_empty());
    }

    #[test]
    fn nodes_that_are_not_ready_have_the_last_turns_and_keep_their_rank() {
        let of = |own: &str, not_ready: &[&str]| {
            let mut desired = desired(own, 4, &Candidates::All);
            desired.not_ready = not_ready.iter().map(|node| (*node).to_owned()).collect();
            all_ranks(&desired)
        };
        let rank = |ranks: Ranks| ranks.into_values().map(|place| place.rank).collect::<Vec<_>>();
        for node in ["node-0", "node-1"] {
            assert!(of(node, &["node-2", "node-3"]).values().all(|place| place.turn < 2), "{node}");
            assert!(of(node, &["node-0", "node-1"]).values().all(|place| place.turn >= 2), "{node}");
            assert_eq!(rank(of(node, &["node-0", "node-2"])), rank(of(node, &[])));
            assert_eq!(of(node, &["node-0", "node-1", "node-2", "node-3"]), of(node, &[]));
        }
    }

    #[test]
    fn the_weight_is_the_same_in_all_versions() {
        assert_eq!(weight("node-1", "203.0.113.7".parse().unwrap()), WEIGHT_V4);
        assert_eq!(weight("node-1", "2001:db8::7".parse().unwrap()), WEIGHT_V6);
    }

    const WEIGHT_V4: u64 = 0x19e3_4b46_e9ae_b3c8;
    const WEIGHT_V6: u64 = 0x9c46_1368_5a07_e26d;
}
