//! Which connections are this mode's while the node goes over from IPVS to eBPF, or back.
//!
//! TCP and SCTP connections stay with the mode they began in, datagrams go with the new one at once. What is the other mode's
//! passes untouched: IPVS is in the stack, and asks for no more than that a packet gets there. `SHARE` is fixed when the programs
//! are loaded, so that the verifier removes all of this where a mode serves alone.

use proxy_common::config::{SHARE_ALONE, SHARE_NEWER, SHARE_OLDER, SHARE_TURNED};
use proxy_common::fragment::Side;
use proxy_common::rules::Role;
use proxy_common::selection::BackendRef;

use crate::flow::{self, Owner, Sender};
use crate::header::ETHERNET;
use crate::maps::config::SHARE;
use crate::maps::family::Family;
use crate::packet::parsed::{has_connections, parse};
use crate::packet::{Packet, Parsed};
use crate::verdict::{Leave, NO_ROOM, UNTOUCHED, Verdict};

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

/// Leaves what belongs to a connection that began after this mode gave way. One that begins, and each that is known to have, is noted
/// where the walk has left the stack: a director that `keeps_none` of connections could not tell them from its own otherwise.
#[inline(always)]
pub fn keep_older<F: Family>(
    parsed: &Parsed<F::Address>,
    service: u32,
    keeps_none: bool,
) -> Result<(), Leave> {
    if !is_older() {
        return Ok(());
    }
    match age::<F>(parsed, service) {
        KNOWN => Ok(()),
        UNKNOWN if keeps_none && owns_unknown(parsed.key.protocol) => Ok(()),
        UNKNOWN => Err(UNTOUCHED.into()),
        _ => {
            let scratch = F::scratch().ok_or(NO_ROOM)?;
            // SAFETY: this CPU's own, and no other program of ours runs on it before this packet is done with.
            unsafe { (&raw mut (*scratch).service).write(service) };
            Err(Leave::Note)
        }
    }
}

/// This mode has the connection.
const KNOWN: u32 = 0;
/// Nobody has an entry of it.
const UNKNOWN: u32 = 1;
/// It began after this mode gave way, or begins.
const LATER: u32 = 2;

/// A SYN that may be forged ends no connection: it goes where that goes.
#[inline(never)]
fn age<F: Family>(parsed: &Parsed<F::Address>, service: u32) -> u32 {
    match flow::lookup::<F>(parsed, service) {
        Some((found, _)) if found.backend.is_none() => LATER,
        Some(_) => KNOWN,
        None if parsed.is_syn() => LATER,
        None => UNKNOWN,
    }
}

/// Enters a connection of the other mode's without a backend, or renews its entry. Where the map refuses, what follows may be taken for
/// an older connection's, and is reset.
#[inline(never)]
pub fn note<P: Packet, F: Family>(packet: P) -> Verdict {
    let Some(scratch) = F::scratch() else {
        return NO_ROOM;
    };
    // SAFETY: as in `keep_older`.
    let service = unsafe { (&raw const (*scratch).service).read() };
    if let Ok(parsed) = parse::<P, F>(&packet, ETHERNET, Side::Uplink) {
        if let Some((found, _)) = flow::lookup::<F>(&parsed, service) {
            flow::track::<P, F>(&packet, &parsed, found, Sender::Client);
        } else {
            let owner = Owner { backend: BackendRef::NONE, service, flags: 0 };
            let _ = flow::remember::<F>(&parsed, &owner);
        }
    }
    UNTOUCHED
}
