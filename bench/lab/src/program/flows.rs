//! Flow entries of both families, in a readable form.

use std::net::SocketAddr;

use proxy_common::answer::{ANSWERS_ENTRIES, ANSWERS_ROW, Answer};
use proxy_common::config::{PORT_GROUP, PORT_GROUPS};
use proxy_common::flow::{FLOW_ANSWERED, FLOW_REPLY, Flow, FlowKey};
use proxy_common::hash::flow_hash;
use proxy_common::selection::BackendRef;
use proxy_common::{Addr4, Addr6};

use super::Bed;
use super::maps::FamilyMaps;
use crate::frame::{FIRST_NUMBER, Frame};

/// One of the flow tables; each is a pair of maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowTable {
    /// `FLOWS_NEW4/6`.
    New,
    /// `FLOWS4/6`.
    Established,
}

impl FlowTable {
    const fn map(self) -> &'static str {
        match self {
            Self::New => "FLOWS_NEW",
            Self::Established => "FLOWS",
        }
    }
}

/// An entry of a flow table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowEntry {
    /// The packet's source.
    pub source: SocketAddr,
    /// The packet's destination.
    pub destination: SocketAddr,
    /// IP protocol number.
    pub protocol: u8,
    /// The rewritten source.
    pub new_source: SocketAddr,
    /// The rewritten destination.
    pub new_destination: SocketAddr,
    /// The backend.
    pub backend: BackendRef,
    /// The service id that the backend was chosen for.
    pub service: u32,
    /// Monotonic second of the last packet.
    pub last_seen: u32,
    /// `FLOW_*` state.
    pub state: u8,
    /// `FLOW_*` bits.
    pub flags: u8,
    /// The fingerprint of the key with SNAT.
    pub check: u16,
}

impl Bed {
    /// Returns all entries of a table, both families.
    #[must_use]
    pub fn flows(&self, table: FlowTable) -> Vec<FlowEntry> {
        let mut entries = self.family_flows::<Addr4>(table);
        entries.extend(self.family_flows::<Addr6>(table));
        entries
    }

    /// Returns the entry of a frame's innermost tuple.
    #[must_use]
    pub fn flow_of(&self, table: FlowTable, frame: &Frame) -> Option<FlowEntry> {
        let tuple = (frame.source(), frame.destination());
        self.flows(table).into_iter().find(|entry| (entry.source, entry.destination) == tuple)
    }

    /// Copies the entries of a bed with the same Services, written in the same order, as if this
    /// bed adopted its maps.
    pub fn take_flows_of(&self, former: &Self) {
        for map in ["FLOWS_NEW", "FLOWS"] {
            self.copy_flows_of::<Addr4>(former, map);
            self.copy_flows_of::<Addr6>(former, map);
        }
        for group in 0..PORT_GROUPS {
            let served = former.get::<[u8; PORT_GROUP as usize]>("SERVED_PORTS", group);
            self.set::<[u8; PORT_GROUP as usize]>("SERVED_PORTS", group, served);
        }
    }

    fn copy_flows_of<A: FamilyMaps>(&self, former: &Self, map: &str)
    where
        FlowKey<A>: aya::Pod,
        Flow<A>: aya::Pod,
    {
        for (key, flow) in former.entries::<FlowKey<A>, Flow<A>>(&A::map(map)) {
            self.insert::<FlowKey<A>, Flow<A>>(&A::map(map), key, flow);
        }
    }

    /// Ages every entry by `seconds`.
    pub fn age_flows(&self, seconds: u32) {
        self.rewrite_flows(|flow| flow.last_seen = flow.last_seen.saturating_sub(seconds));
    }

    /// Changes every entry.
    pub fn rewrite_flows(&self, change: impl Fn(&mut FlowEntry)) {
        for table in [FlowTable::New, FlowTable::Established] {
            self.rewrite_family::<Addr4>(table, &change);
            self.rewrite_family::<Addr6>(table, &change);
        }
    }

    /// Answers all new connections as their backends would: the client's next packet confirms its
    /// connection.
    pub fn answer_all(&self) {
        let answered =
            |entry: &mut FlowEntry| entry.flags |= if entry.check == 0 { 0 } else { FLOW_ANSWERED };
        self.rewrite_family::<Addr4>(FlowTable::New, &answered);
        self.rewrite_family::<Addr6>(FlowTable::New, &answered);
        self.note_answers(|hash| Answer::first(hash, FIRST_NUMBER + 1));
    }

    /// Removes the answers of all backends to unconfirmed connections.
    pub fn forget_answers(&self) {
        self.note_answers(|_| Answer::default());
    }

    fn note_answers(&self, answer: impl Fn(u32) -> Answer) {
        let hashes = self.hashes_of_replies::<Addr4>().into_iter().chain(self.hashes_of_replies::<Addr6>());
        for hash in hashes {
            let index = hash % ANSWERS_ENTRIES;
            let mut row = self.get::<[u64; ANSWERS_ROW]>("ANSWERS", index);
            let own = row.iter().position(|word| Answer(*word).is_of(hash));
            let place = own.or_else(|| row.iter().position(|word| *word == 0)).unwrap_or_default();
            row[place] = answer(hash).0;
            self.set::<[u64; ANSWERS_ROW]>("ANSWERS", index, row);
        }
    }

