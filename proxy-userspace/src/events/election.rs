//! Picks the node that reports a problem that all nodes see.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use proxy_common::hash::mix;

/// The cluster's nodes. All agents know the same ones, and so pick the same node without talking to
/// each other.
///
/// All clones have the same nodes. The lock is held for one look-up.
#[derive(Clone, Debug)]
pub(super) struct Electorate {
    own: String,
    /// The hash of each node's name, by name.
    nodes: Arc<Mutex<BTreeMap<String, u64>>>,
}

impl Electorate {
    /// Returns an electorate that counts `own` as a node, with or without a Node object.
    pub fn new(own: &str) -> Self {
        let nodes = BTreeMap::from([(own.to_owned(), hash(own))]);
        Self { own: own.to_owned(), nodes: Arc::new(Mutex::new(nodes)) }
    }
    fn nodes(&self) -> MutexGuard<'_, BTreeMap<String, u64>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
    pub fn add(&self, node: &str) {
        self.nodes().entry(node.to_owned()).or_insert_with(|| hash(node));
    }
    /// Takes out a node that may have no agent. It may be this one.
    pub fn retire(&self, node: &str) {
        self.nodes().remove(node);
    }
    pub fn remove(&self, node: &str) {
        if node != self.own {
            self.nodes().remove(node);
        }
    }
    /// Returns whether this node reports the problems of this object.
    ///
    /// Rendezvous hashing spreads the objects over the nodes. A node that comes or goes changes
    /// only its own.
    pub fn elects_this_node(&self, uid: &str) -> bool {
        let uid = hash(uid);
        let rank = |node: u64| mix(uid ^ node);
        let nodes = self.nodes();
        if !nodes.is_empty() && !nodes.contains_key(&self.own) {
            return false;
        }
        let own = (rank(hash(&self.own)), &self.own);
        nodes.iter().all(|(name, node)| own <= (rank(*node), name))
    }
}

/// Hashes the same in every version of the agent: nodes are upgraded one by one.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0, |state, byte| mix(state ^ u64::from(byte) ^ 0x100))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODES: [&str; 5] = ["node1", "node2", "node3", "node4", "node5"];

    fn electorates(nodes: &[&str]) -> Vec<Electorate> {
        let electorate = |own: &&str| {
            let electorate = Electorate::new(own);
            for node in nodes {
                electorate.add(node);
            }
            electorate
        };
        nodes.iter().map(electorate).collect()
    }

    fn elected(electorates: &[Electorate], uid: &str) -> Vec<String> {
        let winners = electorates.iter().filter(|electorate| electorate.elects_this_node(uid));
        winners.map(|electorate| electorate.own.clone()).collect()
    }

    #[test]
    fn exactly_one_node_is_elected_and_each_gets_its_share() {
        let electorates = electorates(&NODES);
        let mut shares = BTreeMap::new();
        for index in 0..1000 {
            let winners = elected(&electorates, &format!("0d3f9b1a-{index}"));
            assert_eq!(winners.len(), 1, "{index}: {winners:?}");
            *shares.entry(winners[0].clone()).or_insert(0) += 1;
        }
        assert_eq!(shares.len(), NODES.len());
        assert!(shares.values().all(|share| (140..260).contains(share)), "{shares:?}");
    }

    #[test]
    fn a_node_that_goes_leaves_the_elected_ones_of_others_as_they_are() {
        let (before, after) = (electorates(&NODES), electorates(&NODES[..4]));
        for index in 0..200 {
            let uid = format!("0d3f9b1a-{index}");
            let old = elected(&before, &uid);
            assert!(old == ["node5"] || old == elected(&after, &uid), "{uid}");
        }
    }

    #[test]
    fn a_node_without_a_node_object_counts_itself() {
        let electorate = Electorate::new("node1");
        assert!(electorate.elects_this_node("any"));
        electorate.remove("node1");
        assert!(electorate.elects_this_node("any"));
    }

    #[test]
    fn a_node_that_retires_leaves_the_telling_to_others_if_there_are_any() {
        let electorate = Electorate::new("node1");
        electorate.retire("node1");
        assert!(electorate.elects_this_node("any"), "there is no other node");
        let others = electorates(&NODES);
        for electorate in &others {
            electorate.retire("node1");
        }
        for index in 0..200 {
            let winners = elected(&others, &format!("0d3f9b1a-{index}"));
            assert!(winners.len() == 1 && winners != ["node1"], "{index}: {winners:?}");
        }
    }

    #[test]
    fn the_hash_stays_the_same_in_every_version() {
        assert_eq!(hash("node1"), 0xf7b8_2da2_c4fb_05b4);
    }
}
