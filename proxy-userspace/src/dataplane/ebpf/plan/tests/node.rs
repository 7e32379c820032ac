//! A node for packets of a DSR service: the real plan on a fake kernel. A packet's walk through the
//! node uses the rules of the programs.

use std::collections::BTreeMap;
use std::time::Duration;

use proxy_common::Addr4;
use proxy_common::backend::BACKEND_LOCAL;
use proxy_common::flow::{
    FLOW_ANSWERED, FLOW_CLOSING, FLOW_DATAGRAM, FLOW_DECAPSULATED, FLOW_ENCAPSULATE, FLOW_ESTABLISHED,
    FLOW_REPLY, FLOW_REWRITE_DESTINATION, FLOW_REWRITE_SOURCE, FLOW_SYN, Flow, FlowKey,
};
use proxy_common::frontend::{Frontend, SCOPE_EXTERNAL};
use proxy_common::hash::flow_hash;
use proxy_common::rules::Role;
use proxy_common::selection::{BackendRef, ServiceEntry, Slot};
use proxy_common::timeouts::Timeouts;

use super::kernel::{CAPACITIES, FakeKernel};
use super::world::{address, backend, desired, dsr, key, port};
use crate::dataplane::ebpf::plan::{BackendEntry, Plan, SettlingRound};
use crate::model::{Algorithm, Dirty, Family};

/// Short, so that entries expire in a test.
pub const TIMEOUTS: Timeouts = Timeouts { syn: 6, established: 100, closing: 5, datagram: 30 };

/// The number of nodes with endpoints; one more node has none.
pub const HOMES: u8 = 2;

/// Endpoints by number, and whether each is ready. An endpoint that is not ready still exists.
pub type Endpoints = BTreeMap<u8, bool>;

/// How the Service is served.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Whether it has Direct Server Return.
    pub is_dsr: bool,
    /// Whether it has a Maglev table without Direct Server Return, too.
    pub is_maglev: bool,
    /// The length of its Maglev table.
    pub table: u32,
}

impl Default for Shape {
    fn default() -> Self {
        Self { is_dsr: true, is_maglev: true, table: 13 }
    }
}

/// A packet of a client.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    pub key: FlowKey<Addr4>,
    pub role: Role,
    /// The last packet of the connection.
    pub fin: bool,
}

/// The result of a packet's walk through a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The packet reached this local endpoint.
    Served(u8),
    /// The packet goes to another node, for this endpoint.
    Sent {
        endpoint: u8,
        hint: u32,
    },
    /// Like `Sent`, by a node that was not to choose. It does not know the endpoint in the packet,
    /// or gives a second chance.
    Onward {
        endpoint: u8,
        hint: u32,
    },
    /// The packet goes to this endpoint of another node from an address of this one.
    Translated(u8),
    Lost,
}

pub struct Node {
    number: u8,
    pub kernel: FakeKernel,
    plan: Plan,
    embryos: Table,
    established: Table,
    round: Option<SettlingRound>,
    /// The progress of the collector's round.
    stage: u8,
}

impl Node {
    pub fn new(number: u8, now: Duration) -> Self {
        Self {
            number,
            kernel: FakeKernel::default(),
            plan: Plan::adopt(CAPACITIES, FakeKernel::default().found(), now),
            embryos: Table::default(),
            established: Table::default(),
            round: None,
            stage: 0,
        }
    }

    pub fn sync(&mut self, endpoints: &Endpoints, shape: Shape, now: Duration) {
        // Node 0 is the viewer; the others follow in the same order everywhere.
        let seen_from = |endpoint: u8| (home(endpoint) + HOMES + 1 - self.number) % (HOMES + 1);
        let endpoints: Vec<_> = endpoints.iter().map(|(n, ready)| (*n, seen_from(*n), *ready)).collect();
        let mut port = port(0, Family::V4, &endpoints);
        if shape.is_dsr {
            port = dsr(port);
        }
        if shape.is_dsr || shape.is_maglev {
            port.algorithm = Algorithm::Maglev(shape.table);
        }
        let state = desired([(key(0, Family::V4), port)]);
        let dirty = Dirty { ports: [key(0, Family::V4)].into(), ..Dirty::default() };
        self.kernel.begin(now, Vec::new());
        let report = self.plan.sync(&state, &dirty, now, &mut self.kernel);
        assert!(report.is_complete(), "{report:?}");
    }