    fn hashes_of_replies<A: FamilyMaps>(&self) -> Vec<u32>
    where
        FlowKey<A>: aya::Pod,
        Flow<A>: aya::Pod,
    {
        let embryos = self.raw_flows::<A>(FlowTable::New).into_iter();
        embryos.filter(|(_, flow)| flow.flags & FLOW_REPLY != 0).map(|(key, _)| flow_hash(&key)).collect()
    }

    /// Removes every entry.
    pub fn forget_flows(&self) {
        self.forget_flows_where(|_| true);
    }

    /// Removes the entry of a frame's innermost tuple, as an LRU map may do at any time.
    pub fn forget_flow(&self, frame: &Frame) {
        let tuple = (frame.source(), frame.destination());
        self.forget_flows_where(|entry| (entry.source, entry.destination) == tuple);
    }

    fn forget_flows_where(&self, which: impl Fn(&FlowEntry) -> bool) {
        for table in [FlowTable::New, FlowTable::Established] {
            self.forget_family::<Addr4>(table, &which);
            self.forget_family::<Addr6>(table, &which);
        }
    }

    /// Records a connection of the node's own, or one that the kernel translates, by the ends of its incoming packets.
    pub fn note_node_flow(&self, protocol: u8, source: SocketAddr, destination: SocketAddr) {
        if source.is_ipv4() {
            self.note_family::<Addr4>(protocol, source, destination);
        } else {
            self.note_family::<Addr6>(protocol, source, destination);
        }
    }

    fn note_family<A: FamilyMaps>(&self, protocol: u8, source: SocketAddr, destination: SocketAddr)
    where
        FlowKey<A>: aya::Pod,
    {
        let address = |at: SocketAddr| A::from_ip(at.ip()).expect("both ends of one family");
        let key = FlowKey {
            source: address(source),
            source_port: source.port().to_be(),
            destination: address(destination),
            destination_port: destination.port().to_be(),
            protocol,
            ..FlowKey::default()
        };
        self.insert::<FlowKey<A>, u32>(&A::map("NODE_FLOWS"), key, 0);
    }

    fn raw_flows<A: FamilyMaps>(&self, table: FlowTable) -> Vec<(FlowKey<A>, Flow<A>)>
    where
        FlowKey<A>: aya::Pod,
        Flow<A>: aya::Pod,
    {
        self.entries(&A::map(table.map()))
    }

    fn family_flows<A: FamilyMaps>(&self, table: FlowTable) -> Vec<FlowEntry>
    where
        FlowKey<A>: aya::Pod,
        Flow<A>: aya::Pod,
    {
        self.raw_flows::<A>(table).into_iter().map(|(key, flow)| entry(&key, &flow)).collect()
    }

    fn rewrite_family<A: FamilyMaps>(&self, table: FlowTable, change: impl Fn(&mut FlowEntry))
    where
        FlowKey<A>: aya::Pod,
        Flow<A>: aya::Pod,
    {
        for (key, mut flow) in self.raw_flows::<A>(table) {
            let mut view = entry(&key, &flow);
            let before = view;
            change(&mut view);
            // Writing an entry takes a node of the map, which may belong to another entry.
            if view == before {
                continue;
            }
            flow.source_port = view.new_source.port().to_be();
            flow.destination_port = view.new_destination.port().to_be();
            flow.backend = view.backend.0;
            flow.service = view.service;
            flow.last_seen = view.last_seen;
            flow.state = view.state;
            flow.flags = view.flags;
            flow.check = view.check;
            self.insert::<FlowKey<A>, Flow<A>>(&A::map(table.map()), key, flow);
        }
    }

    fn forget_family<A: FamilyMaps>(&self, table: FlowTable, which: impl Fn(&FlowEntry) -> bool)
    where
        FlowKey<A>: aya::Pod,
        Flow<A>: aya::Pod,
    {
        for (key, _) in self.raw_flows::<A>(table).iter().filter(|(key, flow)| which(&entry(key, flow))) {
            self.remove::<FlowKey<A>, Flow<A>>(&A::map(table.map()), key);
        }
    }
}

fn entry<A: FamilyMaps>(key: &FlowKey<A>, flow: &Flow<A>) -> FlowEntry {
    let socket = |address: A, port: u16| SocketAddr::new(address.to_ip(), u16::from_be(port));
    FlowEntry {
        source: socket(key.source, key.source_port),
        destination: socket(key.destination, key.destination_port),
        protocol: key.protocol,
        new_source: socket(flow.source, flow.source_port),
        new_destination: socket(flow.destination, flow.destination_port),
        backend: BackendRef(flow.backend),
        service: flow.service,
        last_seen: flow.last_seen,
        state: flow.state,
        flags: flow.flags,
        check: flow.check,
    }
}
