//! Functions that the verifier walks once, instead of anew at every call.
//!
//! The kernel does so with what is a global symbol of the object (global functions, Linux 5.6), whose arguments and result may be
//! any numbers. Keys are left in a map's memory: before 6.2 a map can't be asked with one that came as an argument.

use proxy_common::sctp;

use crate::header::{Tcp, Udp, protocol};
use crate::maps::family::{Family, KeyOf};
use crate::packet::tc::GSO_BY_FRAGS;

mod flows;
mod frames;

pub use flows::{
    EMBRYO, FROM_BACKEND, evict, is_shown, occupancy, open, open_translated, promote, renew, search_row,
};
pub use frames::{
    FIRST, FIRST_INSIDE, LATER, TOO_SHORT, cut, follow_fragment, hold_fragment, read_quoted_tc,
    read_quoted_xdp, read_unusual_tc, read_unusual_xdp, release_fragments,
};

/// Defines `NAME::<F>(ARGUMENTS)`, which calls one of two global functions; each calls `BODY` with its own family.
macro_rules! by_family {
    ($(#[$documentation:meta])* $visible:vis fn $name:ident = $four:ident | $six:ident
     ($($argument:ident: $type:ty),*) -> $result:ty, $body:ident) => {
        $(#[$documentation])*
        #[inline(always)]
        $visible fn $name<F: Family>($($argument: $type),*) -> $result {
            if <F::Address as Address>::WORDS == 1 { $four($($argument),*) } else { $six($($argument),*) }
        }

        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "C" fn $four($($argument: $type),*) -> $result {
            $body::<V4>($($argument),*)
        }

        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "C" fn $six($($argument: $type),*) -> $result {
            $body::<V6>($($argument),*)
        }
    };
}
use by_family;

/// The checksum of an SCTP packet of `bytes` bytes after its ports have changed by `difference` (XOR); see
/// [`sctp::update_checksum`](crate::packet::sctp::update_checksum).
#[inline(always)]
pub fn sctp_checksum(old: u32, difference: u32, bytes: u32) -> u32 {
    patch_crc(old, difference, bytes)
}

/// Bytes of the largest packet that a frame will leave as: of `length` bytes, or cut up into segments, behind `headers` bytes and
/// `outer` bytes more.
#[inline(always)]
pub fn largest_packet(segment: u32, protocol: u32, length: u32, headers: u32, outer: u32) -> u32 {
    largest_segment(segment, protocol, length, headers, outer)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn largest_segment(segment: u32, protocol: u32, length: u32, headers: u32, outer: u32) -> u32 {
    const TCP: u32 = protocol::TCP as u32;
    match (segment, protocol) {
        (0, _) => length.wrapping_add(outer),
        // The segments give up what the outer header takes.
        (_, TCP) => segment.wrapping_add(headers).wrapping_add(size_of::<Tcp>() as u32),
        // Each as large as its sender found fit for its own path; programs can't see how large.
        (GSO_BY_FRAGS, _) => headers.wrapping_add(outer),
        (_, _) => segment.wrapping_add(headers).wrapping_add(size_of::<Udp>() as u32).wrapping_add(outer),
    }
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn patch_crc(old: u32, difference: u32, bytes: u32) -> u32 {
    if old == 0 || difference == 0 { old } else { old ^ sctp::checksum_difference(difference, bytes) }
}

/// Where the key of what comes next is left, by who has no room for it on the stack.
#[inline(always)]
pub fn place_of_key<F: Family>() -> Option<*mut KeyOf<F>> {
    F::key_scratch(0)
}

#[inline(always)]
fn leave<F: Family>(index: u32, key: &KeyOf<F>) {
    if let Some(place) = F::key_scratch(index) {
        // SAFETY: this CPU's own, and read before anything else of ours runs on it.
        unsafe { *place = *key };
    }
}

#[inline(always)]
fn left<F: Family>(index: u32) -> Option<&'static KeyOf<F>> {
    // SAFETY: as in `leave`.
    F::key_scratch(index).map(|place| unsafe { &*place })
}