    /// Kills the agent and starts another one; the maps stay.
    pub fn restart(&mut self, now: Duration) {
        self.plan = Plan::adopt(CAPACITIES, self.kernel.found(), now);
        (self.round, self.stage) = (None, 0);
    }

    /// Advances the collector: a walk through the embryos, one through the other entries, and the
    /// settling. Packets arrive in between.
    pub fn collect(&mut self, now: Duration) {
        self.kernel.begin(now, Vec::new());
        match self.stage {
            0 => {
                self.round = self.plan.begin_round(now);
                self.check_flows(true, now);
            }
            1 => self.check_flows(false, now),
            _ => {
                let established = Duration::from_secs(TIMEOUTS.established.into());
                let Self { round, plan, kernel, .. } = self;
                while round
                    .as_mut()
                    .and_then(|round| plan.settle_next(round, established, now, kernel))
                    .is_some()
                {}
            }
        }
        self.stage = (self.stage + 1) % 3;
    }

    fn check_flows(&mut self, embryos: bool, now: Duration) {
        let table = if embryos { &mut self.embryos } else { &mut self.established };
        table.0.retain(|_, (_, flow)| !expired(flow, now));
        let Some(round) = &mut self.round else { return };
        for (key, flow) in table.0.values() {
            self.plan.check_flow(round, key, flow, now);
        }
    }

    /// Handles a packet from a client.
    pub fn direct(&mut self, packet: &Packet, now: Duration) -> Fate {
        let Some(frontend) = self.frontend() else { return Fate::Lost };
        let slot = self.slot(&packet.key);
        if frontend.needs_no_flow_entry()
            && !slot.is_unsettled()
            && let Some(entry) = self.backend(slot.current())
            && entry.flags & BACKEND_LOCAL == 0
        {
            return sent(entry);
        }
        if let Some((reference, entry)) = self.followed(packet, now)
            && self.backend(reference).is_some_and(|entry| packet.role.keeps(entry.flags))
        {
            let is_translated = self.is_translated(&packet.key);
            self.track(packet, now);
            return match entry.flags & BACKEND_LOCAL {
                0 if is_translated => Fate::Translated(number(entry)),
                0 => sent(entry),
                _ => Fate::Served(number(entry)),
            };
        }
        let owner = match self.former_owner(packet) {
            Some(owner) if packet.role == Role::Midstream => owner,
            _ => slot.owner(packet.role, |settled| Some(self.backend(settled)?.flags)),
        };
        let is_here = self.backend(owner).is_some_and(|entry| entry.flags & BACKEND_LOCAL != 0);
        let exists = |other| self.backend(other).is_some();
        let owner = if is_here && frontend.may_lack_flow_entry() {
            slot.second_chance(owner, packet.role, exists)
        } else {
            owner
        };
        let Some(entry) = self.backend(owner) else { return Fate::Lost };
        if entry.flags & BACKEND_LOCAL == 0 && !frontend.returns_directly(packet.role) {
            self.enter(packet, owner, 0, now);
            self.translate(&packet.key);
            return Fate::Translated(number(entry));
        }
        if entry.flags & BACKEND_LOCAL == 0 {
            self.enter(packet, owner, FLOW_ENCAPSULATE, now);
            return sent(entry);
        }
        self.enter(packet, owner, 0, now);
        Fate::Served(number(entry))
    }

    /// Handles a packet from another node.
    pub fn receive(&mut self, packet: &Packet, hint: u32, sent_on: bool, now: Duration) -> Fate {
        let Some(frontend) = self.frontend().filter(Frontend::may_have_dsr) else { return Fate::Lost };
        let slot = self.slot(&packet.key);
        let hinted = self.kernel.hints.get(&(frontend.service, hint)).copied().unwrap_or(BackendRef::NONE);
        let opens_elsewhere =
            |found: BackendRef| packet.role == Role::Opening && !hinted.is_none() && found != hinted;
        if let Some((reference, entry)) = self.followed(packet, now)
            && packet.role.keeps(entry.flags)
            && entry.flags & BACKEND_LOCAL != 0
            && !opens_elsewhere(reference)
        {
            self.track(packet, now);
            return Fate::Served(number(entry));
        }
        let flags = |settled| Some(self.backend(settled)?.flags);
        let chosen = if hinted.is_none() && hint == 0 {
            slot.owner(packet.role, flags)
        } else if hinted.is_none() {
            slot.owner_instead(packet.role, flags)
        } else if sent_on {
            hinted
        } else {
            slot.second_chance(hinted, packet.role, |other| self.backend(other).is_some())
        };
        let Some(entry) = self.backend(chosen) else { return Fate::Lost };
        if entry.flags & BACKEND_LOCAL != 0 {
            self.enter(packet, chosen, FLOW_DECAPSULATED, now);
            return Fate::Served(number(entry));
        }
        if sent_on { Fate::Lost } else { Fate::Onward { endpoint: number(entry), hint: entry.hint } }
    }

