//! Packets that are not one IP header and a transport header: fragments, and those with IPv6 extension headers.
//!
//! What is found out about one is a number, from a global function (`apart`): the walks' stacks have no room for more, and the verifier
//! would count each way through it for each walk.

use proxy_common::fragment::{FragmentOf, Side};

use crate::header::{ETHERNET, Ports, Tcp, Udp, ether_type, protocol};
use crate::maps::family::Family;
use crate::maps::global;
use crate::maps::v4::V4;
use crate::maps::v6::V6;
use crate::packet::Packet;
use crate::packet::shape::{LATER, PAYLOAD, PAYLOAD_SHIFT, Piece, Preface, Shape};
use crate::parse::fragments::{AWAITED, FOR_TC, FOUND, HELD, OURS};
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
    let shape = packet.read_unusual::<F>(network as u32 | judged | (side as u32) << SIDE_SHIFT);
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

/// What [`Packet::read_unusual`] is to say: of the packet at an offset, to which a side is added, and `JUDGED` may be.
#[inline(always)]
pub fn read<P: Packet, F: Family>(packet: &P, offset: u32) -> u64 {
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
        Piece::First if is_judged && answer & AWAITED != 0 => packet.release_fragments::<F>() | shape,
        Piece::Later if is_judged && answer & FOUND == 0 && may_be_known(number) => {
            hold::<P, F>(packet, answer) | shape | LATER
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
fn hold<P: Packet, F: Family>(packet: &P, answer: u64) -> u64 {
    match packet.hold_fragment::<F>() {
        found if found & FOUND != 0 => found,
        held if answer & OURS != 0 => held | OURS,
        held => held & HELD,
    }
}

/// Leaves the keys of a fragment and of its packet, and asks what is known of that.
#[inline(always)]
fn follow<P: Packet, F: Family>(packet: &P, offset: u32, preface: Preface) -> Option<u64> {
    let key = global::place_of_key::<F>()?;
    let network = (offset & PAYLOAD as u32) as usize;
    let (source, destination) = F::read_addresses(packet, network)?;
    let (Preface { protocol, payload, end, piece, id, place }, none) = (preface, Ports::default());
    let (ports, kind) = match piece {
        Piece::Whole => return None,
        Piece::First => match read_ports(packet, protocol, payload, end) {
            Some(ports) if network == ETHERNET => (ports, global::FIRST),
            Some(ports) => (ports, global::FIRST_INSIDE),
            None => (none, global::TOO_SHORT),
        },
        Piece::Later => (none, global::LATER),
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
    Some(global::follow_fragment::<F>(id, kind | side, place))
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
    let ports = packet.at::<Ports>((payload & PAYLOAD as u32) as usize)?;
    // SAFETY: `at` checked the bound.
    Some(unsafe { *ports })
}

/// What is done about fragments, met on a side.
#[derive(Clone, Copy)]
pub enum Fragments {
    /// Those whose first one was seen are parsed; others are the stack's.
    Followed(Side),
    /// The same, but others that are for a service's address are held, or dropped.
    Judged(Side),
}
