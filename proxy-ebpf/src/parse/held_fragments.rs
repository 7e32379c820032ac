//! HELD: fragments that came before the first one of their packet, in TC.
//!
//! A program can't send what it holds by itself, but it can send copies of the frame it was given: that of the first fragment is made
//! each held one in turn, sent to the device that the first one came in by, where it is received anew, and at last what it was.

use aya_ebpf::bindings::{__sk_buff, BPF_ANY, BPF_F_INGRESS};
use aya_ebpf::helpers::generated::bpf_clone_redirect;
use proxy_common::Addr6;
use proxy_common::fragment::{FragmentKey, HELD_BYTES, HELD_PIECES, Held, HeldKey};
use proxy_common::way::PEER_SELF;

use crate::maps::family::{Family, KeyOf};
use crate::maps::global::{KEY, global_by_family, stored_key};
use crate::maps::{self, Buffer, clock, peers};
use crate::packet::findings::Findings;
use crate::packet::{Kind, Packet, buffer};
use crate::parse::fragments;
use crate::select::vip;

/// Bytes of a first fragment that others are held for.
const FIRST_BYTES: usize = 4096;

/// BUFFER, which has room for what the stack has none for.
#[repr(C)]
pub struct Room<A> {
    /// The key of the packet that the fragment which was followed last belongs to.
    pub fragment: FragmentKey<A>,
    /// The key that this fragment has in HELD, as far as it is that of no other of the packet.
    pub held: HeldKey,
    frame: [u64; FIRST_BYTES / 8],
}
const _: () = assert!(size_of::<Room<Addr6>>() <= size_of::<Buffer>() && size_of::<Held>() <= FIRST_BYTES);

/// This CPU's room.
#[inline(always)]
pub fn room<F: Family>() -> Option<&'static mut Room<F::Address>> {
    let room = maps::BUFFER.get_ptr_mut(0)?.cast::<Room<F::Address>>();
    // SAFETY: this CPU's own, large enough, aligned, and used for nothing else until the fragment is done with.
    Some(unsafe { &mut *room })
}

/// Holds the later fragment that was looked up last, until the first one of its packet comes, if it is for a service's address or this
/// node's own. The answer is what the first one says if it has come by now, `HELD`, `FOR_TC`, or zero. XDP sends one frame for one frame.
#[inline(always)]
pub fn hold_fragment<P: Packet, F: Family>(packet: &P) -> Findings {
    match P::KIND {
        Kind::Xdp => Findings::FOR_TC,
        Kind::Framed | Kind::Bare => Findings(global_hold::<F>(packet.context().cast())),
    }
}

global_by_family! {
    fn global_hold = hold_fragment4 | hold_fragment6(context: *mut __sk_buff) -> u64, hold_body
}

#[inline(always)]
fn hold_body<F: Family>(context: *mut __sk_buff) -> u64 {
    hold_frame::<F>(context).unwrap_or(Findings::NONE).0
}

#[inline(always)]
fn hold_frame<F: Family>(context: *mut __sk_buff) -> Option<Findings> {
    let room = room::<F>()?;
    let destination = &room.fragment.destination;
    let may_be_ours = vip::kinds::<F>(destination) != 0 || peers::peer::<F>(destination) & PEER_SELF != 0;
    if !may_be_ours {
        return None;
    }
    write_key::<F>(room);
    // SAFETY: the room for a frame is larger than an entry, and aligned as one.
    let held = unsafe { &mut *room.frame.as_mut_ptr().cast::<Held>() };
    // SAFETY: the context is valid for the program's run.
    (held.length, held.seen) = (unsafe { (*context).len }, clock::now());
    buffer::load::<HELD_BYTES>(context, 0, held.frame.as_mut_ptr().cast(), held.length)?;
    if let Some(of) = fragments::announce::<F>(&room.fragment) {
        return Some(Findings::of(of));
    }
    maps::HELD.insert(&room.held, &*held, BPF_ANY.into()).ok()?;
    match fragments::arrived::<F>(&room.fragment) {
        // Since it was announced, and it may not have seen what is held.
        Some(of) => {
            let _ = maps::HELD.remove(&room.held);
            Some(Findings::of(of))
        }
        None => Some(Findings::HELD),
    }
}

/// Enters the first fragment that was looked up last, and has those received that are held for it. The answer is as that of
/// [`fragments::put`], or `FOR_TC`. All pointers die.
#[inline(always)]
pub fn release_fragments<P: Packet, F: Family>(packet: &P) -> Findings {
    match P::KIND {
        Kind::Xdp => Findings::FOR_TC,
        Kind::Framed | Kind::Bare => Findings(global_release::<F>(packet.context().cast())),
    }
}

global_by_family! {
    fn global_release = release_fragments4 | release_fragments6(context: *mut __sk_buff) -> u64, release_body
}

#[inline(always)]
fn release_body<F: Family>(context: *mut __sk_buff) -> u64 {
    stored_key::<F>(KEY).map_or(0, |key| receive_held::<F>(context, key).0)
}

#[inline(always)]
fn receive_held<F: Family>(context: *mut __sk_buff, key: &KeyOf<F>) -> Findings {
    let Some(room) = room::<F>() else {
        return Findings::NONE;
    };
    let answer = fragments::put::<F>(key, &room.fragment);
    // SAFETY: the context is valid for the program's run.
    let length = unsafe { (*context).len };
    // Where it does not fit, those that are held stay lost.
    if buffer::load::<FIRST_BYTES>(context, 0, room.frame.as_mut_ptr().cast(), length).is_none() {
        return answer;
    }
    // What was found out about this frame's checksum means nothing for the others: another length lets the kernel forget it.
    let _ = buffer::resize(context, length + 1);
    write_key::<F>(room);
    for piece in 0..HELD_PIECES {
        room.held.piece = piece;
        send(context, &room.held);
    }
    // Else it is another's by now, and goes.
    if write::<FIRST_BYTES>(context, room.frame.as_ptr().cast(), length).is_some() {
        answer
    } else {
        Findings::OURS
    }
}

/// Writes what all fragments of the packet share of their keys in HELD.
#[inline(always)]
fn write_key<F: Family>(room: &mut Room<F::Address>) {
    let of = &room.fragment;
    let ([s0, s1, s2, s3], [d0, d1, d2, d3]) = (F::map(&of.source), F::map(&of.destination));
    (room.held.source, room.held.destination) = (Addr6([s0, s1, s2, s3]), Addr6([d0, d1, d2, d3]));
    (room.held.id, room.held.protocol_and_side) = (of.id, of.protocol_and_side);
}

/// Makes the frame one that is held, if there is one, and has a copy received. An entry that is given to another packet in this
/// moment leaves a fragment whose checksum is wrong.
#[inline(always)]
fn send(context: *mut __sk_buff, place: &HeldKey) {
    let Some(held) = maps::HELD.get_ptr(place) else {
        return;
    };
    // SAFETY: the entry can be read for the program's run, and the context is the kernel's.
    unsafe {
        let frame = (&raw const (*held).frame).cast();
        if (*held).is_awaited(clock::now()) && write::<HELD_BYTES>(context, frame, (*held).length).is_some() {
            bpf_clone_redirect(context, (*context).ifindex, BPF_F_INGRESS.into());
        }
    }
    let _ = maps::HELD.remove(place);
}

/// Makes the frame what stands where there is room for `MOST` bytes.
#[inline(always)]
fn write<const MOST: usize>(context: *mut __sk_buff, from: *const u8, length: u32) -> Option<()> {
    buffer::resize(context, length)?;
    buffer::store::<MOST>(context, 0, from, length, 0)
}
