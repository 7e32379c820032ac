//! Fragments: only the first one of a packet says between which ports it travels; the others are told by what that left behind.

use aya_ebpf::bindings::BPF_ANY;
use proxy_common::addr::Address;
use proxy_common::fragment::{FragmentKey, FragmentOf, FragmentWord};

use crate::balance;
use crate::family::{Family, KeyOf};
use crate::flow;
use crate::packet::parse::has_ports;
use crate::vip;

/// Bit of an answer, above a [`FragmentOf`] and nine bits that are free: the fragment's packet is known.
pub const FOUND: u64 = 1 << 49;
/// Bit of an answer: it is not known, and is for a service's address.
pub const OURS: u64 = 1 << 50;

/// Enters a first fragment, if its packet may be a service's: nobody else's take room. The answer is what it says itself.
#[inline(always)]
pub fn enter<F: Family>(key: &KeyOf<F>, id: u32) -> u64 {
    let is_ours = balance::lookup_frontend::<F>(key).is_some()
        || vip::kinds::<F>(&key.destination) != 0
        || flow::find::<F>(key).is_some();
    if is_ours { put::<F>(key, id) } else { answer::<F>(key) }
}

/// Enters a first fragment. The newest one counts, since identifications come back soon.
#[inline(always)]
pub fn put<F: Family>(key: &KeyOf<F>, id: u32) -> u64 {
    if is_followed::<F>(key.protocol) {
        let place = place_of::<F>(key, id);
        let word = FragmentWord::new(&place, of::<F>(key), flow::now());
        // Refused: the others will be unknown.
        let _ = F::fragments().insert(&place, &word.0, BPF_ANY.into());
    }
    answer::<F>(key)
}

#[inline(always)]
fn answer<F: Family>(key: &KeyOf<F>) -> u64 {
    of::<F>(key).to_bits() | FOUND
}

#[inline(always)]
const fn of<F: Family>(key: &KeyOf<F>) -> FragmentOf {
    FragmentOf {
        source_port: key.source_port,
        destination_port: key.destination_port,
        protocol: key.protocol,
    }
}

/// What a later fragment belongs to.
#[inline(always)]
pub fn lookup<F: Family>(key: &KeyOf<F>, id: u32) -> u64 {
    if !is_followed::<F>(key.protocol) {
        return 0;
    }
    let place = place_of::<F>(key, id);
    // SAFETY: one word, read at once.
    let word = unsafe { F::fragments().get(&place).copied() };
    match word.and_then(|word| FragmentWord(word).read(&place, flow::now())) {
        Some(of) => of.to_bits() | FOUND,
        None => judge::<F>(key),
    }
}

/// What is to be said of a fragment whose packet is not known.
#[inline(always)]
pub fn judge<F: Family>(key: &KeyOf<F>) -> u64 {
    if vip::kinds::<F>(&key.destination) != 0 { OURS } else { 0 }
}

/// Protocols without ports are nobody's; with IPv6 a later fragment does not say which it belongs to.
#[inline(always)]
const fn is_followed<F: Family>(protocol: u8) -> bool {
    has_ports(protocol) || F::Address::WORDS != 1
}

#[inline(always)]
fn place_of<F: Family>(key: &KeyOf<F>, id: u32) -> FragmentKey<F::Address> {
    let protocol = if F::Address::WORDS == 1 { u32::from(key.protocol) } else { 0 };
    FragmentKey { source: key.source, destination: key.destination, id, protocol }
}
