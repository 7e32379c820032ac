//! Connections of the other mode, while the node changes its mode.

use proxy_common::fragment::Side;
use proxy_common::selection::BackendRef;

use crate::flow::{self, Owner, Sender};
use crate::header::ETHERNET;
use crate::packet::Packet;
use crate::packet::ip::Header;
use crate::parse::parse;
use crate::verdict::{NO_ROOM, UNTOUCHED, Verdict};

/// Enters a connection of the other mode without a backend, or renews its entry.
///
/// If the map refuses the entry, later packets may count as an older connection's, and are reset.
#[inline(never)]
pub fn track<P: Packet, F: Header>(packet: P) -> Verdict {
    let Some(scratch) = F::scratch() else {
        return NO_ROOM;
    };
    // SAFETY: as in `mode_change::check_owner`.
    let service = unsafe { (&raw const (*scratch).service).read() };
    if let Ok(parsed) = parse::<P, F>(&packet, ETHERNET, Side::Uplink) {
        if let Some((found, _)) = flow::lookup_if::<F>(&parsed, |other| other == service) {
            flow::track::<P, F>(&packet, &parsed, found, Sender::Client);
        } else {
            let owner = Owner { backend: BackendRef::NONE, service, flags: 0 };
            let _ = flow::remember::<F>(&parsed, &owner);
        }
    }
    UNTOUCHED
}
