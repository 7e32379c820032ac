//! Fragments IPv4 packets that are too large for their way and may be fragmented.
//!
//! `bpf_clone_redirect` makes two frames of one. Both fragments come in again by the device the packet came
//! in by, as if a router before this node had made them. The programs treat each like any packet, and
//! fragment one again that is still too large.

use core::hint::black_box;
use core::mem::{offset_of, replace};
use core::ptr;

use aya_ebpf::bindings::{__sk_buff, BPF_F_INGRESS, BPF_F_RECOMPUTE_CSUM};
use aya_ebpf::helpers::generated::{bpf_clone_redirect, bpf_csum_diff, bpf_l4_csum_replace};
use proxy_common::checksum::{Difference, fold};
use proxy_common::verdict::Reason;

use crate::header::{ETHERNET, FRAGMENT_MASK, Ipv4, MORE_FRAGMENTS, OFFSET_MASK, Tcp, Udp, protocol};
use crate::maps::{self, Buffer};
use crate::packet::buffer::{self, resize};
use crate::packet::tc::{BARE, FRAMED, TcPacket};
use crate::packet::{CHUNK_WORDS, Chunk, Kind, Packet};
use crate::verdict::{HAND_TO_TC, NO_ROOM, Verdict};

/// The second fragment is in the frame; the first one is on its way.
const SPLIT: u32 = 0;
/// The packet can't be cut.
const WHOLE: u32 = 1;
/// The kernel refused.
const REFUSED: u32 = 2;

const IP: u32 = size_of::<Ipv4>() as u32;
/// Offset of the payload of a packet that can be cut, in a frame with an Ethernet header.
const HEADERS: usize = ETHERNET + size_of::<Ipv4>();
/// Fragments begin at multiples of this many bytes.
const UNIT: u32 = 8;
/// The first byte of an IPv4 header without options. Only some options would have to be copied into the
/// second fragment.
const NO_OPTIONS: u8 = 0x45;
/// The most bytes that the second fragment takes over.
const MOST_TAKEN: usize = size_of::<Buffer>();

