//! Functions that the verifier walks once, instead of anew at every call.
//!
//! The kernel does so with what is a global symbol of the object (global functions, Linux 5.6), whose arguments and result may be
//! any numbers. Keys are left in a map's memory: before 6.2 a map can't be asked with one that came as an argument.

use aya_ebpf::bindings::{__sk_buff, xdp_md};
use proxy_common::addr::Address;
use proxy_common::sctp;

use crate::cut;
use crate::family::{Family, KeyOf, V4, V6};
use crate::flow::{self, Sender};
use crate::fragment;
use crate::held;
use crate::icmp::quoted;
use crate::packet::GSO_BY_FRAGS;
use crate::packet::header::{Tcp, Udp, protocol};
use crate::packet::{BARE, FRAMED, TcPacket, XdpPacket, unusual};
use crate::snat;

/// Bit of [`renew`]'s event: the entry is in FLOWS_NEW.
pub const EMBRYO: u32 = 1 << 0;
/// Bit of [`renew`]'s event: the packet is the backend's.
pub const FROM_BACKEND: u32 = 1 << 1;

/// A first fragment without a whole transport header.
pub const TOO_SHORT: u32 = 0;
/// A first fragment.
pub const FIRST: u32 = 1;
/// A first fragment inside a tunnel, whose frontend may be another node's.
pub const FIRST_INSIDE: u32 = 2;
/// A later fragment.
pub const LATER: u32 = 3;
/// What is added to one of these: the side on which the fragment is met, as a [`FragmentKey`](proxy_common::fragment::FragmentKey)
/// has it.
const SIDE: u32 = !0xff;

/// As [`flow::renew`]; `event` is a set of `EMBRYO` and `FROM_BACKEND`.
#[inline(always)]
pub fn renew<F: Family>(key: &KeyOf<F>, tcp_flags: u8, event: u32, now: u32) {
    leave::<F>(0, key);
    let tcp_flags = u32::from(tcp_flags);
    if F::Address::WORDS == 1 {
        renew4(tcp_flags, event, now)
    } else {
        renew6(tcp_flags, event, now)
    };
}

/// As [`snat::occupancy`].
#[inline(always)]
pub fn occupancy<F: Family>(reply_key: &KeyOf<F>, key: &KeyOf<F>) -> u32 {
    leave::<F>(0, reply_key);
    leave::<F>(1, key);
    if F::Address::WORDS == 1 { occupancy4() } else { occupancy6() }
}

/// As [`snat::evict`].
#[inline(always)]
pub fn evict<F: Family>(reply_key: &KeyOf<F>) {
    leave::<F>(0, reply_key);
    if F::Address::WORDS == 1 {
        evict4()
    } else {
        evict6()
    };
}

/// The checksum of an SCTP packet of `bytes` bytes after its ports have changed by `difference` (XOR); see
/// [`sctp::update_checksum`](crate::sctp::update_checksum).
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

/// As [`fragment::enter`], `put`, `lookup` or `judge` for a fragment that is `FIRST`, `FIRST_INSIDE`, `LATER` or `TOO_SHORT`,
/// and was met on a side. The key is that of [`place_of_key`].
#[inline(always)]
pub fn follow_fragment<F: Family>(id: u32, kind_and_side: u32, piece: u32) -> u64 {
    if F::Address::WORDS == 1 {
        follow_fragment4(id, kind_and_side, piece)
    } else {
        follow_fragment6(id, kind_and_side, piece)
    }
}

/// As [`held::hold`], of the fragment that was followed last.
#[inline(always)]
pub fn hold_fragment<F: Family>(context: *mut __sk_buff) -> u64 {
    if F::Address::WORDS == 1 { hold_fragment4(context) } else { hold_fragment6(context) }
}

/// As [`held::release`], of the fragment that was followed last.
#[inline(always)]
pub fn release_fragments<F: Family>(context: *mut __sk_buff) -> u64 {
    if F::Address::WORDS == 1 { release_fragments4(context) } else { release_fragments6(context) }
}

/// As [`unusual::read`], in XDP.
#[inline(always)]
pub fn read_unusual_xdp<F: Family>(context: *mut xdp_md, offset: u32) -> u64 {
    if F::Address::WORDS == 1 {
        read_unusual_xdp4(context, offset)
    } else {
        read_unusual_xdp6(context, offset)
    }
}

/// As [`unusual::read`], in TC.
#[inline(always)]
pub fn read_unusual_tc<F: Family, const LINK: usize>(context: *mut __sk_buff, offset: u32) -> u64 {
    match (F::Address::WORDS, LINK) {
        (1, BARE) => read_unusual_bare4(context, offset),
        (_, BARE) => read_unusual_bare6(context, offset),
        (1, _) => read_unusual_tc4(context, offset),
        (_, _) => read_unusual_tc6(context, offset),
    }
}

/// As [`quoted::read`], in XDP.
#[inline(always)]
pub fn read_quoted_xdp(context: *mut xdp_md, offset: u32) -> u32 {
    read_quoted_by_xdp(context, offset)
}

