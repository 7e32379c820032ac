//! HELD: fragments that came before the first one of their packet, in TC.
//!
//! A program can't send stored bytes by itself, but it can send copies of its frame. It overwrites the first
//! fragment's frame with each held one in turn and sends a copy to the device the first one came in by, which
//! receives it anew. At last it restores the first fragment.

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

/// BUFFER, for data that has no room on the stack.
#[repr(C)]
pub struct Room<A> {
    /// The key of the packet of the last followed fragment.
    pub fragment: FragmentKey<A>,
    /// The key of this fragment in HELD; until `write_key`, only the part that differs within its packet.
    pub held: HeldKey,
    frame: [u64; FIRST_BYTES / 8],
}
const _: () = assert!(size_of::<Room<Addr6>>() <= size_of::<Buffer>() && size_of::<Held>() <= FIRST_BYTES);

/// This CPU's room.
#[inline(always)]
pub fn room<F: Family>() -> Option<&'static mut Room<F::Address>> {
    let room = maps::BUFFER.get_ptr_mut(0)?.cast::<Room<F::Address>>();
    // SAFETY: this CPU's own, large enough, aligned, and used for nothing else until the fragment is
    // finished.
    Some(unsafe { &mut *room })
}

/// Holds the last followed fragment until the first one of its packet comes, if it is for a Service's address
/// or this node's own.
///
/// Returns the first one's word if it has come by now, else `HELD`, `FOR_TC`, or zero. XDP can't hold
/// fragments: it sends one frame for one frame.
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
        // The first one came after the announcement, and may not have seen the held fragment.
        Some(of) => {
            let _ = maps::HELD.remove(&room.held);
            Some(Findings::of(of))
        }
        None => Some(Findings::HELD),
    }
}

/// Enters the last followed first fragment, and sends the fragments held for it to be received again.
///
/// Returns the answer of [`fragments::put`], or `FOR_TC`. All pointers die.
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
    // If it does not fit, the held fragments stay lost.
    if buffer::load::<FIRST_BYTES>(context, 0, room.frame.as_mut_ptr().cast(), length).is_none() {
        return answer;
    }
    // The kernel's knowledge of this frame's checksum is wrong for the others: a change of length makes the
    // kernel forget it.
    let _ = buffer::resize(context, length + 1);
    write_key::<F>(room);
    for piece in 0..HELD_PIECES {
        room.held.piece = piece;
        global_send::<F>(context);
    }
    // Otherwise the frame still holds another fragment, and is dropped.
    if write::<FIRST_BYTES>(context, room.frame.as_ptr().cast(), length).is_some() {
        answer
    } else {
        Findings::OURS
    }
}

/// Writes the part of the key in HELD that all fragments of the packet share.
#[inline(always)]
fn write_key<F: Family>(room: &mut Room<F::Address>) {
    let of = &room.fragment;
    let ([s0, s1, s2, s3], [d0, d1, d2, d3]) = (F::map(&of.source), F::map(&of.destination));
    (room.held.source, room.held.destination) = (Addr6([s0, s1, s2, s3]), Addr6([d0, d1, d2, d3]));
    (room.held.id, room.held.protocol_and_side) = (of.id, of.protocol_and_side);
}

global_by_family! {
    fn global_send = send_held4 | send_held6(context: *mut __sk_buff) -> u32, send_body
}

#[inline(always)]
fn send_body<F: Family>(context: *mut __sk_buff) -> u32 {
    if let Some(room) = room::<F>() {
        send(context, &room.held);
    }
    0
}

/// Overwrites the frame with a held fragment, if there is one, and has a copy received.
///
/// If the entry goes to another packet at this moment, the fragment's checksum is wrong.
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

/// Overwrites the frame with bytes from a place of `MOST` bytes.
#[inline(always)]
fn write<const MOST: usize>(context: *mut __sk_buff, from: *const u8, length: u32) -> Option<()> {
    buffer::resize(context, length)?;
    buffer::store::<MOST>(context, 0, from, length, 0)
}
