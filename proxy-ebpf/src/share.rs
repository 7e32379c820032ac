//! Which connections are this mode's while the node goes over from IPVS to eBPF, or back.
//!
//! TCP and SCTP connections stay with the mode they began in, datagrams go with the new one at once. What is the other mode's
//! passes untouched: IPVS is in the stack, and asks for no more than that a packet gets there. `SHARE` is fixed when the programs
//! are loaded, so that the verifier removes all of this where a mode serves alone.

use proxy_common::config::{SHARE_ALONE, SHARE_NEWER, SHARE_OLDER, SHARE_TURNED};
use proxy_common::rules::Role;
use proxy_common::selection::BackendRef;

use crate::config::SHARE;
use crate::family::Family;
use crate::flow::{self, Owner, Sender};
use crate::packet::Parsed;
use crate::packet::parse::has_connections;

/// Whether there is no other mode.
#[inline(always)]
pub fn is_alone() -> bool {
    SHARE.load() == SHARE_ALONE
}

/// Whether connections that are not known here may be the other mode's, from before. Then those of this one all have entries, where a
/// director would do without them, too.
#[inline(always)]
pub fn is_newer() -> bool {
    SHARE.load() & !SHARE_TURNED == SHARE_NEWER
}

/// Whether what begins now is the other mode's.
#[inline(always)]
pub fn is_older() -> bool {
    SHARE.load() & !SHARE_TURNED == SHARE_OLDER
}

/// Whether this mode's directors have packets of a protocol for which there is no entry: those of the mode that the node had before it
/// changed for the first time, as long as connections of then may be left.
#[inline(always)]
pub fn owns_unknown(protocol: u8) -> bool {
    let is_turned = SHARE.load() & SHARE_TURNED != 0;
    match SHARE.load() & !SHARE_TURNED {
        SHARE_NEWER => is_turned || !has_connections(protocol),
        SHARE_OLDER => !is_turned && has_connections(protocol),
        _ => true,
    }
}

/// Whether a packet for a frontend is the other mode's, whoever sent it: it `keeps_none` of connections where it is a director's.
#[inline(always)]
pub fn passes<F: Family>(parsed: &Parsed<F::Address>, keeps_none: bool) -> bool {
    match parsed.role() {
        Role::Midstream => is_newer() && began_before::<F>(parsed, keeps_none),
        Role::Datagram => is_older(),
        Role::Opening => false,
    }
}

#[inline(never)]
fn began_before<F: Family>(parsed: &Parsed<F::Address>, keeps_none: bool) -> bool {
    match flow::find::<F>(&parsed.key) {
        Some((found, flow)) if flow::is_client_entry::<F>(flow, &parsed.key) => found.backend.is_none(),
        _ => !(keeps_none && owns_unknown(parsed.key.protocol)),
    }
}

/// Whether a packet is of a connection that began after this mode gave way. One that begins leaves an entry which names no backend: a
/// director that `keeps_none` of connections whose slots are settled could not tell it from its own otherwise.
#[inline(always)]
pub fn passes_newer<F: Family>(parsed: &Parsed<F::Address>, service: u32, keeps_none: bool) -> bool {
    is_older() && began_later::<F>(parsed, service, keeps_none)
}

#[inline(never)]
fn began_later<F: Family>(parsed: &Parsed<F::Address>, service: u32, keeps_none: bool) -> bool {
    match flow::lookup::<F>(parsed, service) {
        Some((found, _)) if found.backend.is_none() => {
            flow::track::<F>(parsed, found, Sender::Client);
            true
        }
        // A SYN that may be forged ends no connection: it goes where that goes.
        Some(_) => false,
        None if parsed.is_syn() => {
            // Where the map refuses, what follows may be taken for an older connection's, and is reset.
            let _ = flow::remember::<F>(parsed, &Owner { backend: BackendRef::NONE, service, flags: 0 });
            true
        }
        None => !(keeps_none && owns_unknown(parsed.key.protocol)),
    }
}
