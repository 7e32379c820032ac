//! The rules of others: Maglev with and without flow entries, and kube-proxy's random choice.

use std::rc::Rc;

use proxy_common::rules::Role;
use proxy_common::selection::ServiceEntry;

use super::balancer::{Balancer, Entries, Fate, Packet};
use super::endpoints::{Endpoint, Node, Snapshot};
use super::random::Random;

/// Whether a director remembers its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Each packet goes to the owner of its slot.
    None,
    /// A packet with a flow entry goes to the entry's endpoint while that exists.
    Flows,
}

/// Maglev: each director sends a packet to the owner of its slot.
pub struct Maglev {
    views: Vec<Rc<Snapshot>>,
    entries: Entries,
    memory: Memory,
    service: ServiceEntry,
}

impl Maglev {
    /// Returns directors whose tables have `length` slots.
    pub fn new(nodes: usize, length: u32, memory: Memory) -> Self {
        let service = ServiceEntry::new(0, length, 0);
        Self { views: vec![Rc::default(); nodes], entries: Entries::new(nodes), memory, service }
    }
}

impl Balancer for Maglev {
    fn see(&mut self, node: Node, snapshot: &Rc<Snapshot>) {
        if let Some(view) = self.views.get_mut(node) {
            *view = Rc::clone(snapshot);
        }
    }

    fn reset(&mut self, node: Node, snapshot: &Rc<Snapshot>) {
        self.entries.lose(node);
        self.see(node, snapshot);
    }

    fn deliver(&mut self, director: Node, packet: Packet, _homes: &[Node]) -> Fate {
        let Some(view) = self.views.get(director) else { return Fate::Lost };
        let found = self.entries.get(director, packet.connection).filter(|found| view.exists(*found));
        if let Some(found) = found {
            return Fate::Served(found);
        }
        let slot = self.service.slot(packet.hash) as usize;
        let Some(owner) = view.table().get(slot).copied() else { return Fate::Lost };
        if self.memory == Memory::Flows {
            self.entries.set(director, packet.connection, owner);
        }
        Fate::Served(owner)
    }

    fn forget(&mut self, connection: usize) {
        self.entries.forget(connection);
    }

    fn entries(&self, homes: &[Node]) -> usize {
        self.entries.on_directors(homes)
    }
}

/// kube-proxy: a random endpoint for each connection, and the kernel's connection tracking on each
/// node.
///
/// The node masquerades, since the endpoint may be on another node. A connection that moves to
/// another node is therefore a stranger to every endpoint there.
pub struct KubeProxy {
    views: Vec<Rc<Snapshot>>,
    tracked: Entries,
    random: Random,
}

impl KubeProxy {
    /// Returns nodes with an empty connection tracking.
    pub fn new(nodes: usize, seed: u64) -> Self {
        Self { views: vec![Rc::default(); nodes], tracked: Entries::new(nodes), random: Random::new(seed) }
    }

    fn choose(&mut self, node: Node) -> Option<Endpoint> {
        let ready = self.views.get(node)?.ready();
        ready.get(self.random.below(ready.len())).copied()
    }
}

impl Balancer for KubeProxy {
    fn see(&mut self, node: Node, snapshot: &Rc<Snapshot>) {
        if let Some(view) = self.views.get_mut(node) {
            *view = Rc::clone(snapshot);
        }
    }

    fn reset(&mut self, node: Node, snapshot: &Rc<Snapshot>) {
        self.tracked.lose(node);
        self.see(node, snapshot);
    }

    fn deliver(&mut self, director: Node, packet: Packet, _homes: &[Node]) -> Fate {
        if let Some(found) = self.tracked.get(director, packet.connection) {
            return Fate::Served(found);
        }
        let Some(chosen) = self.choose(director) else { return Fate::Lost };
        self.tracked.set(director, packet.connection, chosen);
        if packet.role == Role::Opening { Fate::Served(chosen) } else { Fate::Strange(chosen) }
    }

    fn forget(&mut self, connection: usize) {
        self.tracked.forget(connection);
    }

    fn entries(&self, homes: &[Node]) -> usize {
        self.tracked.on_directors(homes)
    }
}