    /// Returns whether the packets of a client follow an entry to another endpoint.
    pub fn leads_elsewhere(&self, packet: &Packet, endpoint: u8, now: Duration) -> bool {
        self.followed(packet, now).is_some_and(|(_, entry)| number(entry) != endpoint)
    }

    /// Returns the owners of a connection's slot.
    pub fn owners(&self, key: &FlowKey<Addr4>) -> Vec<u8> {
        let slot = self.slot(key);
        [slot.current(), slot.settled()]
            .iter()
            .filter_map(|owner| Some(number(self.backend(*owner)?)))
            .collect()
    }

    pub fn unsettled(&self) -> usize {
        self.kernel
            .services
            .keys()
            .flat_map(|id| self.kernel.slice(*id))
            .filter(|slot| slot.is_unsettled())
            .count()
    }

    /// Returns whether the frontend may have connections by Direct Server Return.
    pub fn may_have_dsr(&self) -> bool {
        self.frontend().is_some_and(|frontend| frontend.may_have_dsr())
    }

    /// Returns whether a list has a former table.
    pub fn has_former(&self) -> bool {
        self.kernel.services.values().any(|entry| entry.former().is_some())
    }

    /// Returns the `BACKEND_*` bits of an endpoint.
    pub fn flags(&self, endpoint: u8) -> u8 {
        let wanted = address(endpoint, Family::V4);
        self.kernel.backends.values().find(|entry| entry.address == wanted).map_or(0, |entry| entry.flags)
    }

    /// Returns the slot of a connection; the default without an owner if the list is empty.
    fn slot(&self, key: &FlowKey<Addr4>) -> Slot {
        let entry = self.frontend().and_then(|frontend| self.kernel.services.get(&frontend.service));
        let slot = entry.filter(|entry| entry.length() > 0).map(|entry| entry.slot(flow_hash(key)));
        slot.and_then(|slot| self.kernel.slots.get(&slot)).copied().unwrap_or_default()
    }

    fn frontend(&self) -> Option<Frontend> {
        self.kernel.frontends.iter().find(|(at, _)| at.scope == SCOPE_EXTERNAL).map(|(_, value)| *value)
    }

    /// Returns the owner of a connection in the former table.
    fn former_owner(&self, packet: &Packet) -> Option<BackendRef> {
        let word = self.kernel.services.get(&self.frontend()?.service)?.former()?;
        let former = ServiceEntry(self.kernel.slots.get(&word)?.0);
        let slot = self.kernel.slots.get(&former.slot(flow_hash(&packet.key)))?;
        let owner = slot.owner(packet.role, |settled| Some(self.backend(settled)?.flags));
        self.backend(owner).map(|_| owner)
    }

    fn is_translated(&self, key: &FlowKey<Addr4>) -> bool {
        let flow = self.established.get(key).or_else(|| self.embryos.get(key));
        flow.is_some_and(Flow::is_translated)
    }

    /// Marks the entry of a connection whose client's address is translated.
    fn translate(&mut self, key: &FlowKey<Addr4>) {
        if let Some(flow) = self.embryos.get_mut(key) {
            flow.check = 1;
        }
    }

    fn backend(&self, reference: BackendRef) -> Option<BackendEntry> {
        backend(&self.kernel, Family::V4, reference).copied()
    }

    /// Returns the backend of a connection's entry, if it exists.
    fn followed(&self, packet: &Packet, now: Duration) -> Option<(BackendRef, BackendEntry)> {
        let live = |flow: &&Flow<Addr4>| !expired(flow, now);
        let established = self.established.get(&packet.key).filter(live);
        let flow = established.or_else(|| self.embryos.get(&packet.key).filter(live))?;
        let ended = packet.role == Role::Opening && flow.state == FLOW_CLOSING;
        let reference = BackendRef(flow.backend);
        Some((reference, self.backend(reference).filter(|_| !ended)?))
    }

