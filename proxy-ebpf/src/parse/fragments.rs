//! Fragments: only the first one of a packet has the ports. The programs identify the others by the entry
//! that it left.

use aya_ebpf::bindings::{BPF_ANY, BPF_NOEXIST};
use proxy_common::addr::Address;
use proxy_common::fragment::{FragmentKey, FragmentOf, FragmentWord};
use proxy_common::way::PEER_SELF;

use crate::flow;
use crate::header::has_ports;
use crate::maps::family::{Family, KeyOf};
use crate::maps::{clock, mode, peers};
use crate::packet::findings::Findings;
use crate::select::{backend, vip};

/// Enters a first fragment, if its packet may be for a Service and no other fragment came before; returns its
/// own ports.
///
/// Foreign packets take no room, except those for this node, whose later fragments would otherwise be held.
#[inline(always)]
pub fn enter<F: Family>(key: &KeyOf<F>, place: &FragmentKey<F::Address>) -> Findings {
    let is_ours = backend::lookup_frontend::<F>(key).is_some()
        || vip::kinds::<F>(&key.destination) != 0
        || flow::find::<F>(key).is_some();
    // `is_own` without the call, for which the stack has no room.
    if !is_ours && peers::peer::<F>(&key.destination) & PEER_SELF == 0 {
        return answer::<F>(key);
    }
    // The stack has its own fragments already.
    if is_ours && known::<F>(place).is_some_and(FragmentOf::is_awaited) {
        return answer::<F>(key).with(Findings::AWAITED);
    }
    put::<F>(key, place)
}

/// Enters a first fragment. The newest one counts, since identifications come back soon.
#[inline(always)]
pub fn put<F: Family>(key: &KeyOf<F>, place: &FragmentKey<F::Address>) -> Findings {
    if is_followed::<F>(key.protocol) {
        let word = FragmentWord::new(place, of::<F>(key), clock::now());
        // If the map refuses, the other fragments will be unknown.
        let _ = F::fragments().insert(place, &word.0, BPF_ANY.into());
    }
    answer::<F>(key)
}

#[inline(always)]
fn answer<F: Family>(key: &KeyOf<F>) -> Findings {
    Findings::of(of::<F>(key))
}

#[inline(always)]
const fn of<F: Family>(key: &KeyOf<F>) -> FragmentOf {
    FragmentOf {
        source_port: key.source_port,
        destination_port: key.destination_port,
        protocol: key.protocol,
    }
}

/// The packet that a later fragment belongs to.
#[inline(always)]
pub fn lookup<F: Family>(key: &KeyOf<F>, place: &FragmentKey<F::Address>) -> Findings {
    if !is_followed::<F>(key.protocol) {
        return Findings::NONE;
    }
    match known::<F>(place) {
        Some(of) if !of.is_awaited() => Findings::of(of),
        Some(_) | None => judge::<F>(key),
    }
}

/// Records that fragments are held whose first one is unknown. If the first one has come by now, returns its
/// word.
#[inline(always)]
pub fn announce<F: Family>(place: &FragmentKey<F::Address>) -> Option<FragmentOf> {
    if let Some(of) = known::<F>(place) {
        return if of.is_awaited() { None } else { Some(of) };
    }
    let word = FragmentWord::new(place, FragmentOf::AWAITED, clock::now());
    // Refused if the first one comes at this moment, whose word counts, or if the existing entry is too old.
    let is_refused = F::fragments().insert(place, &word.0, BPF_NOEXIST.into()).is_err();
    if is_refused && known::<F>(place).is_none() {
        let _ = F::fragments().insert(place, &word.0, BPF_ANY.into());
    }
    arrived::<F>(place)
}

/// The word of a packet's first fragment, if it has come.
#[inline(always)]
pub fn arrived<F: Family>(place: &FragmentKey<F::Address>) -> Option<FragmentOf> {
    known::<F>(place).filter(|of| !of.is_awaited())
}

#[inline(always)]
fn known<F: Family>(place: &FragmentKey<F::Address>) -> Option<FragmentOf> {
    // SAFETY: one word, read at once.
    let word = unsafe { F::fragments().get(place).copied() };
    word.and_then(|word| FragmentWord(word).read(place, clock::now()))
}

/// The findings about a fragment of an unknown packet, which may also belong to another mode's connection.
#[inline(always)]
pub fn judge<F: Family>(key: &KeyOf<F>) -> Findings {
    if mode::is_alone() && vip::kinds::<F>(&key.destination) != 0 { Findings::OURS } else { Findings::NONE }
}

/// Whether fragments of a protocol are followed.
///
/// Protocols without ports are not the programs'. A later fragment of IPv6 does not name its protocol.
#[inline(always)]
const fn is_followed<F: Family>(protocol: u8) -> bool {
    has_ports(protocol) || F::Address::WORDS != 1
}

/// Writes the key of a packet's fragments. IPv6's key does not have the protocol.
#[inline(always)]
pub fn write_key<F: Family>(place: &mut FragmentKey<F::Address>, key: &KeyOf<F>, id: u32, side: u32) {
    (place.source, place.destination) = (key.source, key.destination);
    let protocol = if F::Address::WORDS == 1 { u32::from(key.protocol) } else { 0 };
    (place.id, place.protocol_and_side) = (id, side | protocol);
}
