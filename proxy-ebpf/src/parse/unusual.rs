//! Packets that are not one IP header and a transport header: fragments, and those with IPv6 extension headers.
//!
//! What is found out about one is a number, from a global function ([`global`](crate::maps::global)): the walks' stacks have no room for more, and the verifier
//! would count each way through it for each walk.

use aya_ebpf::bindings::{__sk_buff, xdp_md};
use proxy_common::fragment::{FragmentOf, Side};

use crate::header::{ETHERNET, Ports, Tcp, Udp, ether_type, protocol};
use crate::maps::family::Family;
use crate::maps::global::{KEY, global_by_family, key_room, stored_key};
use crate::maps::v4::V4;
use crate::maps::v6::V6;
use crate::packet::ip::Header;
use crate::packet::shape::{LATER, PAYLOAD, PAYLOAD_SHIFT, Piece, Preface, Shape};
use crate::packet::tc::{BARE, FRAMED, TcPacket};
use crate::packet::xdp::XdpPacket;
use crate::packet::{Kind, Packet};
use crate::parse::fragments::{self, AWAITED, FOR_TC, FOUND, HELD, OURS};
use crate::parse::held_fragments;
use crate::select::peer;
use crate::verdict::{HAND_TO_TC, HELD_AND_PASSED, HELD_FRAGMENT, UNKNOWN_FRAGMENT, UNTOUCHED, Verdict};

/// Added to an offset: fragments whose packet is not known are held, or dropped.
const JUDGED: u32 = 1 << 16;
/// Added to an offset, so far up: the [`Side`].
const SIDE_SHIFT: u32 = 17;

/// Looks at a packet that is not plain.
#[inline(always)]
pub fn look_at<P: Packet, F: Family>(
    packet: &P,
    network: usize,
    fragments: Fragments,
) -> Result<Shape, Verdict> {
    let (judged, side) = match fragments {
        Fragments::Followed(side) => (0, side),
        Fragments::Judged(side) => (JUDGED, side),
    };
    let shape = read_bits::<P, F>(packet, network as u32 | judged | (side as u32) << SIDE_SHIFT);
    if shape & FOUND != 0 {
        return Ok(Shape::new(shape));
    }
    Err(match shape & (FOR_TC | HELD | OURS) {
        _ if judged == 0 => UNTOUCHED,
        0 => UNTOUCHED,
        OURS => UNKNOWN_FRAGMENT,
        HELD => HELD_AND_PASSED,
        answer if answer & FOR_TC != 0 => HAND_TO_TC,
        _ => HELD_FRAGMENT,
    })
}

/// What the headers of the packet at an offset say, as a number; zero where they can't be read. A side is added to the offset, and `JUDGED`
/// may be. All pointers die.
#[inline(always)]
fn read_bits<P: Packet, F: Family>(packet: &P, offset: u32) -> u64 {
    let context = packet.context();
    match P::KIND {
        Kind::Xdp => global_read_xdp::<F>(context.cast(), offset),
        Kind::Framed => global_read_framed::<F>(context.cast(), offset),
        Kind::Bare => global_read_bare::<F>(context.cast(), offset),
    }
}

global_by_family! { fn global_read_xdp = read_unusual_xdp4 | read_unusual_xdp6(context: *mut xdp_md, offset: u32) -> u64, read_xdp_body }
global_by_family! { fn global_read_framed = read_unusual_tc4 | read_unusual_tc6(context: *mut __sk_buff, offset: u32) -> u64, read_framed_body }
global_by_family! { fn global_read_bare = read_unusual_bare4 | read_unusual_bare6(context: *mut __sk_buff, offset: u32) -> u64, read_bare_body }

#[inline(always)]
fn read_xdp_body<F: Header>(context: *mut xdp_md, offset: u32) -> u64 {
    read::<XdpPacket, F>(&XdpPacket::of(context), offset)
}

#[inline(always)]
fn read_framed_body<F: Header>(context: *mut __sk_buff, offset: u32) -> u64 {
    read::<TcPacket<FRAMED>, F>(&TcPacket::of(context), offset)
}

#[inline(always)]
fn read_bare_body<F: Header>(context: *mut __sk_buff, offset: u32) -> u64 {
    read::<TcPacket<BARE>, F>(&TcPacket::of(context), offset)
}

/// As [`read_bits`].
#[inline(always)]
fn read<P: Packet, F: Header>(packet: &P, offset: u32) -> u64 {
    let offset = with_stranger(*packet, offset);
    let network = (offset & PAYLOAD as u32) as usize;
    let Some(preface) = F::read_preface(packet, network) else {
        return 0;
    };
    let Preface { protocol: number, payload, piece, .. } = preface;
    let behind = if piece == Piece::Later { network as u32 } else { payload };
    let shape = (u64::from(behind) & PAYLOAD) << PAYLOAD_SHIFT;
    if piece == Piece::Whole {
        return FragmentOf { protocol: number, ..FragmentOf::default() }.to_bits() | shape | FOUND;
    }
    let answer = follow::<P, F>(packet, offset, preface).unwrap_or(0);
    let is_judged = offset & JUDGED != 0;
    match piece {
        Piece::First if is_judged && answer & AWAITED != 0 => {
            held_fragments::release_fragments::<P, F>(packet) | shape
        }
        Piece::Later if is_judged && answer & FOUND == 0 && may_be_known(number) => {
            hold_unknown::<P, F>(packet, answer) | shape | LATER
        }
        Piece::Later => answer | shape | LATER,
        Piece::First | Piece::Whole => answer | shape,
    }
}

