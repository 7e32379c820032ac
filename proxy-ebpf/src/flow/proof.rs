//! Proof that the client has seen its backend's answer, before its connection moves to FLOWS.
//!
//! Without it a flood of forged SYNs and ACKs would evict silent connections there.

use proxy_common::addr::Address;
use proxy_common::answer::{ANSWERS_ENTRIES, ANSWERS_ROW, Answer};
use proxy_common::figures::is_timed;
use proxy_common::hash::flow_hash;

use crate::header::{has_connections, tcp_flag};
use crate::maps::family::{Family, KeyOf};
use crate::maps::{self, figures};
use crate::packet::{Packet, Parsed, Transport};

/// Records a backend's answer to an embryo; it promotes nothing.
///
/// A RST is no answer, and a datagram's can't be told. Not inlined: the walks have no room on the stack.
#[inline(never)]
pub fn record_answer<P: Packet, F: Family>(packet: P, parsed: &Parsed<F::Address>) -> bool {
    let is_reset = parsed.tcp_flags & tcp_flag::RST != 0;
    if !is_reset && !parsed.is_later() && has_connections(parsed.key.protocol) {
        record_number(own_number::<P>(&packet, parsed.transport()), parsed);
        if parsed.tcp_flags & tcp_flag::SYN != 0 && is_timed(parsed.key.destination_port) {
            end_handshake::<F>(&parsed.key);
        }
    }
    false
}

/// Counts the time to the first answer, for the Service of the embryo.
#[inline(always)]
fn end_handshake<F: Family>(key: &KeyOf<F>) {
    // SAFETY: a word is read at once; another connection's entry counts for the wrong Service.
    if let Some(flow) = unsafe { F::flows_new().get(key) } {
        figures::end_handshake(flow_hash(key), flow.service);
    }
}

#[inline(always)]
fn record_number<A: Address>(number: u32, parsed: &Parsed<A>) {
    let hash = flow_hash(&parsed.key);
    let is_first = parsed.tcp_flags & tcp_flag::SYN != 0;
    let Some(row) = row(hash) else {
        return;
    };
    // The connection's own word, or an empty one, or any.
    let (mut place, mut former) = (number as usize % ANSWERS_ROW, Answer::default());
    for index in 0..ANSWERS_ROW {
        let word = read(row, index);
        if word.is_of(hash) {
            (place, former) = (index, word);
            break;
        }
        if word.0 == 0 {
            place = index;
        }
    }
    let answer = match (parsed.transport().is_tcp(), is_first) {
        (true, true) => Answer::first(hash, number.wrapping_add(1)),
        (true, false) => former.later(hash, number),
        (false, true) => Answer::first(hash, number),
        (false, false) => Answer::any(hash),
    };
    write(row, place, answer);
}

/// Whether a client's number shows that it has seen the backend's answer in replies with this key.
///
/// The number that proved it is forgotten: if the entry is lost, other numbers will do.
#[inline(always)]
pub fn is_shown<F: Family>(reply_key: &KeyOf<F>, number: u32) -> bool {
    let hash = flow_hash(reply_key);
    let Some(row) = row(hash) else {
        return false;
    };
    for index in 0..ANSWERS_ROW {
        if read(row, index).is_shown_by(hash, number) {
            write(row, index, Answer::default());
            return true;
        }
    }
    false
}

#[inline(always)]
fn row(hash: u32) -> Option<*mut u64> {
    maps::ANSWERS.get_ptr_mut(hash % ANSWERS_ENTRIES).map(<*mut _>::cast)
}

#[inline(always)]
fn read(row: *mut u64, index: usize) -> Answer {
    // SAFETY: the map look-up checked the row, and the modulus the index; the word is read at once.
    Answer(unsafe { row.add(index % ANSWERS_ROW).read_volatile() })
}

#[inline(always)]
fn write(row: *mut u64, index: usize, answer: Answer) {
    // SAFETY: as in `read`; written at once.
    unsafe { row.add(index % ANSWERS_ROW).write_volatile(answer.0) }
}

/// The number that a client acknowledges in TCP; in SCTP its packet's tag; zero if there is none.
#[inline(always)]
pub fn acknowledged<P: Packet>(packet: &P, transport: Transport) -> u32 {
    load::<P>(packet, transport, if transport.is_tcp() { 8 } else { 4 })
}

/// A backend's sequence number in TCP; in SCTP the tag of its INIT ACK (RFC 9260, section 3.3.3).
#[inline(always)]
fn own_number<P: Packet>(packet: &P, transport: Transport) -> u32 {
    load::<P>(packet, transport, if transport.is_tcp() { 4 } else { 16 })
}

#[inline(always)]
fn load<P: Packet>(packet: &P, transport: Transport, within: usize) -> u32 {
    let number = packet.read::<u32>(transport.offset() + within);
    number.map_or(0, u32::from_be)
}