/// As [`quoted::read`], in TC.
#[inline(always)]
pub fn read_quoted_tc<const LINK: usize>(context: *mut __sk_buff, offset: u32) -> u32 {
    if LINK == BARE { read_quoted_by_bare(context, offset) } else { read_quoted_by_tc(context, offset) }
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn read_quoted_by_xdp(context: *mut xdp_md, offset: u32) -> u32 {
    quoted::read(&XdpPacket::of(context), offset)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn read_quoted_by_tc(context: *mut __sk_buff, offset: u32) -> u32 {
    quoted::read(&TcPacket::<FRAMED>::of(context), offset)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn read_quoted_by_bare(context: *mut __sk_buff, offset: u32) -> u32 {
    quoted::read(&TcPacket::<BARE>::of(context), offset)
}

/// As [`cut::cut`].
#[inline(always)]
pub fn cut<const LINK: usize>(context: *mut __sk_buff, fits: u32) -> u32 {
    if LINK == BARE { cut_bare_in_two(context, fits) } else { cut_in_two(context, fits) }
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn cut_in_two(context: *mut __sk_buff, fits: u32) -> u32 {
    cut::cut(TcPacket::<FRAMED>::of(context), fits)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn cut_bare_in_two(context: *mut __sk_buff, fits: u32) -> u32 {
    cut::cut(TcPacket::<BARE>::of(context), fits)
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

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn renew4(tcp_flags: u32, event: u32, now: u32) -> u32 {
    renew_left::<V4>(tcp_flags, event, now)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn renew6(tcp_flags: u32, event: u32, now: u32) -> u32 {
    renew_left::<V6>(tcp_flags, event, now)
}

#[inline(always)]
fn renew_left<F: Family>(tcp_flags: u32, event: u32, now: u32) -> u32 {
    if let Some(key) = left::<F>(0) {
        let sender = if event & FROM_BACKEND != 0 { Sender::Backend } else { Sender::Client };
        flow::renew::<F>(key, tcp_flags as u8, event & EMBRYO != 0, sender, now);
    }
    0
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn occupancy4() -> u32 {
    occupancy_left::<V4>()
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn occupancy6() -> u32 {
    occupancy_left::<V6>()
}

#[inline(always)]
fn occupancy_left<F: Family>() -> u32 {
    let (Some(reply_key), Some(key)) = (left::<F>(0), left::<F>(1)) else {
        return snat::TAKEN;
    };
    snat::occupancy::<F>(reply_key, key)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn evict4() -> u32 {
    evict_left::<V4>()
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn evict6() -> u32 {
    evict_left::<V6>()
}

#[inline(always)]
fn evict_left<F: Family>() -> u32 {
    if let Some(reply_key) = left::<F>(0) {
        snat::evict::<F>(reply_key);
    }
    0
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn follow_fragment4(id: u32, kind_and_side: u32, piece: u32) -> u64 {
    follow_fragment_left::<V4>(id, kind_and_side, piece)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn follow_fragment6(id: u32, kind_and_side: u32, piece: u32) -> u64 {
    follow_fragment_left::<V6>(id, kind_and_side, piece)
}

#[inline(always)]
fn follow_fragment_left<F: Family>(id: u32, kind_and_side: u32, piece: u32) -> u64 {
    let (kind, side) = (kind_and_side & !SIDE, kind_and_side & SIDE);
    let (Some(key), Some(room)) = (left::<F>(0), held::room::<F>()) else {
        return 0;
    };
    fragment::write_key::<F>(&mut room.fragment, key, id, side);
    room.held.piece = piece;
    let place = &room.fragment;
    match kind {
        FIRST => fragment::enter::<F>(key, place),
        FIRST_INSIDE => fragment::put::<F>(key, place),
        LATER => fragment::lookup::<F>(key, place),
        _ => fragment::judge::<F>(key),
    }
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn hold_fragment4(context: *mut __sk_buff) -> u64 {
    held::hold::<V4>(context).unwrap_or(0)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn hold_fragment6(context: *mut __sk_buff) -> u64 {
    held::hold::<V6>(context).unwrap_or(0)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn release_fragments4(context: *mut __sk_buff) -> u64 {
    left::<V4>(0).map_or(0, |key| held::release::<V4>(context, key))
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn release_fragments6(context: *mut __sk_buff) -> u64 {
    left::<V6>(0).map_or(0, |key| held::release::<V6>(context, key))
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn read_unusual_xdp4(context: *mut xdp_md, offset: u32) -> u64 {
    unusual::read::<XdpPacket, V4>(&XdpPacket::of(context), offset)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn read_unusual_xdp6(context: *mut xdp_md, offset: u32) -> u64 {
    unusual::read::<XdpPacket, V6>(&XdpPacket::of(context), offset)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn read_unusual_tc4(context: *mut __sk_buff, offset: u32) -> u64 {
    unusual::read::<TcPacket<FRAMED>, V4>(&TcPacket::of(context), offset)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn read_unusual_tc6(context: *mut __sk_buff, offset: u32) -> u64 {
    unusual::read::<TcPacket<FRAMED>, V6>(&TcPacket::of(context), offset)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn read_unusual_bare4(context: *mut __sk_buff, offset: u32) -> u64 {
    unusual::read::<TcPacket<BARE>, V4>(&TcPacket::of(context), offset)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn read_unusual_bare6(context: *mut __sk_buff, offset: u32) -> u64 {
    unusual::read::<TcPacket<BARE>, V6>(&TcPacket::of(context), offset)
}
