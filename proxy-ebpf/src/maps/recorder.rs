//! The recorder: the last events of each CPU, for `millrace monitor`.

use aya_ebpf::helpers::generated::{bpf_get_smp_processor_id, bpf_ktime_get_ns};
use proxy_common::event::{EVENTS_PER_CPU, Event, EventKind, Monitor, Recording, SOCKET};
use proxy_common::selection::BackendRef;
use proxy_common::verdict::Reason;

use crate::maps::family::{Endpoint, Family, KeyOf};
use crate::maps::{self, clock, drops};
use crate::verdict::Verdict;

/// Stands for a Service once a packet's drop is recorded.
const RECORDED: u32 = u32::MAX;

/// The place of an event that is being written.
pub struct Place {
    /// The event, without sequence number and frame.
    pub event: &'static mut Event,
    sequence: u64,
}

impl Place {
    /// Lets readers see the event.
    #[inline(always)]
    pub fn publish(self) {
        let sequence = &raw mut self.event.sequence;
        // SAFETY: a whole word, written after all others.
        unsafe { sequence.write_volatile(self.sequence) };
    }
}

/// Whether the Service of this CPU's packet is not known.
#[inline(always)]
pub fn lacks_service() -> bool {
    recording().is_some_and(|recording| recording.service == 0)
}

/// Remembers the Service of this CPU's packet until its drop is recorded.
#[inline(always)]
pub fn remember_service(service: u32) {
    if let Some(recording) = recording() {
        recording.service = service;
    }
}

/// Remembers the Service of a packet whose stage ends in a drop.
#[inline(always)]
pub fn remember_drop(service: u32, verdict: Verdict) {
    if verdict.reason().is_drop() {
        remember_service(service);
    }
}

/// Counts the drop of this CPU's packet for its Service, and returns a place for the event if it is wanted. Of a
/// packet's drops only the first one counts; `is_last` tells that no other one can follow.
#[inline(always)]
pub fn begin_drop(reason: u32, is_last: bool) -> Option<Place> {
    let recording = recording()?;
    let service = recording.service;
    recording.service = if is_last { 0 } else { RECORDED };
    if service == RECORDED {
        return None;
    }
    if service != 0 {
        drops::count(service, reason);
    }
    begin(recording, EventKind::Drop, reason, service)
}

/// Counts and records that a socket is refused a Service.
#[inline(always)]
pub fn record_refusal<F: Family>(reason: Reason, asked: &Endpoint<F>, protocol: u8, service: u32) {
    if service != 0 {
        drops::count(service, reason as u32);
    }
    let place = recording().and_then(|recording| begin(recording, EventKind::Drop, reason as u32, service));
    let Some(place) = place else {
        return;
    };
    let event = &mut *place.event;
    (event.source, event.destination) = ([0; 4], F::map(&asked.0));
    (event.source_port, event.destination_port, event.protocol) = (0, asked.1, protocol);
    (event.device, event.length, event.captured) = (0, 0, 0);
    event.program = SOCKET;
    place.publish();
}

/// Records an event of a connection, if it is wanted. `key` is that of the client's packets.
#[inline(always)]
pub fn record_connection<F: Family>(kind: EventKind, key: &KeyOf<F>, service: u32, backend: BackendRef) {
    let Some(place) = recording().and_then(|recording| begin(recording, kind, 0, service)) else {
        return;
    };
    let event = &mut *place.event;
    event.backend = backend.0;
    (event.source, event.destination) = (F::map(&key.source), F::map(&key.destination));
    (event.source_port, event.destination_port) = (key.source_port, key.destination_port);
    event.protocol = key.protocol;
    (event.device, event.length, event.captured) = (0, 0, 0);
    place.publish();
}

#[inline(always)]
fn begin(recording: &'static mut Recording, kind: EventKind, reason: u32, service: u32) -> Option<Place> {
    let now = clock::now();
    let wanted = maps::MONITOR.get(0)?;
    let is_watched = wanted.until >= now;
    let is_wanted = is_watched && wanted.wants(kind, reason, service);
    // Whatever somebody watches, the last drops are there for the next one.
    if !is_wanted && !Monitor::USUAL.wants(kind, reason, service) {
        return None;
    }
    if recording.second != now {
        (recording.second, recording.used, recording.usual) = (now, 0, 0);
    }
    let (used, rate) = if is_wanted {
        (&mut recording.used, wanted.rate)
    } else {
        (&mut recording.usual, Monitor::USUAL.rate)
    };
    if *used >= rate {
        // A watching command is not told of what it did not want.
        if is_wanted || !is_watched {
            recording.lost = recording.lost.wrapping_add(1);
        }
        return None;
    }
    *used += 1;
    recording.sequence = recording.sequence.wrapping_add(1);
    let sequence = recording.sequence;
    // SAFETY: no arguments, no preconditions.
    let (cpu, at) = unsafe { (bpf_get_smp_processor_id(), bpf_ktime_get_ns()) };
    let row = cpu.wrapping_mul(EVENTS_PER_CPU);
    let event = maps::EVENTS.get_ptr_mut(row | (sequence as u32 % EVENTS_PER_CPU))?;
    // SAFETY: this CPU's own row, and only one program of ours runs on it at a time. Readers look at the
    // sequence number before and after.
    let event = unsafe {
        (&raw mut (*event).sequence).write_volatile(0);
        &mut *event
    };
    (event.at, event.service, event.backend) = (at, service, 0);
    (event.kind, event.reason, event.program) = (kind as u8, reason as u8, 0);
    Some(Place { event, sequence })
}

#[inline(always)]
fn recording() -> Option<&'static mut Recording> {
    // SAFETY: this CPU's own, and only one program of ours runs on it at a time.
    maps::RECORDING.get_ptr_mut(0).map(|recording| unsafe { &mut *recording })
}
