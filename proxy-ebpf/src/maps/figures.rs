//! Figures of each Service and endpoint, written with events of connections.

use core::arch::asm;

use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use proxy_common::event::EventKind;
use proxy_common::figures::{
    BackendConnections, ConnectionEvent, Connections, HANDSHAKES_ENTRIES, handshake_bucket, handshake_time,
    handshake_word,
};
use proxy_common::selection::BackendRef;

use crate::maps::family::{Family, KeyOf};
use crate::maps::{self, recorder};

/// Counts an event of a connection for its Service and its backend, and records it if somebody watches.
///
/// `key` is that of the client's packets.
#[inline(always)]
pub fn count_connection<F: Family>(
    event: ConnectionEvent,
    key: &KeyOf<F>,
    service: u32,
    backend: BackendRef,
) {
    if let Some(counts) = maps::SERVICE_CONNECTIONS.get_ptr_mut(service) {
        add_to_service(counts, event);
    }
    if let Some(counts) = F::backend_connections(backend.id()) {
        add_to_backend(counts, event, backend);
    }
    recorder::record_connection::<F>(kind_of(event), key, service, backend);
}

const fn kind_of(event: ConnectionEvent) -> EventKind {
    match event {
        ConnectionEvent::Opened => EventKind::Opened,
        ConnectionEvent::Established => EventKind::Established,
        ConnectionEvent::Refused => EventKind::Refused,
        ConnectionEvent::Reset => EventKind::Reset,
    }
}

#[inline(always)]
fn add_to_service(counts: *mut Connections, event: ConnectionEvent) {
    // SAFETY: the map look-up checked the index, and the counts are the event's numbers in a row.
    unsafe {
        let count = counts.cast::<u64>().add(event as usize);
        asm!("lock *(u64 *)({count} + 0) += {one}", count = in(reg) count, one = in(reg) 1_u64);
    }
}

/// Adds one on behalf of all CPUs. The target has no atomic types, but the instruction.
///
/// # Safety
///
/// `count` must be a valid place in a map.
#[inline(always)]
unsafe fn increment(count: *mut u32) {
    // SAFETY: the caller's.
    unsafe { asm!("lock *(u32 *)({count} + 0) += {one}", count = in(reg) count, one = in(reg) 1_u64) };
}

#[inline(always)]
fn add_to_backend(counts: *mut BackendConnections, event: ConnectionEvent, backend: BackendRef) {
    // SAFETY: the map look-up checked the index. Two CPUs that begin anew at once lose a count.
    unsafe {
        if (*counts).reference != backend.0 {
            *counts = BackendConnections { reference: backend.0, ..BackendConnections::default() };
        }
    }
    // SAFETY: as above; the counts stand behind the reference.
    unsafe { increment(counts.cast::<u32>().add(1 + event as usize)) };
}

/// Stores the time of a SYN. `hash` is that of its reply.
#[inline(always)]
pub fn begin_handshake(hash: u32) {
    if let Some(word) = maps::HANDSHAKES.get_ptr_mut(hash % HANDSHAKES_ENTRIES) {
        // SAFETY: the map look-up checked the index; a whole word is written.
        unsafe { word.write_volatile(handshake_word(hash, microseconds())) };
    }
}

/// Counts the time since the SYN of an answer, if it was stored. Further answers are not counted.
#[inline(always)]
pub fn end_handshake(hash: u32, service: u32) {
    let Some(word) = maps::HANDSHAKES.get_ptr_mut(hash % HANDSHAKES_ENTRIES) else {
        return;
    };
    // SAFETY: as in `begin_handshake`.
    let Some(time) = handshake_time(unsafe { word.read_volatile() }, hash, microseconds()) else {
        return;
    };
    // SAFETY: as above.
    unsafe { word.write_volatile(0) };
    if let Some(handshakes) = maps::SERVICE_HANDSHAKES.get_ptr_mut(service) {
        // SAFETY: the map look-up checked the index, and there are as many counts as buckets.
        unsafe { increment(handshakes.cast::<u32>().add(handshake_bucket(time))) };
    }
}

#[inline(always)]
fn microseconds() -> u64 {
    // SAFETY: no arguments, no preconditions.
    unsafe { bpf_ktime_get_ns() / 1000 }
}