/// Cuts an IPv4 packet in two; the first fragment has at most `fits` bytes, and both come in again.
///
/// XDP can't make two frames of one. Frames of several segments are not cut: TCP's shrink by themselves, and
/// the program can't tell others apart.
#[inline(always)]
pub fn fragment<P: Packet>(packet: P, fits: u32) -> Verdict {
    let context = packet.context();
    let done = match P::KIND {
        Kind::Xdp => return HAND_TO_TC,
        _ if packet.has_segments() => return Verdict::Drop(Reason::TooBig),
        Kind::Framed => fragment_framed(context.cast(), fits),
        Kind::Bare => fragment_bare(context.cast(), fits),
    };
    match done {
        SPLIT => Verdict::Reinject(Reason::Fragmented),
        REFUSED => NO_ROOM,
        _ => Verdict::Drop(Reason::TooBig),
    }
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn fragment_framed(context: *mut __sk_buff, fits: u32) -> u32 {
    split(TcPacket::<FRAMED>::of(context), fits)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn fragment_bare(context: *mut __sk_buff, fits: u32) -> u32 {
    split(TcPacket::<BARE>::of(context), fits)
}

/// Cuts a packet in two; the first fragment has at most `fits` bytes, or fewer if the buffer is too small for
/// the rest.
///
/// The second fragment must come in behind the first: both wait in one queue.
#[inline(always)]
fn split<const LINK: usize>(mut packet: TcPacket<LINK>, fits: u32) -> u32 {
    let Some(header) = packet.read::<Ipv4>(ETHERNET) else {
        return WHOLE;
    };
    let payload = u32::from(u16::from_be(header.total_length)).saturating_sub(IP);
    let fitting = fits.saturating_sub(IP) & !(UNIT - 1);
    let left_over = (payload.saturating_sub(MOST_TAKEN as u32) + UNIT - 1) & !(UNIT - 1);
    let kept = if fitting > left_over { fitting } else { left_over };
    let ends = u32::from(u16::from_be(header.fragment & OFFSET_MASK)) + kept / UNIT;
    let is_offset = ends <= u32::from(u16::from_be(OFFSET_MASK));
    if header.version_and_length != NO_OPTIONS || fitting == 0 || kept >= payload || !is_offset {
        return WHOLE;
    }
    let parts = complete_checksum(&mut packet, &header, payload)
        .and_then(|()| send_first(&packet, &header, kept, payload - kept));
    if parts.is_some() { SPLIT } else { REFUSED }
}

/// Sends the first `kept` bytes of the payload, and leaves the other `rest` in the frame.
#[inline(always)]
fn send_first<const LINK: usize>(packet: &TcPacket<LINK>, header: &Ipv4, kept: u32, rest: u32) -> Option<()> {
    let context = packet.context().cast();
    let room = maps::BUFFER.get_ptr_mut(0)?.cast();
    buffer::load::<MOST_TAKEN>(context, in_frame::<LINK>(HEADERS as u32 + kept), room, rest)?;
    resize(context, in_frame::<LINK>(HEADERS as u32 + kept))?;
    write_header(packet, header, kept, header.fragment | MORE_FRAGMENTS)?;
    // SAFETY: the context is the kernel's; packet pointers are looked up again afterwards.
    if unsafe { bpf_clone_redirect(context, packet.device(), BPF_F_INGRESS.into()) } != 0 {
        return None;
    }
    resize(context, in_frame::<LINK>(HEADERS as u32 + rest))?;
    let offset = in_frame::<LINK>(HEADERS as u32);
    buffer::store::<MOST_TAKEN>(context, offset, room, rest, BPF_F_RECOMPUTE_CSUM)?;
    let fragment = u16::from_be(header.fragment).wrapping_add((kept / UNIT) as u16).to_be();
    write_header(packet, header, rest, fragment)
}

/// The place in this frame of an `offset` in a frame with an Ethernet header.
#[inline(always)]
const fn in_frame<const LINK: usize>(offset: u32) -> u32 {
    offset.wrapping_sub((ETHERNET - LINK) as u32)
}

/// Writes the header of a fragment with `payload` bytes.
#[inline(always)]
fn write_header<const LINK: usize>(
    packet: &TcPacket<LINK>,
    header: &Ipv4,
    payload: u32,
    fragment: u16,
) -> Option<()> {
    let total_length = ((IP + payload) as u16).to_be();
    let changed =
        Difference::default().half(header.total_length, total_length).half(header.fragment, fragment);
    packet.update::<Ipv4>(ETHERNET, |place| {
        place.total_length = total_length;
        place.fragment = fragment;
        place.checksum = changed.apply(header.checksum);
    })
}

/// Computes the whole datagram's checksum, which was left to hardware (`CHECKSUM_PARTIAL`).
///
/// Hardware would compute it over the first fragment alone.
#[inline(always)]
fn complete_checksum<const LINK: usize>(
    packet: &mut TcPacket<LINK>,
    header: &Ipv4,
    payload: u32,
) -> Option<()> {
    let field = match header.protocol {
        _ if header.fragment & FRAGMENT_MASK != 0 => return Some(()),
        protocol::TCP => HEADERS + offset_of!(Tcp, checksum),
        protocol::UDP => HEADERS + offset_of!(Udp, checksum),
        _ => return Some(()),
    };
    if !is_unfinished(packet, field)? {
        return Some(());
    }
    // The sum covers whole words; the bytes behind the last one must not count.
    let last = (payload.wrapping_sub(1) as usize & (MOST_TAKEN - 1)) / size_of::<u32>();
    let room = maps::BUFFER.get_ptr_mut(0)?;
    // SAFETY: the mask keeps the word inside the buffer.
    unsafe { *room.cast::<u32>().add(last) = 0 };
    let offset = in_frame::<LINK>(HEADERS as u32);
    buffer::load::<MOST_TAKEN>(packet.context().cast(), offset, room.cast(), payload)?;
    let checksum = !fold(u64::from(sum(room, payload)));
    forget_unfinished(packet)?;
    packet.write(field, if checksum == 0 { 0xffff } else { checksum })
}

/// Whether a checksum is left to hardware. If so, the helper applies only changes of the pseudo-header to it.
#[inline(always)]
fn is_unfinished<const LINK: usize>(packet: &TcPacket<LINK>, field: usize) -> Option<bool> {
    let place = packet.at::<u16>(field)?;
    // SAFETY: `at` checked the bound.
    let before = unsafe { *place };
    // SAFETY: the context is the kernel's; packet pointers are looked up again afterwards.
    unsafe { bpf_l4_csum_replace(packet.context().cast(), in_frame::<LINK>(field as u32), 0, 1, 0) };
    let place = packet.at::<u16>(field)?;
    // SAFETY: `at` checked the bound.
    let after = unsafe { replace(&mut *place, before) };
    Some(before == after)
}

/// Makes the kernel forget the checksum that was left to hardware.
///
/// It does so only if the checksum's place is pulled out of the frame. The bytes pulled out are written
/// again.
#[inline(always)]
fn forget_unfinished<const LINK: usize>(packet: &mut TcPacket<LINK>) -> Option<()> {
    const PULLED: usize = HEADERS + 1;
    let mut pulled: Chunk = [0; CHUNK_WORDS];
    packet.load(ETHERNET, &mut pulled, PULLED).ok()?;
    packet.forget_checksum(PULLED as i32).ok()?;
    packet.store(ETHERNET, &pulled, PULLED).ok()
}

/// The sum over the first bytes of a buffer.
#[inline(always)]
fn sum(room: *mut Buffer, bytes: u32) -> u32 {
    /// The most bytes that the kernel sums up at once (before 6.13).
    const PIECE: u32 = 512;
    const WORD: u32 = size_of::<u32>() as u32;
    let mut sum = 0;
    for index in 0..MOST_TAKEN as u32 / PIECE {
        let from = index * PIECE;
        if from >= bytes {
            break;
        }
        let left = (bytes - from + 3) & !3;
        let piece = if left < PIECE { left } else { PIECE };
        // As in `buffer::load`: the verifier has lost the bounds.
        let piece = (black_box(piece - WORD) & (PIECE - WORD)) + WORD;
        // SAFETY: the piece lies inside the buffer; the kernel only reads.
        let words = unsafe { room.cast::<u8>().add(from as usize).cast() };
        // SAFETY: as above; nothing is subtracted.
        sum = unsafe { bpf_csum_diff(ptr::null_mut(), 0, words, piece, sum) }.cast_unsigned() as u32;
    }
    sum
}
