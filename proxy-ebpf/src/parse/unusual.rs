//! Packets that are not one IP header and a transport header: fragments, and those with IPv6 extension headers.
//!
//! What is found out about one is a number, from a global function (`apart`): the walks' stacks have no room for more, and the verifier
//! would count each way through it for each walk.

use proxy_common::fragment::{FragmentOf, Side};

use crate::forward::decap;
use crate::header::{ETHERNET, Ports, Tcp, Udp, ether_type, protocol};
use crate::maps::family::Family;
use crate::maps::global;
use crate::maps::v4::V4;
use crate::maps::v6::V6;
use crate::packet::Packet;
use crate::packet::parsed::Fragments;
use crate::parse::fragments::{AWAITED, FOR_TC, FOUND, HELD, OURS};
use crate::verdict::{HAND_TO_TC, HELD_AND_PASSED, HELD_FRAGMENT, UNKNOWN_FRAGMENT, UNTOUCHED, Verdict};

/// Where what follows a packet's headers is, and what the headers do not say themselves.
#[derive(Clone, Copy)]
pub struct Shape {
    /// A [`Place`], bytes swapped.
    place: u64,
    /// Protocol of what follows all headers, in the first fragment if this is a later one.
    pub protocol: u8,
}

/// Where what follows a packet's headers is, and the ports of the packet that a later fragment belongs to.
///
/// From the lowest bit: the ports, eight that are zero, the offset (9 bits), other bits of [`Packet::read_unusual`], `LATER`. Behind a later
/// fragment's headers there may be nothing that can be read, so the offset is that of its IP header.
#[derive(Clone, Copy)]
pub struct Place(u64);

const PORTS: u64 = 0xffff_ffff;
const ZERO_SHIFT: u32 = 32;
const PAYLOAD_SHIFT: u32 = 40;
const PAYLOAD: u64 = 511;
/// A later fragment.
const LATER: u64 = 1 << 63;
const BYTE_SHIFT: u32 = 56;
const LATER_SHIFT: u32 = 63;
/// Added to an offset: fragments whose packet is not known are held, or dropped.
const JUDGED: u32 = 1 << 16;
/// Added to an offset, so far up: the [`Side`].
const SIDE_SHIFT: u32 = 17;

impl Shape {
    /// What follows one header begins at `payload`.
    #[inline(always)]
    pub const fn plain(payload: usize, protocol: u8) -> Self {
        Self { place: ((payload as u64 & PAYLOAD) << PAYLOAD_SHIFT).swap_bytes(), protocol }
    }

    #[inline(always)]
    const fn new(bits: u64) -> Self {
        let place = bits & (PORTS | PAYLOAD << PAYLOAD_SHIFT | LATER);
        Self { place: place.swap_bytes(), protocol: FragmentOf::from_bits(bits).protocol }
    }

    /// The place, of which the verifier knows nothing: else it would walk everything behind once for plain packets and once for
    /// others.
    #[inline(always)]
    pub fn place(self) -> Place {
        #[cfg(not(target_arch = "bpf"))]
        let bits = self.place.swap_bytes();
        // SAFETY: one instruction on one register.
        #[cfg(target_arch = "bpf")]
        let bits = unsafe {
            let mut bits = self.place;
            core::arch::asm!("{0} = be64 {0}", inout(reg) bits, options(pure, nomem, nostack));
            bits
        };
        Place(bits)
    }
}

impl Place {
    /// The offset.
    #[inline(always)]
    pub const fn payload(self) -> u32 {
        (self.0 >> PAYLOAD_SHIFT & PAYLOAD) as u32
    }
    /// Not zero for a later fragment: no transport header follows.
    #[inline(always)]
    pub fn later(self) -> u8 {
        apart(self.0 >> BYTE_SHIFT) as u8
    }
    /// No TCP flags, of which the verifier does not know that they are none.
    #[inline(always)]
    pub const fn no_flags(self) -> u8 {
        (self.0 >> ZERO_SHIFT) as u8
    }
    /// Ports and TCP flags: those that were read where the transport header is, or a later fragment's own. Without a branch, behind
    /// which the verifier would walk everything twice.
    #[inline(always)]
    pub fn choose(self, read: Ports, flags: u8) -> (Ports, u8) {
        let later = apart((self.0.cast_signed() >> LATER_SHIFT).cast_unsigned());
        let of = FragmentOf { source_port: read.source, destination_port: read.destination, protocol: flags };
        let bits = of.to_bits() & !later | self.0 & later & PORTS;
        let FragmentOf { source_port, destination_port, protocol: flags } = FragmentOf::from_bits(bits);
        (Ports { source: source_port, destination: destination_port }, flags)
    }
}

/// The same byte, of which the verifier forgets what was asked: behind a question for the protocol it would walk everything once for
/// each answer.
#[inline(always)]
pub fn hidden(byte: u8) -> u8 {
    #[cfg_attr(not(target_arch = "bpf"), expect(unused_mut, reason = "the host only lints this"))]
    let mut hidden = u64::from(byte);
    // SAFETY: two instructions on one register: up into the second byte, and swapped.
    #[cfg(target_arch = "bpf")]
    unsafe {
        core::arch::asm!("{0} <<= 8", "{0} = be16 {0}", inout(reg) hidden, options(pure, nomem, nostack));
    };
    hidden as u8
}

/// The same number, which LLVM does not know to be.
#[inline(always)]
fn apart(number: u64) -> u64 {
    #[cfg_attr(not(target_arch = "bpf"), expect(unused_mut, reason = "the host only lints this"))]
    let mut number = number;
    // SAFETY: an instruction that changes nothing.
    #[cfg(target_arch = "bpf")]
    unsafe {
        core::arch::asm!("{0} = {0}", inout(reg) number, options(pure, nomem, nostack));
    };
    number
}

/// What the headers in front of the transport's say.
#[derive(Clone, Copy)]
pub struct Preface {
    /// Protocol of what follows.
    pub protocol: u8,
    /// Offset of what follows.
    pub payload: u32,
    /// Offset of the packet's end.
    pub end: u32,
    /// What it is of the packet its sender sent.
    pub piece: Piece,
    /// The identification, bytes in network order; of a whole packet it means nothing. No part of `Piece`: Linux 6.1 refuses to read
    /// what only some variants have.
    pub id: u32,
    /// Where in the packet it belongs: a [`HeldKey::piece`](proxy_common::fragment::HeldKey::piece).
    pub place: u32,
}

/// A whole packet, or a fragment of one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Piece {
    /// No fragment.
    Whole,
    /// The first fragment, which has the transport header.
    First,
    /// Any other.
    Later,
}

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
        ether_type::IPV4 => decap::check_peers::<P, V4>(&packet),
        _ => decap::check_peers::<P, V6>(&packet),
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
