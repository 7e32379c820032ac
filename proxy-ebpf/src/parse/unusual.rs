//! Packets that are not one IP header and a transport header: fragments, and packets with IPv6 extension
//! headers.
//!
//! A [global function](crate::maps::global) looks at such a packet and answers with a number ([`Findings`]).
//! The stacks of the hooks have no room for more. Inlined, the verifier would count each way through the
//! headers again for each hook.

use aya_ebpf::bindings::{__sk_buff, xdp_md};
use proxy_common::fragment::{FragmentOf, Side};

use crate::header::{ETHERNET, Ports, Tcp, Udp, ether_type, protocol};
use crate::maps::family::Family;
use crate::maps::global::{KEY, global_by_family, key_room, stored_key};
use crate::maps::v4::V4;
use crate::maps::v6::V6;
use crate::packet::findings::{Findings, Question};
use crate::packet::ip::Header;
use crate::packet::shape::{Piece, Preface, Shape};
use crate::packet::tc::{BARE, FRAMED, TcPacket};
use crate::packet::xdp::XdpPacket;
use crate::packet::{Kind, Packet};
use crate::parse::{fragments, held_fragments};
use crate::select::peer;
use crate::verdict::{HAND_TO_TC, HELD_AND_PASSED, HELD_FRAGMENT, UNKNOWN_FRAGMENT, UNTOUCHED, Verdict};

/// Looks at a packet that is not plain.
#[inline(always)]
pub fn look_at<P: Packet, F: Family>(
    packet: &P,
    network: usize,
    fragments: Fragments,
) -> Result<Shape, Verdict> {
    let (is_judged, side) = match fragments {
        Fragments::Followed(side) => (false, side),
        Fragments::Judged(side) => (true, side),
    };
    let findings = ask::<P, F>(packet, Question::new(network, is_judged, side));
    if findings.has(Findings::FOUND) {
        return Ok(Shape::new(findings));
    }
    if !is_judged {
        return Err(UNTOUCHED);
    }
    Err(match (findings.has(Findings::FOR_TC), findings.has(Findings::HELD), findings.has(Findings::OURS)) {
        (true, _, _) => HAND_TO_TC,
        (false, true, true) => HELD_FRAGMENT,
        (false, true, false) => HELD_AND_PASSED,
        (false, false, true) => UNKNOWN_FRAGMENT,
        (false, false, false) => UNTOUCHED,
    })
}

/// Asks about a packet, in a global function. All pointers die.
#[inline(always)]
fn ask<P: Packet, F: Family>(packet: &P, question: Question) -> Findings {
    let (context, question) = (packet.context(), question.0);
    Findings(match P::KIND {
        Kind::Xdp => global_read_xdp::<F>(context.cast(), question),
        Kind::Framed => global_read_framed::<F>(context.cast(), question),
        Kind::Bare => global_read_bare::<F>(context.cast(), question),
    })
}

global_by_family! {
    fn global_read_xdp = read_unusual_xdp4 | read_unusual_xdp6
    (context: *mut xdp_md, question: u32) -> u64, read_xdp_body
}
global_by_family! {
    fn global_read_framed = read_unusual_tc4 | read_unusual_tc6
    (context: *mut __sk_buff, question: u32) -> u64, read_framed_body
}
global_by_family! {
    fn global_read_bare = read_unusual_bare4 | read_unusual_bare6
    (context: *mut __sk_buff, question: u32) -> u64, read_bare_body
}

#[inline(always)]
fn read_xdp_body<F: Header>(context: *mut xdp_md, question: u32) -> u64 {
    read::<XdpPacket, F>(&XdpPacket::of(context), Question(question)).0
}

#[inline(always)]
fn read_framed_body<F: Header>(context: *mut __sk_buff, question: u32) -> u64 {
    read::<TcPacket<FRAMED>, F>(&TcPacket::of(context), Question(question)).0
}

#[inline(always)]
fn read_bare_body<F: Header>(context: *mut __sk_buff, question: u32) -> u64 {
    read::<TcPacket<BARE>, F>(&TcPacket::of(context), Question(question)).0
}

