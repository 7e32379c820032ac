//! The connections of this mode while the node changes from IPVS to eBPF, or back.
//!
//! TCP and SCTP connections stay with the mode they began in; datagrams go with the new one at once. Packets
//! of the other mode pass untouched: IPVS is in the stack, and only needs to get them. `SHARE` is fixed when
//! the programs are loaded, so the verifier removes all of this code if a mode serves alone.

use proxy_common::frontend::Frontend;
use proxy_common::rules::Role;

use crate::flow;
use crate::maps::family::Family;
use crate::maps::mode::{is_newer, is_older, owns_unknown};
use crate::packet::Parsed;
use crate::verdict::{NO_ROOM, NextStage, UNTOUCHED, Verdict};

/// The frontend of a client's packet as `admit` shows it to the client, if this mode serves the packet.
///
/// After this mode has given way, the other mode decides which clients it serves.
#[inline(always)]
pub fn claim<F: Family>(
    parsed: &Parsed<F::Address>,
    frontend: Frontend,
    admit: impl FnOnce(Frontend) -> Result<Frontend, Verdict>,
) -> Result<Frontend, NextStage> {
    if is_other_modes::<F>(parsed, frontend.may_lack_flow_entry()) {
        return Err(UNTOUCHED.into());
    }
    let frontend = admit(frontend).map_err(|refusal| if is_older() { UNTOUCHED } else { refusal })?;
    if is_older() {
        check_owner::<F>(parsed, &frontend)?;
    }
    Ok(frontend)
}

/// Whether a packet for a frontend is the other mode's, whichever side sent it.
///
/// A director's connections `may_lack_entry`.
#[inline(always)]
fn is_other_modes<F: Family>(parsed: &Parsed<F::Address>, may_lack_entry: bool) -> bool {
    match parsed.role() {
        Role::Midstream => is_newer() && began_before::<F>(parsed, may_lack_entry),
        Role::Datagram => is_older(),
        Role::Opening => false,
    }
}

#[inline(never)]
fn began_before<F: Family>(parsed: &Parsed<F::Address>, may_lack_entry: bool) -> bool {
    match flow::find::<F>(&parsed.key) {
        Some((found, flow)) if flow.is_clients(&parsed.key) => found.backend.is_none(),
        _ => !(may_lack_entry && owns_unknown(parsed.key.protocol)),
    }
}

/// Leaves a packet to the other mode if its connection began after this mode gave way.
///
/// `other_mode` enters such a connection, in a stage with a stack of its own. A director, whose connections
/// may lack an entry, could otherwise not tell it from its own.
#[inline(always)]
fn check_owner<F: Family>(parsed: &Parsed<F::Address>, frontend: &Frontend) -> Result<(), NextStage> {
    match age::<F>(parsed, frontend) {
        KNOWN => Ok(()),
        UNKNOWN if frontend.may_lack_flow_entry() && owns_unknown(parsed.key.protocol) => Ok(()),
        UNKNOWN => Err(UNTOUCHED.into()),
        _ => {
            let scratch = F::scratch().ok_or(NO_ROOM)?;
            // SAFETY: this CPU's own, and no other program of ours runs on it until this packet is finished.
            unsafe { (&raw mut (*scratch).service).write(frontend.port_service()) };
            Err(NextStage::TrackOtherMode)
        }
    }
}

/// This mode has the connection.
const KNOWN: u32 = 0;
/// No map has an entry of it.
const UNKNOWN: u32 = 1;
/// It begins now, or began after this mode gave way.
const LATER: u32 = 2;

/// The age of a packet's connection by its flow entry: `KNOWN`, `UNKNOWN` or `LATER`.
///
/// A SYN may be forged, so it ends no connection: it goes where the connection goes.
#[inline(never)]
fn age<F: Family>(parsed: &Parsed<F::Address>, frontend: &Frontend) -> u32 {
    match flow::lookup::<F>(parsed, frontend) {
        Some((found, _)) if found.backend.is_none() => LATER,
        Some(_) => KNOWN,
        None if parsed.is_syn() => LATER,
        None => UNKNOWN,
    }
}
