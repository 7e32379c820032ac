//! Session affinity: a client keeps the backend of its last connection.

use aya_ebpf::bindings::BPF_ANY;
use proxy_common::affinity::{AFFINITY_CLIENT, Affinity, AffinityKey};
use proxy_common::backend::Backend;
use proxy_common::frontend::{FRONTEND_AFFINITY, FRONTEND_DSR, Frontend};
use proxy_common::selection::{BackendRef, HintKey, Slot};

use crate::balance;
use crate::family::Family;
use crate::flow;
use crate::maps;
use crate::packet::Parsed;

/// The backend of a connection that has no flow entry: the client's own, or else the slot's owner, which is the client's own
/// from then on.
#[inline(always)]
pub fn choose<F: Family>(frontend: &Frontend, parsed: &Parsed<F::Address>, slot: Slot) -> BackendRef {
    let owner = balance::owner::<F>(slot, parsed);
    if frontend.flags & FRONTEND_AFFINITY == 0 {
        return owner;
    }
    keep::<F>(frontend, parsed, owner)
}

/// A function of its own: the entry would stay on the walk's stack.
#[inline(never)]
fn keep<F: Family>(frontend: &Frontend, parsed: &Parsed<F::Address>, owner: BackendRef) -> BackendRef {
    let client = (parsed.key.source, AFFINITY_CLIENT);
    // Only what opens a connection renews it.
    let renews = !parsed.is_midstream();
    recall::<F>(frontend, client, owner, renews)
}

/// The backend that a client, of this kind, had last; or else the owner of its slot.
#[inline(always)]
pub fn recall<F: Family>(
    frontend: &Frontend,
    (client, kind): (F::Address, u32),
    owner: BackendRef,
    renews: bool,
) -> BackendRef {
    // One service port has one affinity over all its frontends.
    let service = if frontend.cluster_service != 0 { frontend.cluster_service } else { frontend.service };
    let key = AffinityKey { client, service, kind };
    let now = flow::now();
    // SAFETY: copied at once; what is of another key is told by its service.
    let kept = unsafe { F::affinity().get(&key).copied() }.unwrap_or_default();
    let holds = kept.holds(service, now, frontend.affinity_seconds);
    let had = if holds { BackendRef(kept.backend) } else { BackendRef::NONE };
    let chosen = if suits::<F>(frontend, had) { had } else { owner };
    let entry = Affinity { backend: chosen.0, service, last_used: now };
    // A socket that is not connected asks with each datagram: once a second is enough.
    if renews && !chosen.is_none() && entry != kept {
        // Where the map refuses, the next connection goes by its slot, as does everybody's first.
        let _ = F::affinity().insert(&key, &entry, BPF_ANY.into());
    }
    chosen
}

/// Whether a client may go on with its backend: while the list it asks for has it. A director's packets can name it to its
/// node only by a hint.
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
    balance::lookup_backend::<F>(kept).is_some_and(is_reached)
}
