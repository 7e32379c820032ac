//! A Service's addresses, on ports without a frontend.

use proxy_common::source_range::CLUSTER;
use proxy_common::verdict::Reason;
use proxy_common::vip::{FILTER_SERVED, FILTER_VIP, VIP_INSIDE_ONLY, VIP_KINDS, VipKey, filter_place};

use crate::header::ETHERNET;
use crate::maps::config::REJECT_UNKNOWN;
use crate::maps::family::{Family, KeyOf};
use crate::maps::{self, mode};
use crate::packet::Parsed;
use crate::select::source;
use crate::verdict::{UNTOUCHED, Verdict};

/// The verdict about a packet without a frontend: it is the stack's unless its address may be a Service's.
///
/// [`kinds`] gives the certain answer later, after the walk has left the stack.
#[inline(always)]
pub fn unknown_port<F: Family>(address: &F::Address) -> Verdict {
    if REJECT_UNKNOWN.load() != 0 && may_be_vip::<F>(address) {
        Verdict::Refuse(Reason::UnknownPort, 0)
    } else {
        UNTOUCHED
    }
}

/// The verdict about a packet whose protocol has no frontends.
///
/// Behind extension headers no answer can name the byte that is not understood.
#[inline(always)]
pub fn unknown_protocol<F: Family>(parsed: &Parsed<F::Address>) -> Verdict {
    let key = &parsed.key;
    let is_plain = F::HAS_HEADER_CHECKSUM || parsed.payload == (ETHERNET + F::HEADER) as u32;
    let may_refuse = REJECT_UNKNOWN.load() != 0 && is_plain && F::is_transport(key.protocol);
    if may_refuse && may_be_vip::<F>(&key.destination) {
        Verdict::Refuse(Reason::UnknownProtocol, 0)
    } else {
        UNTOUCHED
    }
}

/// Whether an address may be in VIPS.
#[inline(always)]
pub fn may_be_vip<F: Family>(address: &F::Address) -> bool {
    filter_bits::<F>(address) & FILTER_VIP != 0
}

/// The `FILTER_*` bits of an address, and bits of others above them. One array look-up rules out nearly all
/// addresses.
#[inline(always)]
pub fn filter_bits<F: Family>(address: &F::Address) -> u64 {
    let (word, shift) = filter_place(address);
    maps::ADDRESS_FILTER.get(word).map_or(0, |word| *word >> shift)
}

/// Makes the programs look at packets for an address of this node: replies to SNAT come there.
#[inline(always)]
pub fn mark_served<F: Family>(address: &F::Address) {
    let (word, shift) = filter_place(address);
    if let Some(word) = maps::ADDRESS_FILTER.get_ptr_mut(word) {
        // SAFETY: the map look-up checked the index. The agent and other CPUs may write the word meanwhile.
        unsafe { atomic_or(word, FILTER_SERVED << shift) };
    }
}

/// Sets bits of a word at once, for all CPUs (Linux 5.12).
///
/// # Safety
///
/// The word must be a map's memory.
#[inline(always)]
unsafe fn atomic_or(word: *mut u64, bits: u64) {
    // SAFETY: the caller guarantees the place.
    #[cfg(target_arch = "bpf")]
    unsafe {
        core::arch::asm!("lock *(u64 *)({0} + 0) |= {1}", in(reg) word, in(reg) bits, options(nostack));
    }
    #[cfg(not(target_arch = "bpf"))]
    let _ = (word, bits);
}

/// The `VIP_*` bits of an address; zero if it is no Service's, or this node's own.
///
/// While another mode serves new connections, a device of this node has all of them.
#[inline(always)]
pub fn kinds<F: Family>(address: &F::Address) -> u32 {
    if mode::is_older() {
        return 0;
    }
    let key = VipKey { address: F::map(address) };
    // SAFETY: copied at once; an address that is being removed may count as a Service's a moment longer.
    unsafe { maps::VIPS.get(&key).copied() }.unwrap_or(0) & VIP_KINDS
}

/// Whether a client whose packet came over an uplink gets no answer: it is outside the cluster, and the
/// address is for clients inside.
#[inline(always)]
pub fn is_closed<F: Family>(key: &KeyOf<F>) -> bool {
    kinds::<F>(&key.destination) & VIP_INSIDE_ONLY != 0 && !source::is_inside::<F>(CLUSTER, &key.source)
}

/// Whether the address refuses ports without a frontend.
#[inline(always)]
pub fn is_rejecting<F: Family>(address: &F::Address) -> bool {
    kinds::<F>(address) & REJECT_UNKNOWN.load() != 0
}
