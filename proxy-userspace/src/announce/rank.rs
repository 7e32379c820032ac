//! A node's place among the candidates for an address: rendezvous hashing, which every node computes alike.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use proxy_common::addr::mapped;
use proxy_common::hash::mix;

use crate::model::{Candidates, Desired};

/// The addresses that a node may announce, and its place among the candidates: zero for the first choice.
pub type Ranks = BTreeMap<IpAddr, usize>;

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
    let own = desired.node_name.as_str();
    let may_announce = |node: &&str| !desired.without_clients.contains(*node);
    let is_ready = |node: &str| !desired.not_ready.contains(node);
    let rank = |address: IpAddr, candidates: &Candidates| match candidates {
        Candidates::All => {
            let nodes = desired.nodes.keys().map(String::as_str).filter(may_announce);
            place(own, nodes, is_ready, address)
        }
        Candidates::Only(nodes) => {
            place(own, nodes.iter().map(|node| &**node).filter(may_announce), is_ready, address)
        }
    };
    let is_inside = |address: &IpAddr| ranges.iter().any(|range| range.contains(address));
    let announced = desired.announced.iter().filter(|(address, _)| is_inside(address));
    announced.filter_map(|(address, candidates)| Some((*address, rank(*address, candidates)?))).collect()
}

/// Returns how many candidates come before this node; `None` if it is no candidate.
///
/// Nodes that are not ready come last: they may be silent, and each silent one that comes before costs half a second.
/// If none is ready, they keep their order. Then the fault is rather in what watches them.
fn place<'a>(
    own: &str,
    candidates: impl Iterator<Item = &'a str>,
    is_ready: impl Fn(&str) -> bool,
    address: IpAddr,
) -> Option<usize> {
    let weight = |node: &'a str| (is_ready(node), weight(node, address), node);
    let own_weight = (is_ready(own), self::weight(own, address), own);
    let mut is_candidate = false;
    let mut higher = 0;
    for node in candidates {
        is_candidate |= node == own;
        higher += usize::from(weight(node) > own_weight);
    }
    is_candidate.then_some(higher)
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
            let places: BTreeSet<usize> = all.iter().map(|ranks| ranks[address]).collect();
            assert_eq!(places, BTreeSet::from([0, 1, 2, 3]), "{address}");
        }
        for ranks in &all {
            let first = ranks.values().filter(|rank| **rank == 0).count();
            assert!((10..=45).contains(&first), "{first} of 100");
        }
    }

    #[test]
    fn a_node_that_goes_moves_no_address_of_the_others() {
        let first = |nodes: usize, n: usize| {
            let ranks = all_ranks(&desired(&format!("node-{n}"), nodes, &Candidates::All));
            ranks
                .into_iter()
                .filter(|(_, rank)| *rank == 0)
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
        assert!(all_ranks(&desired("node-1", 2, &only)).values().all(|rank| *rank == 0));
        assert!(all_ranks(&desired("node-9", 2, &Candidates::All)).is_empty());
    }

    #[test]
    fn a_node_that_is_to_get_no_clients_has_no_place() {
        let mut desired = desired("node-0", 3, &Candidates::All);
        desired.without_clients = ["node-1".to_owned(), "node-2".to_owned()].into();
        assert!(all_ranks(&desired).values().all(|rank| *rank == 0));
        desired.without_clients = ["node-0".to_owned()].into();
        assert!(all_ranks(&desired).is_empty());
    }

    #[test]
    fn nodes_that_are_not_ready_come_last_in_their_own_order() {
        let rank_of = |own: &str, not_ready: &[&str]| {
            let mut desired = desired(own, 4, &Candidates::All);
            desired.not_ready = not_ready.iter().map(|node| (*node).to_owned()).collect();
            all_ranks(&desired)
        };
        let names = ["node-0", "node-1", "node-2", "node-3"];
        for node in ["node-0", "node-1"] {
            assert!(rank_of(node, &["node-2", "node-3"]).values().all(|rank| *rank < 2), "{node}");
            assert!(rank_of(node, &["node-0", "node-1"]).values().all(|rank| *rank >= 2), "{node}");
            assert_eq!(rank_of(node, &names), rank_of(node, &[]));
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