    fn enter(&mut self, packet: &Packet, owner: BackendRef, flags: u8, now: Duration) {
        let Some(service) = self.frontend().map(|frontend| frontend.service) else { return };
        let Some(entry) = self.backend(owner) else { return };
        let state = match packet.role {
            Role::Opening => FLOW_SYN,
            Role::Midstream => FLOW_ESTABLISHED,
            Role::Datagram => FLOW_DATAGRAM,
        };
        let address = Addr4([u32::from(number(entry))]);
        let flow =
            Flow { backend: owner.0, service, state, flags, last_seen: seconds(now), ..Flow::default() };
        let key = packet.key;
        self.established.remove(&key);
        if flags & FLOW_ENCAPSULATE == 0 {
            let reply_key = FlowKey { source: address, ..key.reversed() };
            let reply = Flow {
                source: key.destination,
                source_port: key.destination_port,
                destination: key.source,
                destination_port: key.source_port,
                flags: flags | FLOW_REPLY | FLOW_REWRITE_SOURCE,
                ..flow
            };
            self.established.remove(&reply_key);
            self.embryos.insert(reply_key, reply);
        }
        let to_pod = if flags & FLOW_ENCAPSULATE == 0 { FLOW_REWRITE_DESTINATION } else { 0 };
        let flow = Flow {
            source: key.source,
            source_port: key.source_port,
            destination: address,
            destination_port: key.destination_port,
            flags: flags | to_pod,
            ..flow
        };
        self.embryos.insert(key, flow);
    }

    fn track(&mut self, packet: &Packet, now: Duration) {
        let promotes = packet.role != Role::Opening;
        let Some(flow) = self.established.get(&packet.key).or_else(|| self.embryos.get(&packet.key)) else {
            return;
        };
        let twin = (flow.flags & FLOW_ENCAPSULATE == 0).then(|| flow.twin(&packet.key));
        for key in [Some(packet.key), twin].into_iter().flatten() {
            if promotes && let Some(mut flow) = self.embryos.remove(&key) {
                flow.state = if flow.state == FLOW_SYN { FLOW_ESTABLISHED } else { flow.state };
                self.established.insert(key, flow);
            }
            let entry = self.established.get_mut(&key).or(self.embryos.get_mut(&key));
            let Some(flow) = entry else { continue };
            flow.last_seen = seconds(now);
            if flow.is_translated() {
                flow.flags |= FLOW_ANSWERED;
            }
            flow.state = if packet.fin { FLOW_CLOSING } else { flow.state };
        }
    }
}

/// Returns the node of an endpoint.
pub const fn home(endpoint: u8) -> u8 {
    endpoint % HOMES
}

fn sent(entry: BackendEntry) -> Fate {
    Fate::Sent { endpoint: number(entry), hint: entry.hint }
}

fn number(entry: BackendEntry) -> u8 {
    (0..=u8::MAX).find(|n| address(*n, Family::V4) == entry.address).unwrap()
}

fn expired(flow: &Flow<Addr4>, now: Duration) -> bool {
    flow.has_expired(&TIMEOUTS, seconds(now))
}

fn seconds(now: Duration) -> u32 {
    u32::try_from(now.as_secs()).unwrap()
}

/// Entries by tuple.
#[derive(Default)]
struct Table(BTreeMap<Tuple, (FlowKey<Addr4>, Flow<Addr4>)>);

type Tuple = ([u32; 2], [u16; 2], u8);

impl Table {
    fn get(&self, key: &FlowKey<Addr4>) -> Option<&Flow<Addr4>> {
        self.0.get(&tuple(key)).map(|(_, flow)| flow)
    }
    fn get_mut(&mut self, key: &FlowKey<Addr4>) -> Option<&mut Flow<Addr4>> {
        self.0.get_mut(&tuple(key)).map(|(_, flow)| flow)
    }
    fn insert(&mut self, key: FlowKey<Addr4>, flow: Flow<Addr4>) {
        self.0.insert(tuple(&key), (key, flow));
    }
    fn remove(&mut self, key: &FlowKey<Addr4>) -> Option<Flow<Addr4>> {
        self.0.remove(&tuple(key)).map(|(_, flow)| flow)
    }
}

fn tuple(key: &FlowKey<Addr4>) -> Tuple {
    ([key.source.0[0], key.destination.0[0]], [key.source_port, key.destination_port], key.protocol)
}