/// Reads the headers of a packet.
#[inline(always)]
fn read<P: Packet, F: Header>(packet: &P, question: Question) -> Findings {
    let question = judge_sender(*packet, question);
    let network = question.network();
    let Some(preface) = F::read_preface(packet, network) else {
        return Findings::NONE;
    };
    let Preface { protocol, payload, piece, .. } = preface;
    let at = Findings::at(if piece == Piece::Later { network as u32 } else { payload });
    if piece == Piece::Whole {
        return Findings::of(FragmentOf { protocol, ..FragmentOf::default() }).with(at);
    }
    let answer = follow::<P, F>(packet, question, preface).unwrap_or(Findings::NONE);
    match piece {
        Piece::First if question.is_judged() && answer.has(Findings::AWAITED) => {
            held_fragments::release_fragments::<P, F>(packet).with(at)
        }
        Piece::Later if question.is_judged() && !answer.has(Findings::FOUND) && may_be_known(protocol) => {
            hold_unknown::<P, F>(packet, answer).with(at).with(Findings::LATER)
        }
        Piece::Later => answer.with(at).with(Findings::LATER),
        Piece::First | Piece::Whole => answer.with(at),
    }
}

/// Marks a question as a stranger's if the packet is inside a tunnel that no node sent to this one.
///
/// Not inlined, and called first: the function that reads has no stack left for it.
#[inline(never)]
fn judge_sender<P: Packet>(packet: P, question: Question) -> Question {
    if question.side() != Side::Tunnel {
        return question;
    }
    let checked = match packet.ether_type() {
        ether_type::IPV4 => peer::check_peers::<P, V4>(&packet),
        _ => peer::check_peers::<P, V6>(&packet),
    };
    if checked.is_ok() { question } else { question.of_stranger() }
}

/// Whether the first fragment can show the port.
///
/// SCTP's can't. IPv6's destination options are in the first fragment alone, and the protocol behind them is
/// not known.
#[inline(always)]
const fn may_be_known(protocol: u8) -> bool {
    matches!(protocol, protocol::TCP | protocol::UDP | protocol::DESTINATION_OPTIONS)
}

/// Decides about a later fragment of an unknown packet. One for this node's own address goes on to the stack,
/// too.
#[inline(always)]
fn hold_unknown<P: Packet, F: Family>(packet: &P, answer: Findings) -> Findings {
    match held_fragments::hold_fragment::<P, F>(packet) {
        found if found.has(Findings::FOUND) => found,
        held if answer.has(Findings::OURS) => held.with(Findings::OURS),
        held => held.common(Findings::HELD),
    }
}

/// Leaves the keys of a fragment and of its packet, and looks the packet up.
#[inline(always)]
fn follow<P: Packet, F: Header>(packet: &P, question: Question, preface: Preface) -> Option<Findings> {
    let key = key_room::<F>(KEY)?;
    let network = question.network();
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
    let side = question.side().with_protocol(packet.device(), 0);
    Some(Findings(global_follow::<F>(id, kind | side, place)))
}

/// The ports of a first fragment with a whole transport header; zeroes for a protocol without ports.
#[inline(always)]
fn read_ports<P: Packet>(packet: &P, protocol: u8, payload: u32, end: u32) -> Option<Ports> {
    let bytes = match protocol {
        protocol::TCP => size_of::<Tcp>(),
        protocol::UDP => size_of::<Udp>(),
        // SCTP's checksum can't be patched without the end of the packet.
        protocol::SCTP => return None,
        _ => return Some(Ports::default()),
    };
    if payload + bytes as u32 > end {
        return None;
    }
    let ports = packet.read::<Ports>((payload & Question::OFFSET) as usize)?;
    Some(ports)
}

/// The treatment of fragments, met on a side.
#[derive(Clone, Copy)]
pub enum Fragments {
    /// Fragments whose first one was seen are parsed; others are the stack's.
    Followed(Side),
    /// The same, but other fragments for a Service's address are held, or dropped.
    Judged(Side),
}

/// The kind of a fragment, for a global function. The side on which it was met is added, as in a
/// [`FragmentKey`](proxy_common::fragment::FragmentKey).
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

global_by_family! {
    fn global_follow = follow_fragment4 | follow_fragment6
    (id: u32, kind_and_side: u32, piece: u32) -> u64, follow_body
}

#[inline(always)]
fn follow_body<F: Family>(id: u32, kind_and_side: u32, piece: u32) -> u64 {
    let (kind, side) = (kind_and_side & kind::MASK, kind_and_side & !kind::MASK);
    let (Some(key), Some(room)) = (stored_key::<F>(KEY), held_fragments::room::<F>()) else {
        return 0;
    };
    fragments::write_key::<F>(&mut room.fragment, key, id, side);
    room.held.piece = piece;
    let place = &room.fragment;
    let findings = match kind {
        kind::FIRST => fragments::enter::<F>(key, place),
        kind::FIRST_INSIDE => fragments::put::<F>(key, place),
        kind::LATER => fragments::lookup::<F>(key, place),
        _ => fragments::judge::<F>(key),
    };
    findings.0
}
