//! Session affinity: a client keeps the backend of its last connection.

use aya_ebpf::bindings::BPF_ANY;
use proxy_common::affinity::{AFFINITY_CLIENT, Affinity, AffinityKey};
use proxy_common::backend::Backend;
use proxy_common::frontend::{FRONTEND_AFFINITY, FRONTEND_DSR, Frontend};
use proxy_common::hash::{client_hash, mix};
use proxy_common::rules::Role;
use proxy_common::selection::{BackendRef, HintKey, Slot};

use crate::flow::{self, Found, Sender};
use crate::maps::family::Family;
use crate::maps::{self, clock};
use crate::packet::shape::used;
use crate::packet::{Packet, Parsed};
use crate::select::backend;

/// The backend of a connection that has no flow entry.
///
/// It is the client's own backend, else the slot's owner. A client whose affinity has ended gets a new one.
#[inline(always)]
pub fn choose<F: Family>(frontend: &Frontend, parsed: &Parsed<F::Address>, slot: Slot) -> BackendRef {
    let owner = backend::owner::<F>(slot, parsed);
    if frontend.flags & FRONTEND_AFFINITY == 0 {
        return owner;
    }
    keep::<F>(frontend, parsed, owner)
}

/// Not inlined: the entry would stay on the walk's stack.
#[inline(never)]
fn keep<F: Family>(frontend: &Frontend, parsed: &Parsed<F::Address>, owner: BackendRef) -> BackendRef {
    let client = (parsed.key.source, AFFINITY_CLIENT);
    let asks = match parsed.role() {
        Role::Opening => Asks::Anew,
        Role::Midstream => Asks::Again,
        Role::Datagram => Asks::AndEnters,
    };
    recall::<F>(frontend, client, owner, asks)
}

/// Renews a flow entry for a client's packet, as [`flow::track`].
///
/// A client gets a backend of its own once its first connection is more than a SYN. Forged SYNs would
/// otherwise fill the map and evict all clients.
#[inline(always)]
pub fn track<P: Packet, F: Family>(
    packet: &P,
    parsed: &Parsed<F::Address>,
    found: Found,
    frontend: &Frontend,
) {
    if flow::track::<P, F>(packet, parsed, found, Sender::Client) && frontend.flags & FRONTEND_AFFINITY != 0 {
        used(enter::<F>(frontend, parsed));
    }
}

/// Gives a client the backend of a connection that was established just now; returns whether it did.
///
/// It looks the connection up once more: the walk's stack has no room to remember it.
#[inline(never)]
fn enter<F: Family>(frontend: &Frontend, parsed: &Parsed<F::Address>) -> bool {
    let Some((found, _)) = flow::lookup::<F>(parsed, frontend) else {
        return false;
    };
    let key = key_of::<F>(frontend, (parsed.key.source, AFFINITY_CLIENT));
    let entry = Affinity { backend: found.backend.0, service: key.service, last_used: clock::now() };
    // If the map refuses the entry, the next connection goes by its slot, like every client's first.
    F::affinity().insert(&key, &entry, BPF_ANY.into()).is_ok()
}

/// One service port has one affinity over all its frontends.
#[inline(always)]
fn key_of<F: Family>(frontend: &Frontend, (client, kind): (F::Address, u32)) -> AffinityKey<F::Address> {
    AffinityKey { client, service: frontend.port_service(), kind }
}

/// The purpose of asking for a client's backend.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Asks {
    /// A packet of a connection without an entry here, which may be older than the affinity.
    Again,
    /// A connection begins.
    Anew,
    /// A connection begins, and the client keeps that backend from now on.
    AndEnters,
}

/// The last backend of a client of this kind, else the owner of its slot.
///
/// A client whose affinity has ended gets any backend of the list. The hash of its last entry chooses it, so
/// connections opened at once get the same one. A director keeps to the slot, which all directors know.
#[inline(always)]
pub fn recall<F: Family>(
    frontend: &Frontend,
    client: (F::Address, u32),
    owner: BackendRef,
    asks: Asks,
) -> BackendRef {
    let key = key_of::<F>(frontend, client);
    let (service, now) = (key.service, clock::now());
    // SAFETY: copied at once; `service` shows an entry of another key.
    let kept = unsafe { F::affinity().get(&key).copied() }.unwrap_or_default();
    let is_known = kept.service == service && kept.backend != 0;
    let holds = kept.holds(service, now, frontend.affinity_seconds);
    let goes_on = is_known && (holds || asks == Asks::Again);
    let had = if goes_on { BackendRef(kept.backend) } else { BackendRef::NONE };
    let chosen = if suits::<F>(frontend, had) {
        had
    } else if is_known && !holds && asks != Asks::Again && frontend.flags & FRONTEND_DSR == 0 {
        anew::<F>(frontend, &key.client, kept.last_used)
    } else {
        owner
    };
    let entry = Affinity { backend: chosen.0, service, last_used: now };
    // A socket that is not connected asks with each datagram, so write at most once a second.
    if asks == Asks::AndEnters && !chosen.is_none() && entry != kept {
        // As in `enter`.
        let _ = F::affinity().insert(&key, &entry, BPF_ANY.into());
    }
    chosen
}

#[inline(always)]
fn anew<F: Family>(frontend: &Frontend, client: &F::Address, last_used: u32) -> BackendRef {
    match backend::lookup_slice(frontend) {
        Some(service) => {
            let hash = mix(u64::from(client_hash(client)) << 32 | u64::from(last_used)) as u32;
            backend::slot_of(service, hash).current()
        }
        None => BackendRef::NONE,
    }
}

/// Whether a client may keep its backend: the list it asks for must still have it.
///
/// A director's packets can name the backend to its node only by a hint.
#[inline(always)]
fn suits<F: Family>(frontend: &Frontend, kept: BackendRef) -> bool {
    // SAFETY: copied at once; the reference carries a generation.
    let member = unsafe { maps::HINTS.get(HintKey::member(frontend.service, kept)).copied() };
    if kept.is_none() || member != Some(kept.0) {
        return false;
    }
    let is_reached = |backend: &Backend<F::Address>| {
        backend.is_local() || backend.hint != 0 || frontend.flags & FRONTEND_DSR == 0
    };
    F::backend(kept).is_some_and(is_reached)
}
