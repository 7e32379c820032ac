//! Flow entries, and the reply keys and SNAT ports that new ones would take.

use proxy_common::Address;
use proxy_common::config::global;
use proxy_common::flow::{
    FLOW_CLOSING, FLOW_DATAGRAM, FLOW_ESTABLISHED, FLOW_FIN_BACKEND, FLOW_FIN_CLIENT, FLOW_SYN, Flow, FlowKey,
};
use proxy_common::frontend::Frontend;
use proxy_common::hash::{flow_hash, mix};
use proxy_common::selection::BackendRef;
use proxy_common::timeouts::{FLOW_QUIET, silence};
use proxy_common::verdict::Reason;

use super::packet::Packet;
use super::step::Verdict;
use super::text::{age, at, endpoint};
use super::walker::{Part, Past, Walker};
use crate::dataplane::ebpf::read::Tables;

/// Ports that a connection's hash names before the programs search all.
const SNAT_TRIES: u32 = 8;
/// Entries of SNAT_FULL, and milliseconds for which one counts.
const SNAT_FULL_ENTRIES: u32 = 1 << 10;
const SNAT_PAUSE: u32 = 100;
/// Tries to give a client another port, and their distance.
const PORT_TRIES: u16 = 4;
const PORT_STEP: u16 = 0x6d2b;

/// A live entry.
#[derive(Clone, Copy, Debug)]
pub struct Found<A> {
    pub flow: Flow<A>,
    /// Whether it is still in FLOWS_NEW.
    pub is_new: bool,
}

impl<A> Found<A> {
    pub const fn backend(&self) -> BackendRef {
        BackendRef(self.flow.backend)
    }
}

