//! Millrace with Direct Server Return: slots with a current and a settled owner.
//!
//! The owners change, and packets find theirs, by [`proxy_common::rules`], as in the plan and in
//! the programs.

use std::rc::Rc;

use proxy_common::rules::{LastChange, Role};
use proxy_common::selection::{ServiceEntry, Slot};

use super::balancer::{Balancer, Entries, Fate, Packet};
use super::endpoints::{Endpoint, Node, Snapshot, endpoint, reference};

/// All nodes. Each is a director, and may be an endpoint's node.
pub struct Millrace {
    nodes: Vec<View>,
    entries: Entries,
    /// The hash of each connection.
    hashes: Vec<u32>,
    service: ServiceEntry,
}

/// What a node knows.
#[derive(Clone, Default)]
struct View {
    snapshot: Rc<Snapshot>,
    slots: Vec<Slot>,
}

/// A director's decision about a packet.
enum Choice {
    Here(Endpoint),
    Sent(Endpoint),
    Lost,
}

impl Millrace {
    /// Returns nodes whose tables have `length` slots.
    pub fn new(nodes: usize, length: u32) -> Self {
        let service = ServiceEntry::new(0, length, 0);
        Self {
            nodes: vec![View::default(); nodes],
            entries: Entries::new(nodes),
            hashes: Vec::new(),
            service,
        }
    }

    fn slot(&self, node: Node, hash: u32) -> Slot {
        let slots = self.nodes.get(node).map(|view| &view.slots);
        slots.and_then(|slots| slots.get(self.service.slot(hash) as usize)).copied().unwrap_or_default()
    }

    fn exists(&self, node: Node, endpoint: Endpoint) -> bool {
        self.nodes.get(node).is_some_and(|view| view.snapshot.exists(endpoint))
    }

    fn flags(&self, node: Node, owner: proxy_common::selection::BackendRef) -> Option<u8> {
        self.nodes.get(node)?.snapshot.flags(endpoint(owner)?)
    }

    fn followed(&self, node: Node, packet: Packet) -> Option<Endpoint> {
        let found = self.entries.get(node, packet.connection)?;
        let keeps = self.nodes.get(node)?.snapshot.flags(found).is_some_and(|flags| packet.role.keeps(flags));
        keeps.then_some(found)
    }

    /// A client's packet at its director.
    fn direct(&mut self, node: Node, packet: Packet, homes: &[Node]) -> Choice {
        let is_here = |owner: Endpoint| homes.get(owner as usize) == Some(&node);
        let slot = self.slot(node, packet.hash);
        let current = endpoint(slot.current()).filter(|current| self.exists(node, *current));
        if let Some(current) = current.filter(|current| !slot.is_unsettled() && !is_here(*current)) {
            return Choice::Sent(current);
        }
        if let Some(found) = self.followed(node, packet) {
            return if is_here(found) { Choice::Here(found) } else { Choice::Sent(found) };
        }
        let exists = |owner| self.flags(node, owner).is_some();
        let owner = slot.owner(packet.role, |settled| self.flags(node, settled));
        let has_it = endpoint(owner).is_some_and(is_here);
        let owner = if has_it { slot.second_chance(owner, packet.role, exists) } else { owner };
        let Some(owner) = endpoint(owner).filter(|owner| self.exists(node, *owner)) else {
            return Choice::Lost;
        };
        self.enter(node, packet, owner);
        if is_here(owner) { Choice::Here(owner) } else { Choice::Sent(owner) }
    }

