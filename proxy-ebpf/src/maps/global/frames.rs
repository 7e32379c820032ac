//! What is read of unusual frames, and done to them.

use aya_ebpf::bindings::{__sk_buff, xdp_md};
use proxy_common::addr::Address;

use super::{by_family, left};
use crate::forward::fragment_ipv4;
use crate::icmp::quoted;
use crate::maps::family::Family;
use crate::maps::v4::V4;
use crate::maps::v6::V6;
use crate::packet::tc::{BARE, FRAMED, TcPacket};
use crate::packet::xdp::XdpPacket;
use crate::parse::{fragments, held_fragments, unusual};

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

by_family! {
    /// As [`fragments::enter`], `put`, `lookup` or `judge` for a fragment that is `FIRST`, `FIRST_INSIDE`, `LATER` or `TOO_SHORT`,
    /// and was met on a side. The key is that of [`place_of_key`](super::place_of_key).
    pub fn follow_fragment = follow_fragment4 | follow_fragment6(id: u32, kind_and_side: u32, piece: u32) -> u64, follow_left
}

#[inline(always)]
fn follow_left<F: Family>(id: u32, kind_and_side: u32, piece: u32) -> u64 {
    let (kind, side) = (kind_and_side & !SIDE, kind_and_side & SIDE);
    let (Some(key), Some(room)) = (left::<F>(0), held_fragments::room::<F>()) else {
        return 0;
    };
    fragments::write_key::<F>(&mut room.fragment, key, id, side);
    room.held.piece = piece;
    let place = &room.fragment;
    match kind {
        FIRST => fragments::enter::<F>(key, place),
        FIRST_INSIDE => fragments::put::<F>(key, place),
        LATER => fragments::lookup::<F>(key, place),
        _ => fragments::judge::<F>(key),
    }
}

by_family! {
    /// As [`held_fragments::hold`], of the fragment that was followed last.
    pub fn hold_fragment = hold_fragment4 | hold_fragment6(context: *mut __sk_buff) -> u64, hold_followed
}

#[inline(always)]
fn hold_followed<F: Family>(context: *mut __sk_buff) -> u64 {
    held_fragments::hold::<F>(context).unwrap_or(0)
}

by_family! {
    /// As [`held_fragments::release`], of the fragment that was followed last.
    pub fn release_fragments = release_fragments4 | release_fragments6(context: *mut __sk_buff) -> u64, release_followed
}

#[inline(always)]
fn release_followed<F: Family>(context: *mut __sk_buff) -> u64 {
    left::<F>(0).map_or(0, |key| held_fragments::release::<F>(context, key))
}

by_family! {
    /// As [`unusual::read`], in XDP.
    pub fn read_unusual_xdp = read_unusual_xdp4 | read_unusual_xdp6(context: *mut xdp_md, offset: u32) -> u64, read_in_xdp
}

#[inline(always)]
fn read_in_xdp<F: Family>(context: *mut xdp_md, offset: u32) -> u64 {
    unusual::read::<XdpPacket, F>(&XdpPacket::of(context), offset)
}

/// As [`unusual::read`], in TC.
#[inline(always)]
pub fn read_unusual_tc<F: Family, const LINK: usize>(context: *mut __sk_buff, offset: u32) -> u64 {
    if LINK == BARE {
        read_unusual_bare::<F>(context, offset)
    } else {
        read_unusual_framed::<F>(context, offset)
    }
}

by_family! {
    fn read_unusual_framed = read_unusual_tc4 | read_unusual_tc6(context: *mut __sk_buff, offset: u32) -> u64, read_framed
}

#[inline(always)]
fn read_framed<F: Family>(context: *mut __sk_buff, offset: u32) -> u64 {
    unusual::read::<TcPacket<FRAMED>, F>(&TcPacket::of(context), offset)
}

by_family! {
    fn read_unusual_bare = read_unusual_bare4 | read_unusual_bare6(context: *mut __sk_buff, offset: u32) -> u64, read_bare
}

#[inline(always)]
fn read_bare<F: Family>(context: *mut __sk_buff, offset: u32) -> u64 {
    unusual::read::<TcPacket<BARE>, F>(&TcPacket::of(context), offset)
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

/// As [`fragment_ipv4::cut`].
#[inline(always)]
pub fn cut<const LINK: usize>(context: *mut __sk_buff, fits: u32) -> u32 {
    if LINK == BARE { cut_bare_in_two(context, fits) } else { cut_in_two(context, fits) }
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn cut_in_two(context: *mut __sk_buff, fits: u32) -> u32 {
    fragment_ipv4::cut(TcPacket::<FRAMED>::of(context), fits)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn cut_bare_in_two(context: *mut __sk_buff, fits: u32) -> u32 {
    fragment_ipv4::cut(TcPacket::<BARE>::of(context), fits)
}