impl<A: Address, T: Tables<A>> Walker<'_, A, T> {
    /// Returns the live entry of a key, as the programs find it.
    pub fn find(&mut self, key: &FlowKey<A>) -> Option<Found<A>> {
        self.keys.flows.push(*key);
        let live = |flow: &Flow<A>| {
            let expiry = self.tables.constants().limits(flow.limits_index()).expiry;
            i64::from(self.now) - i64::from(flow.last_seen) <= i64::from(expiry)
        };
        let settled = self.tables.flow(key).filter(live).map(|flow| Found { flow, is_new: false });
        settled.or_else(|| self.tables.new_flow(key).filter(live).map(|flow| Found { flow, is_new: true }))
    }

    /// Returns the entry of a client's packet to a Service.
    pub fn lookup(&mut self, packet: &Packet<A>, frontend: &Frontend) -> Option<Found<A>> {
        if self.past == Past::Ignored {
            return None;
        }
        let found = self.find(&packet.key)?;
        let flow = &found.flow;
        let has_ended = flow.state == FLOW_CLOSING || flow.flags & FLOW_FIN_CLIENT != 0;
        let belongs = frontend.owns_flows_of(flow.service) && flow.is_clients(&packet.key);
        (belongs && !(packet.is_syn() && has_ended)).then_some(found)
    }

    /// Returns the entry of a reply to a client whose address is translated.
    pub fn lookup_translated(&mut self, key: &FlowKey<A>) -> Option<Found<A>> {
        self.find(key).filter(|found| found.flow.is_translated() && found.flow.is_reply(key))
    }

    /// Adds the step of the entry.
    pub fn note_flow(&mut self, found: Option<&Found<A>>) {
        let text = match found {
            None => "none: the connection is new to this node".to_owned(),
            Some(found) => {
                let backend = self.backend(found.backend()).map(|backend| endpoint(&backend));
                let backend = backend.map_or_else(String::new, |backend| format!(" to {backend}"));
                let snat = if found.flow.is_translated() {
                    format!(" from {}", at(found.flow.source, found.flow.source_port))
                } else {
                    String::new()
                };
                let idle = silence(found.flow.last_seen, self.now);
                format!("{}{backend}{snat}, silent for {}", state(found), age(idle.into()))
            }
        };
        self.note("flow", text, "FLOWS*, FLOWS_NEW*");
    }

    /// Ends the walk if a new connection to a backend on this node finds no reply key.
    pub fn create(&mut self, packet: &Packet<A>, backend: (A, u16)) -> Part<()> {
        let key = packet.key;
        if packet.is_reset() {
            return Ok(());
        }
        let mut reply = reply_key(&key, backend, (key.source, key.source_port));
        let Some(other) = self.holder(&reply, &key) else { return Ok(()) };
        let mut port = u16::from_be(key.source_port);
        for _ in 0..PORT_TRIES {
            port = port.wrapping_add(PORT_STEP) | 0x0400;
            reply.destination_port = port.to_be();
            if self.holder(&reply, &key).is_none() {
                let text =
                    format!("the client's port becomes {port}: its own belongs to a connection to {other}");
                self.note("port", text, "FLOWS*, FLOWS_NEW*");
                return Ok(());
            }
        }
        let why = format!("the client has live connections with the same replies, one to {other}");
        Err(Verdict::new(Reason::ReplyKeyInUse, why).into())
    }

    /// Returns the frontend of another live connection with a reply key.
    fn holder(&mut self, reply: &FlowKey<A>, key: &FlowKey<A>) -> Option<String> {
        let other = self.find(reply)?.flow;
        let is_other = other.source != key.destination || other.source_port != key.destination_port;
        (other.state != FLOW_CLOSING && is_other).then(|| at(other.source, other.source_port))
    }

    /// Returns the port of this node for a new connection from `source`; `None` if the programs choose it in a search.
    pub fn snat_port(&mut self, packet: &Packet<A>, backend: (A, u16), source: A) -> Part<Option<u16>> {
        let hash = flow_hash(&packet.key);
        if packet.is_reset() {
            return Ok(Some(self.snat_port_of(hash)));
        }
        let mut reply = reply_key(&packet.key, backend, (source, 0));
        let (mut tried, mut best) = (hash, (Worth::TAKEN, 0));
        for _ in 0..SNAT_TRIES {
            let port = self.snat_port_of(tried);
            reply.destination_port = port;
            let worth = self.worth(&packet.key, &reply);
            best = if worth > best.0 { (worth, port) } else { best };
            if worth == Worth::FREE {
                break;
            }
            tried = mix(u64::from(tried) + 1) as u32;
        }
        if best.0.is_quiet() {
            return Ok(Some(best.1));
        }
        reply.destination_port = 0;
        let destination = flow_hash(&reply);
        let index = destination % SNAT_FULL_ENTRIES;
        self.keys.snat_full.push(index);
        let full = self.tables.snat_full(index);
        let (tag, is_recent) =
            ((full >> 32) as u32, self.tables.milliseconds().wrapping_sub(full as u32) < SNAT_PAUSE);
        let is_lent = best.0 != Worth::TAKEN;
        // Read in any case: the run has no other ports than these, and may take the time of the last search for past.
        let has_port = self.has_port(&packet.key, &mut reply);
        if is_recent && is_lent {
            return Ok(Some(best.1));
        }
        let is_paused = is_recent && tag == destination;
        if has_port && !is_paused { Ok(None) } else { Err(self.no_port(backend)) }
    }

    /// Returns whether a port of the range is left to a new connection. Looks at all of them.
    fn has_port(&mut self, key: &FlowKey<A>, reply: &mut FlowKey<A>) -> bool {
        let first = self.constant(global::SNAT_PORT_FIRST);
        let mut has_port = false;
        for port in first..first + self.constant(global::SNAT_PORT_COUNT) {
            reply.destination_port = (port as u16).to_be();
            has_port |= self.worth(key, reply) != Worth::TAKEN;
        }
        has_port
    }

    fn no_port(&self, backend: (A, u16)) -> super::step::End {
        let ports = self.constant(global::SNAT_PORT_COUNT);
        let why =
            format!("all {ports} ports of --snat-ports towards {} are in use", at(backend.0, backend.1));
        Verdict::new(Reason::SnatPorts, why).into()
    }

    /// Returns a port of the range for SNAT, network byte order.
    fn snat_port_of(&self, hash: u32) -> u16 {
        let count = u64::from(self.constant(global::SNAT_PORT_COUNT));
        let above = (u64::from(hash) * count) >> 32;
        (self.constant(global::SNAT_PORT_FIRST) as u16).wrapping_add(above as u16).to_be()
    }

    /// Returns whether a connection that the kernel translates has a reply key.
    fn is_kernels(&mut self, reply: &FlowKey<A>) -> bool {
        let is_kernels = self.is_newer() && self.tables.node_flow(reply).is_some();
        if is_kernels {
            self.keys.node_flows.push(*reply);
        }
        is_kernels
    }

    /// Returns what a reply key is worth to a new connection.
    fn worth(&mut self, key: &FlowKey<A>, reply: &FlowKey<A>) -> Worth {
        const BOTH: u8 = FLOW_FIN_CLIENT | FLOW_FIN_BACKEND;
        let Some(found) = self.find(reply) else {
            return if self.is_kernels(reply) { Worth::TAKEN } else { Worth::FREE };
        };
        let flow = &found.flow;
        if flow.is_twin_of(key) {
            return Worth::FREE;
        }
        let silence = silence(flow.last_seen, self.now);
        let is_quiet = silence >= FLOW_QUIET;
        let has_ended = flow.state == FLOW_CLOSING && (is_quiet || flow.flags & BOTH == BOTH);
        if !(found.is_new || has_ended || flow.state == FLOW_DATAGRAM) {
            return Worth::TAKEN;
        }
        let seconds = 1 + silence.min(Worth::LONGEST);
        Worth(if found.is_new && is_quiet { Worth::ABANDONED + seconds } else { seconds })
    }
}

/// The worth of a SNAT port to a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Worth(u32);

impl Worth {
    const TAKEN: Self = Self(0);
    const FREE: Self = Self(0xffff);
    const LONGEST: u32 = 0xfe;
    const ABANDONED: u32 = 0x100;

    const fn is_quiet(self) -> bool {
        self.0 > FLOW_QUIET
    }
}

/// Returns the key of a backend's replies to a client.
fn reply_key<A: Address>(key: &FlowKey<A>, backend: (A, u16), client: (A, u16)) -> FlowKey<A> {
    FlowKey {
        source: backend.0,
        source_port: backend.1,
        destination: client.0,
        destination_port: client.1,
        protocol: key.protocol,
        ..FlowKey::default()
    }
}

fn state<A>(found: &Found<A>) -> &'static str {
    match (found.flow.state, found.is_new) {
        (FLOW_SYN, _) => "unconfirmed",
        (FLOW_ESTABLISHED, true) => "established, unconfirmed",
        (FLOW_ESTABLISHED, false) => "established",
        (FLOW_CLOSING, _) => "closing",
        (FLOW_DATAGRAM, _) => "datagrams",
        _ => "unknown",
    }
}
