//! The rules that are compared. Each gets the same events and the same packets.

use std::rc::Rc;

use proxy_common::rules::Role;

use super::endpoints::{Endpoint, Node, Snapshot};

/// A client's packet.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    /// The number of its connection.
    pub connection: usize,
    /// The hash of its tuple.
    pub hash: u32,
    /// Its role in the connection.
    pub role: Role,
}

/// Where a packet ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// At this endpoint, as a packet of the client.
    Served(Endpoint),
    /// At this endpoint, as a packet of another source address: no packet of a connection it has.
    Strange(Endpoint),
    /// Nowhere.
    Lost,
}

/// The nodes of a cluster, with the rules of one kind.
pub trait Balancer {
    /// A node's agent has seen this state of the EndpointSlices.
    fn see(&mut self, node: Node, snapshot: &Rc<Snapshot>);

    /// A node has lost its tables, and sees this state first.
    fn reset(&mut self, node: Node, snapshot: &Rc<Snapshot>);

    /// Handles a packet that the router sends to a director.
    fn deliver(&mut self, director: Node, packet: Packet, homes: &[Node]) -> Fate;

    /// A connection has ended.
    fn forget(&mut self, connection: usize);

    /// Returns the number of flow entries on directors.
    fn entries(&self, homes: &[Node]) -> usize;

    /// Does the work of a full round of each node's collector.
    fn collect(&mut self) {}
}

/// The flow entries of all nodes, by connection.
#[derive(Debug, Default)]
pub struct Entries {
    of: Vec<Vec<Entry>>,
    /// How often each node lost its tables.
    losses: Vec<u32>,
}

/// A flow entry on a node.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The node that has it.
    pub node: Node,
    /// The endpoint in it.
    pub endpoint: Endpoint,
    losses: u32,
}

impl Entries {
    /// Returns no entries on this number of nodes.
    pub fn new(nodes: usize) -> Self {
        Self { of: Vec::new(), losses: vec![0; nodes] }
    }

    /// Returns the endpoint in a node's entry of a connection.
    pub fn get(&self, node: Node, connection: usize) -> Option<Endpoint> {
        self.all_of(connection).find(|entry| entry.node == node).map(|entry| entry.endpoint)
    }

    /// Writes a node's entry of a connection.
    pub fn set(&mut self, node: Node, connection: usize, endpoint: Endpoint) {
        if self.of.len() <= connection {
            self.of.resize(connection + 1, Vec::new());
        }
        let losses = self.losses.get(node).copied().unwrap_or(0);
        let Some(entries) = self.of.get_mut(connection) else { return };
        entries.retain(|entry| entry.node != node);
        entries.push(Entry { node, endpoint, losses });
    }

    /// Removes all entries of a node.
    pub fn lose(&mut self, node: Node) {
        if let Some(losses) = self.losses.get_mut(node) {
            *losses += 1;
        }
    }

    /// Removes all entries of a connection.
    pub fn forget(&mut self, connection: usize) {
        if let Some(entries) = self.of.get_mut(connection) {
            *entries = Vec::new();
        }
    }

    /// Returns the entries of a connection.
    pub fn all_of(&self, connection: usize) -> impl Iterator<Item = Entry> {
        let entries = self.of.get(connection).into_iter().flatten().copied();
        entries.filter(|entry| self.losses.get(entry.node) == Some(&entry.losses))
    }

    /// Returns the entries of all connections with their numbers.
    pub fn all(&self) -> impl Iterator<Item = (usize, Entry)> {
        (0..self.of.len())
            .flat_map(|connection| self.all_of(connection).map(move |entry| (connection, entry)))
    }

    /// Returns the number of entries on nodes other than that of the endpoint.
    pub fn on_directors(&self, homes: &[Node]) -> usize {
        let is_elsewhere = |entry: &Entry| homes.get(entry.endpoint as usize) != Some(&entry.node);
        self.all().filter(|(_, entry)| is_elsewhere(entry)).count()
    }
}
