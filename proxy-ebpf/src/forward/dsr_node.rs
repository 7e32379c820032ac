//! Direct Server Return: the director encapsulates a packet and sends it to the backend's node.

use proxy_common::backend::Backend;
use proxy_common::trace::Step;
use proxy_common::verdict::Reason;

use crate::forward::outer::{header_of, write_outer};
use crate::forward::{path_mtu, route};
use crate::header::ETHERNET;
use crate::maps::config;
use crate::packet::ip::Header;
use crate::packet::{Packet, Parsed};
use crate::trace;
use crate::verdict::{Decision, NO_ROOM, Verdict};

/// Sends a client's packet to the node of `backend`, encapsulated.
#[inline(always)]
pub fn send<P: Packet, F: Header>(
    packet: &mut P,
    parsed: &Parsed<F::Address>,
    backend: &Backend<F::Address>,
) -> Decision {
    let way = route::lookup_way(backend.way)?;
    trace::step(Step::Way, backend.way);
    if parsed.hop_limit <= 1 {
        return Err(Verdict::Refuse(Reason::HopLimit, backend.way));
    }
    let between = config::tunnel_header_bytes();
    let outer = header_of(way) + between;
    let size = packet.largest_packet(parsed, outer);
    if size > u32::from(way.mtu) {
        path_mtu::check(backend.way, size, outer as u32)?;
    }
    let next = route::resolve(packet, way)?;
    F::decrement_hop_limit(packet, ETHERNET).ok_or(NO_ROOM)?;
    packet.push_outer(parsed.transport(), outer).map_err(|_| NO_ROOM)?;
    write_outer::<P, F>(packet, parsed, way, &next, backend.hint, between)?;
    Ok(next.send(Reason::SentDsr))
}
