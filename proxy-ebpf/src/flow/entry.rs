//! Flow entries: look-up and creation.
//!
//! The programs make, renew and close the entries of both directions together, so that neither outlives the
//! other.

use proxy_common::flow::{
    FLOW_CLOSING, FLOW_DECAPSULATED, FLOW_ENCAPSULATE, FLOW_FIN_BACKEND, FLOW_FIN_CLIENT, FLOW_OUTER_IPV6,
    Flow,
};
use proxy_common::frontend::Frontend;
use proxy_common::selection::BackendRef;
use proxy_common::timeouts::limits_index;

use crate::maps::family::{Endpoint, Family, FlowOf, KeyOf};
use crate::maps::v4::V4;
use crate::maps::v6::V6;
use crate::maps::{clock, config};
use crate::packet::Parsed;
use crate::packet::shape::{is_below, opaque};

/// The parts of a live entry that a walk needs; the rest stays in the map.
#[derive(Clone, Copy)]
pub struct Found {
    /// The backend that serves the connection.
    pub backend: BackendRef,
    /// The entry's `FLOW_*` bits in bits 0 to 7, the marks below, and the client's port in bits 16 to 31: the
    /// walks have no room for a word each.
    word: u32,
}

impl Found {
    /// Mark: it is still in FLOWS_NEW.
    const EMBRYO: u32 = 1 << 8;
    /// Mark: the client's address is translated (SNAT).
    const TRANSLATED: u32 = 1 << 9;
    /// Mark: a packet writes its time into the entry.
    const DUE: u32 = 1 << 10;
    const PORT_SHIFT: u32 = 16;

    /// The port the backend knows the client by, network byte order.
    #[inline(always)]
    pub const fn client_port(self) -> u16 {
        (self.word >> Self::PORT_SHIFT) as u16
    }
    /// Whether any of these `FLOW_*` bits is set.
    #[inline(always)]
    pub const fn has(self, bits: u8) -> bool {
        self.word & bits as u32 != 0
    }
    /// Whether a packet writes its time into the entry.
    #[inline(always)]
    pub const fn is_due(self) -> bool {
        self.word & Self::DUE != 0
    }
    /// Whether the client's packets come in encapsulated.
    #[inline(always)]
    pub const fn is_decapsulated(self) -> bool {
        self.has(FLOW_DECAPSULATED)
    }
    /// Whether this node encapsulates the client's packets.
    #[inline(always)]
    pub const fn is_encapsulated(self) -> bool {
        self.has(FLOW_ENCAPSULATE)
    }
    /// Whether both sides have sent their FIN.
    #[inline(always)]
    pub const fn has_finished(self) -> bool {
        const BOTH: u32 = (FLOW_FIN_CLIENT | FLOW_FIN_BACKEND) as u32;
        self.word & BOTH == BOTH
    }
    /// Whether the client has not yet answered in it.
    #[inline(always)]
    pub const fn is_embryo(self) -> bool {
        self.word & Self::EMBRYO != 0
    }
    /// Whether the backend knows the client by an address of this node.
    #[inline(always)]
    pub const fn is_translated(self) -> bool {
        self.word & Self::TRANSLATED != 0
    }
    /// The value of a trace's [`Step::Flow`](proxy_common::trace::Step::Flow).
    #[inline(always)]
    pub const fn traced(self) -> u32 {
        self.word & (Self::EMBRYO | 0xff)
    }
    /// Bytes of the outer headers that the client's packets come in with.
    ///
    /// The entry has no room to say whether one is UDP's, so this node's own setting decides. All nodes have
    /// the same, except for the minutes of a switch.
    #[inline(always)]
    pub fn outer_headers(self) -> u16 {
        let network = if self.has(FLOW_OUTER_IPV6) { V6::HEADER } else { V4::HEADER };
        (network + config::tunnel_header_bytes()) as u16
    }
}

/// The sender of the packet that renews an entry.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Sender {
    /// The client.
    Client,
    /// The backend.
    Backend,
}

/// The live entry for a client's packet to a Service.
///
/// None if the packet opens a new connection that happens to have the ports of one that has ended.
#[inline(always)]
pub fn lookup<F: Family>(
    parsed: &Parsed<F::Address>,
    frontend: &Frontend,
) -> Option<(Found, &'static FlowOf<F>)> {
    lookup_if::<F>(parsed, |service| frontend.owns_flows_of(service))
}

/// As [`lookup`], of a Service whose entries' id the caller tells.
#[inline(always)]
pub fn lookup_if<F: Family>(
    parsed: &Parsed<F::Address>,
    is_services: impl FnOnce(u32) -> bool,
) -> Option<(Found, &'static FlowOf<F>)> {
    let (found, flow) = find::<F>(&parsed.key)?;
    let ended = flow.state == FLOW_CLOSING || flow.flags & FLOW_FIN_CLIENT != 0;
    let belongs = is_services(flow.service) && flow.is_clients(&parsed.key);
    (belongs && !(parsed.is_syn() && ended)).then_some((found, flow))
}

/// The live entry for a backend's reply, with the frontend that becomes its source and the client's own port.
#[inline(always)]
pub fn lookup_reply<F: Family>(parsed: &Parsed<F::Address>) -> Option<(Found, Endpoint<F>, u16)> {
    let (found, flow) = find::<F>(&parsed.key)?;
    let frontend = (flow.source, flow.source_port);
    flow.is_reply(&parsed.key).then_some((found, frontend, flow.destination_port))
}

/// The live entry for a reply from a backend on another node to this one. It holds frontend and client.
#[inline(always)]
pub fn lookup_translated<F: Family>(key: &KeyOf<F>) -> Option<(Found, &'static FlowOf<F>)> {
    find::<F>(key).filter(|(found, flow)| found.is_translated() && flow.is_reply(key))
}

/// The live entry, of either direction, for packets with a quoted tuple.
#[inline(always)]
pub fn lookup_quoted<F: Family>(key: &KeyOf<F>) -> Option<&'static FlowOf<F>> {
    let (_, flow) = find::<F>(key)?;
    (flow.is_clients(key) || flow.is_reply(key)).then_some(flow)
}

#[inline(always)]
pub fn find<F: Family>(key: &KeyOf<F>) -> Option<(Found, &'static FlowOf<F>)> {
    // SAFETY: the memory is the map's for the program's run; callers check whose entry it is.
    if let Some(flow) = unsafe { F::flows().get(key) }
        && let Some(found) = live::<F>(flow, false)
    {
        return Some((found, flow));
    }
    // SAFETY: as above.
    let flow = unsafe { F::flows_new().get(key) }?;
    live::<F>(flow, true).map(|found| (found, flow))
}

#[inline(always)]
fn live<F: Family>(flow: &FlowOf<F>, embryo: bool) -> Option<Found> {
    let Flow { backend, last_seen, state, flags, check, source_port, .. } = *flow;
    let translated = is_below(0, check.into());
    // Linux 6.1 loses the bounds of the parts, so LLVM must not put them together behind the remainder.
    let index = opaque(limits_index(state, flags, translated as usize) as u64);
    let limits = config::flow_limits(index as usize);
    // Less than zero if the clock of another CPU is a tick ahead.
    let silence = i64::from(clock::now()) - i64::from(last_seen);
    if silence > i64::from(limits.expiry) {
        return None;
    }
    let word = u32::from(flags)
        | if embryo { Found::EMBRYO } else { 0 }
        | (translated * Found::TRANSLATED)
        | (is_below(limits.renewal.into(), silence) * Found::DUE)
        | (u32::from(source_port) << Found::PORT_SHIFT);
    Some(Found { backend: BackendRef(backend), word })
}
