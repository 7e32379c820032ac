//! Picks the node that reports a problem that all nodes see.

use std::collections::BTreeMap;

use proxy_common::hash::mix;

/// The cluster's nodes. All agents know the same ones, and so pick the same node without talking to
/// each other.
#[derive(Debug)]
pub(super) struct Electorate {
    own: String,
    /// The hash of each node's name, by name.
    nodes: BTreeMap<String, u64>,
}

impl Electorate {
    /// Returns an electorate that counts `own` as a node, with or without a Node object.
    pub fn new(own: &str) -> Self {
        Self { own: own.to_owned(), nodes: BTreeMap::from([(own.to_owned(), hash(own))]) }
    }
    pub fn add(&mut self, node: &str) {
        if !self.nodes.contains_key(node) {
            self.nodes.insert(node.to_owned(), hash(node));
        }
    }
    /// Takes out a node that may have no agent. It may be this one.
    pub fn retire(&mut self, node: &str) {
        self.nodes.remove(node);
    }
    pub fn remove(&mut self, node: &str) {
        if node != self.own {
            self.nodes.remove(node);
        }
    }
    /// Returns whether this node reports the problems of this object.
    ///
    /// Rendezvous hashing spreads the objects over the nodes. A node that comes or goes changes
    /// only its own.
    pub fn elects_this_node(&self, uid: &str) -> bool {
        let uid = hash(uid);
        let rank = |node: u64| mix(uid ^ node);
        if !self.nodes.is_empty() && !self.nodes.contains_key(&self.own) {
            return false;
        }
        let own = (rank(hash(&self.own)), &self.own);
        self.nodes.iter().all(|(name, node)| own <= (rank(*node), name))
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
            let mut electorate = Electorate::new(own);
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
        let mut electorate = Electorate::new("node1");
        assert!(electorate.elects_this_node("any"));
        electorate.remove("node1");
        assert!(electorate.elects_this_node("any"));
    }

    #[test]
    fn a_node_that_retires_leaves_the_telling_to_others_if_there_are_any() {
        let mut electorate = Electorate::new("node1");
        electorate.retire("node1");
        assert!(electorate.elects_this_node("any"), "there is no other node");
        let mut others = electorates(&NODES);
        for electorate in &mut others {
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