    /// An encapsulated packet at the node of the endpoint in its hint. The packet is sent on once
    /// at most.
    fn receive(&mut self, packet: Packet, hinted: Endpoint, sent_on: bool, homes: &[Node]) -> Fate {
        let Some(node) = homes.get(hinted as usize).copied() else { return Fate::Lost };
        let is_here = |owner: Endpoint| homes.get(owner as usize) == Some(&node);
        let knows = self.exists(node, hinted);
        if let Some(found) = self.followed(node, packet) {
            let opens_elsewhere = packet.role == Role::Opening && knows && found != hinted;
            if is_here(found) && !opens_elsewhere {
                return Fate::Served(found);
            }
            if !is_here(found) && packet.role == Role::Midstream && !sent_on {
                return self.receive(packet, found, true, homes);
            }
        }
        let slot = self.slot(node, packet.hash);
        let chosen = match (knows, sent_on) {
            (true, true) => reference(hinted),
            (true, false) => {
                let exists = |owner| self.flags(node, owner).is_some();
                slot.second_chance(reference(hinted), packet.role, exists)
            }
            (false, _) => slot.owner_instead(packet.role, |settled| self.flags(node, settled)),
        };
        let Some(chosen) = endpoint(chosen).filter(|chosen| self.exists(node, *chosen)) else {
            return Fate::Lost;
        };
        if is_here(chosen) {
            self.enter(node, packet, chosen);
            return Fate::Served(chosen);
        }
        if sent_on {
            return Fate::Lost;
        }
        if packet.role == Role::Opening {
            self.enter(node, packet, chosen);
        }
        self.receive(packet, chosen, true, homes)
    }

    fn enter(&mut self, node: Node, packet: Packet, endpoint: Endpoint) {
        self.entries.set(node, packet.connection, endpoint);
        if self.hashes.len() <= packet.connection {
            self.hashes.resize(packet.connection + 1, 0);
        }
        if let Some(hash) = self.hashes.get_mut(packet.connection) {
            *hash = packet.hash;
        }
    }
}

impl Balancer for Millrace {
    fn see(&mut self, node: Node, snapshot: &Rc<Snapshot>) {
        let Some(view) = self.nodes.get_mut(node) else { return };
        view.snapshot = Rc::clone(snapshot);
        let exists = |owner| endpoint(owner).is_some_and(|owner| snapshot.exists(owner));
        for (slot, owner) in view.slots.iter_mut().zip(snapshot.table()) {
            *slot = slot.change_owner(reference(*owner), exists);
        }
    }

    fn reset(&mut self, node: Node, snapshot: &Rc<Snapshot>) {
        self.entries.lose(node);
        if let Some(view) = self.nodes.get_mut(node) {
            *view = View { slots: vec![Slot::default(); snapshot.table().len()], snapshot: Rc::default() };
        }
        self.see(node, snapshot);
    }

    fn deliver(&mut self, director: Node, packet: Packet, homes: &[Node]) -> Fate {
        match self.direct(director, packet, homes) {
            Choice::Here(owner) => Fate::Served(owner),
            Choice::Sent(owner) => self.receive(packet, owner, false, homes),
            Choice::Lost => Fate::Lost,
        }
    }

    fn forget(&mut self, connection: usize) {
        self.entries.forget(connection);
    }

    fn entries(&self, homes: &[Node]) -> usize {
        self.entries.on_directors(homes)
    }

    /// Settles slots by rule 5. No change is older than the established time-out here.
    fn collect(&mut self) {
        let mut disputed = vec![Vec::new(); self.nodes.len()];
        for (connection, entry) in self.entries.all() {
            let Some(hash) = self.hashes.get(connection) else { continue };
            let disagrees = endpoint(self.slot(entry.node, *hash).current()) != Some(entry.endpoint);
            if disagrees && self.exists(entry.node, entry.endpoint) {
                disputed.get_mut(entry.node).into_iter().for_each(|of| of.push(self.service.slot(*hash)));
            }
        }
        for (view, disputed) in self.nodes.iter_mut().zip(&mut disputed) {
            disputed.sort_unstable();
            for (at, slot) in (0..).zip(&mut view.slots) {
                if slot.is_unsettled() && disputed.binary_search(&at).is_err() {
                    *slot = slot.settle(LastChange::Recent);
                }
            }
        }
    }
}
