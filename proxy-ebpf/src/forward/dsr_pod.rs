//! Direct Server Return to pods that take the outer header off themselves (`--dsr-dispatch pod`): the header
//! names the pod.
//!
//! As in `snat`, the stage that chooses a backend stores a flow entry and ends. The functions here begin anew
//! from the frame.

use proxy_common::backend::Backend;
use proxy_common::flow::FLOW_ENCAPSULATE;
use proxy_common::fragment::Side;
use proxy_common::frontend::Frontend;
use proxy_common::selection::BackendRef;
use proxy_common::verdict::Reason;
use proxy_common::way::{WAY_IPV4, Way};

use crate::flow::{self, Owner, handoff};
use crate::forward::outer;
use crate::forward::route::{self, NextHop};
use crate::header::ETHERNET;
use crate::maps::family::{Family, KeyOf};
use crate::maps::v4::V4;
use crate::maps::{self, config, observe};
use crate::packet::ip::Header;
use crate::packet::{Packet, Parsed};
use crate::parse::parse_then;
use crate::select::backend;
use crate::verdict::{Decision, HAND_TO_TC, NO_ROOM, Verdict};

/// Whether a client's packet goes to the pod of a backend; if so, stores the backend for [`send`].
///
/// `FLOW_ENCAPSULATE` means that the packet opens a connection that needs an entry.
#[inline(always)]
pub fn prepare<F: Family>(
    backend: &Backend<F::Address>,
    key: &KeyOf<F>,
    reference: BackendRef,
    frontend: &Frontend,
    flags: u8,
) -> bool {
    backend.is_pod() && store_handoff::<F>(backend.port, key, reference, frontend, flags)
}

#[inline(never)]
fn store_handoff<F: Family>(
    port: u16,
    key: &KeyOf<F>,
    reference: BackendRef,
    frontend: &Frontend,
    flags: u8,
) -> bool {
    let Some(scratch) = F::scratch().filter(|_| backend::has_pods_port::<F>(port, key)) else {
        return false;
    };
    // SAFETY: this CPU's own, and no other program of ours runs on it before this packet is done with.
    unsafe {
        (*scratch).backend = reference.0;
        (*scratch).service = frontend.port_service();
        (*scratch).flags = flags;
    }
    true
}

/// Sends a client's packet, encapsulated, to the stored pod.
#[inline(never)]
pub fn send<P: Packet, F: Header>(mut packet: P) -> Verdict {
    parse_then::<P, F>(&mut packet, Side::Uplink, send_parsed::<P, F>)
}

#[inline(always)]
fn send_parsed<P: Packet, F: Header>(packet: &mut P, parsed: &Parsed<F::Address>) -> Decision {
    let noted = handoff::load::<F>()?;
    let owner = Owner { backend: BackendRef(noted.backend), service: noted.service, flags: noted.flags };
    let verdict = encapsulate::<P, F>(packet, parsed, owner.backend)?;
    // Remember last: a packet handed to TC must not be remembered here, or TC would not see a first packet.
    if owner.flags & FLOW_ENCAPSULATE != 0 {
        flow::remember::<F>(parsed, &owner)?;
    }
    observe::count_service(owner.service, packet.length());
    Ok(verdict)
}

/// Puts the outer header on.
///
/// The hint in it is for a node that takes the header off after all, and could not find the backend without
/// it.
#[inline(always)]
pub fn encapsulate<P: Packet, F: Header>(
    packet: &mut P,
    parsed: &Parsed<F::Address>,
    reference: BackendRef,
) -> Decision {
    let backend = F::backend(reference).ok_or(Verdict::Drop(Reason::NoBackend))?;
    if parsed.hop_limit <= 1 {
        return Err(Verdict::Refuse(Reason::HopLimit, backend.way));
    }
    let between = config::tunnel_header_bytes();
    let outer = F::HEADER + between;
    let size = packet.largest_packet(parsed, outer);
    let mut next = NextHop::default();
    let source =
        find::<P, F>(packet, reference, size, &mut next).map_err(|verdict| within(verdict, outer))?;
    F::decrement_hop_limit(packet, ETHERNET).ok_or(NO_ROOM)?;
    packet.push_outer(parsed.transport(), outer).map_err(|_| NO_ROOM)?;
    let flags = if F::HEADER == V4::HEADER { WAY_IPV4 } else { 0 };
    let way = Way { source: F::map(source), target: F::map(&backend.address), flags, ..Way::default() };
    outer::write_outer::<P, F>(packet, parsed, &way, &next, backend.hint, between)?;
    Ok(Verdict::Send(Reason::SentDsr, next.device))
}

/// Takes the outer headers' bytes off the size in a verdict, for the packet inside.
#[inline(always)]
fn within(verdict: Verdict, outer: usize) -> Verdict {
    match verdict {
        Verdict::Refuse(Reason::TooBig, mtu) => {
            Verdict::Refuse(Reason::TooBig, mtu.saturating_sub(outer as u32))
        }
        verdict => verdict,
    }
}

/// Finds the route to a pod and the source address, for a packet of `size` bytes.
#[inline(always)]
fn find<P: Packet, F: Family>(
    packet: &P,
    reference: BackendRef,
    size: u32,
    next: &mut NextHop,
) -> Result<&'static F::Address, Verdict> {
    let backend = F::backend(reference).ok_or(Verdict::Drop(Reason::NoBackend))?;
    if backend.is_local() {
        find_here::<P, F>(packet, &backend.address, size, next)?;
        return Ok(&handoff::load::<F>()?.source);
    }
    let hop = route::hop::<P, F>(packet, reference, &backend.address)?;
    if size > u32::from(hop.mtu) {
        return Err(Verdict::Refuse(Reason::TooBig, u32::from(hop.mtu)));
    }
    *next = NextHop::of_hop(hop);
    Ok(&hop.source)
}

/// As [`find`], for a pod of this node.
///
/// The source is not that of the pod's device, which may have no address, but that of the device the packet
/// came in by. No device of pods has XDP.
#[inline(never)]
fn find_here<P: Packet, F: Family>(
    packet: &P,
    pod: &F::Address,
    size: u32,
    next: &mut NextHop,
) -> Result<(), Verdict> {
    if packet.needs_xdp_way() {
        return Err(HAND_TO_TC);
    }
    let scratch = F::scratch().ok_or(NO_ROOM)?;
    // SAFETY: copied at once.
    let device =
        unsafe { maps::DEVICES.get(packet.device()).copied() }.ok_or(Verdict::Drop(Reason::NoWay))?;
    // SAFETY: this CPU's own, and no other program of ours runs on it before this packet is done with.
    let route = unsafe { &mut *scratch };
    (route.source, route.destination) = (F::source_of(&device), *pod);
    route::to_client::<P, F>(packet, route, size, next)
}