/// The same offset, to which another side is added where the packet is inside a tunnel that no node sent to this one. A function of
/// its own, and the first that is called: the one that reads has no stack left for what this takes.
#[inline(never)]
fn with_stranger<P: Packet>(packet: P, offset: u32) -> u32 {
    const STRANGER: u32 = (Side::Tunnel as u32 ^ Side::Stranger as u32) << SIDE_SHIFT;
    if Side::from_bits(offset >> SIDE_SHIFT) != Side::Tunnel {
        return offset;
    }
    let checked = match packet.ether_type() {
        ether_type::IPV4 => peer::check_peers::<P, V4>(&packet),
        _ => peer::check_peers::<P, V6>(&packet),
    };
    if checked.is_ok() { offset } else { offset ^ STRANGER }
}

/// Whether the first fragment may say for which port a packet is. That of SCTP does not; where IPv6's destination options follow, they
/// are in the first one alone, and what comes behind them is not known.
#[inline(always)]
const fn may_be_known(protocol: u8) -> bool {
    matches!(protocol, protocol::TCP | protocol::UDP | protocol::DESTINATION_OPTIONS)
}

/// What becomes of a later fragment whose packet is not known. What is for this node's own address goes on to the stack, too.
#[inline(always)]
fn hold_unknown<P: Packet, F: Family>(packet: &P, answer: u64) -> u64 {
    match held_fragments::hold_fragment::<P, F>(packet) {
        found if found & FOUND != 0 => found,
        held if answer & OURS != 0 => held | OURS,
        held => held & HELD,
    }
}

/// Leaves the keys of a fragment and of its packet, and asks what is known of that.
#[inline(always)]
fn follow<P: Packet, F: Header>(packet: &P, offset: u32, preface: Preface) -> Option<u64> {
    let key = key_room::<F>(KEY)?;
    let network = (offset & PAYLOAD as u32) as usize;
    let (source, destination) = F::read_addresses(packet, network)?;
    let (Preface { protocol, payload, end, piece, id, place }, none) = (preface, Ports::default());
    let (ports, kind) = match piece {
        Piece::Whole => return None,
        Piece::First => match read_ports(packet, protocol, payload, end) {
            Some(ports) if network == ETHERNET => (ports, kind::FIRST),
            Some(ports) => (ports, kind::FIRST_INSIDE),
            None => (none, kind::TOO_SHORT),
        },
        Piece::Later => (none, kind::LATER),
    };
    // SAFETY: this CPU's own, and read before anything else of ours runs on it.
    unsafe {
        (&raw mut (*key).source).write(source);
        (&raw mut (*key).destination).write(destination);
        (&raw mut (*key).source_port).write(ports.source);
        (&raw mut (*key).destination_port).write(ports.destination);
        (&raw mut (*key).protocol).write(protocol);
    }
    let side = Side::from_bits(offset >> SIDE_SHIFT).with_protocol(packet.device(), 0);
    Some(global_follow::<F>(id, kind | side, place))
}

/// The ports of a first fragment, if it has a whole transport header; a protocol without ports has zeroes.
#[inline(always)]
fn read_ports<P: Packet>(packet: &P, protocol: u8, payload: u32, end: u32) -> Option<Ports> {
    let bytes = match protocol {
        protocol::TCP => size_of::<Tcp>(),
        protocol::UDP => size_of::<Udp>(),
        // Its checksum can't be patched without the end of the packet.
        protocol::SCTP => return None,
        _ => return Some(Ports::default()),
    };
    if payload + bytes as u32 > end {
        return None;
    }
    let ports = packet.read::<Ports>((payload & PAYLOAD as u32) as usize)?;
    Some(ports)
}

/// What is done about fragments, met on a side.
#[derive(Clone, Copy)]
pub enum Fragments {
    /// Those whose first one was seen are parsed; others are the stack's.
    Followed(Side),
    /// The same, but others that are for a service's address are held, or dropped.
    Judged(Side),
}

/// What a fragment is, as a global function is told. The side on which it was met is added, as a
/// [`FragmentKey`](proxy_common::fragment::FragmentKey) has it.
mod kind {
    /// A first fragment without a whole transport header.
    pub const TOO_SHORT: u32 = 0;
    /// A first fragment.
    pub const FIRST: u32 = 1;
    /// A first fragment inside a tunnel, whose frontend may be another node's.
    pub const FIRST_INSIDE: u32 = 2;
    /// A later fragment.
    pub const LATER: u32 = 3;
    /// The bits above are the side.
    pub const MASK: u32 = 0xff;
}

global_by_family! { fn global_follow = follow_fragment4 | follow_fragment6(id: u32, kind_and_side: u32, piece: u32) -> u64, follow_body }

#[inline(always)]
fn follow_body<F: Family>(id: u32, kind_and_side: u32, piece: u32) -> u64 {
    let (kind, side) = (kind_and_side & kind::MASK, kind_and_side & !kind::MASK);
    let (Some(key), Some(room)) = (stored_key::<F>(KEY), held_fragments::room::<F>()) else {
        return 0;
    };
    fragments::write_key::<F>(&mut room.fragment, key, id, side);
    room.held.piece = piece;
    let place = &room.fragment;
    match kind {
        kind::FIRST => fragments::enter::<F>(key, place),
        kind::FIRST_INSIDE => fragments::put::<F>(key, place),
        kind::LATER => fragments::lookup::<F>(key, place),
        _ => fragments::judge::<F>(key),
    }
}
