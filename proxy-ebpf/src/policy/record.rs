//! Counters, and the last dropped packets of each CPU.

use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use proxy_common::policy::{POLICY_EVENTS_ENTRIES, PolicyDrop, PolicyEvent, allowed_counter};

use crate::policy::maps;
use crate::policy::scene::direction;
use crate::policy::skb::Skb;

/// The ends of a dropped packet.
#[derive(Clone, Copy, Default)]
pub struct Ends {
    /// Source address, v4-mapped.
    pub source: [u32; 4],
    /// Destination address, v4-mapped.
    pub destination: [u32; 4],
    /// Source and destination port.
    pub ports: [u16; 2],
    /// IP protocol number.
    pub protocol: u32,
}

/// Counts a packet that a judgement allowed.
#[inline(always)]
pub fn count_allowed<const FROM_POD: bool>(skb: Skb) {
    count(allowed_counter(direction(FROM_POD)), skb.length());
}

/// Counts and records a dropped packet.
#[inline(never)]
pub fn record_drop<const FROM_POD: bool>(skb: Skb, reason: PolicyDrop, ends: &Ends) {
    let direction = direction(FROM_POD);
    count(reason.counter(direction), skb.length());
    let Some(last) = maps::POLICY_RECORDING.get_ptr_mut(0) else { return };
    // SAFETY: this CPU's own, and only one program of ours runs on it at a time.
    let sequence = unsafe {
        *last = (*last).wrapping_add(1);
        *last
    };
    let index = sequence as u32 % POLICY_EVENTS_ENTRIES;
    let Some(event) = maps::POLICY_EVENTS.get_ptr_mut(index) else { return };
    // SAFETY: as above. Readers look at the sequence number before and after.
    unsafe {
        (&raw mut (*event).sequence).write_volatile(0);
        (*event).at = bpf_ktime_get_ns();
        (*event).device = skb.device();
        (*event).length = skb.length();
        (*event).source = ends.source;
        (*event).destination = ends.destination;
        [(*event).source_port, (*event).destination_port] = ends.ports;
        (*event).protocol = ends.protocol as u8;
        (*event).direction = direction as u8;
        (*event).reason = reason as u8;
        (*event).reserved = 0;
        publish(event, sequence);
    }
    skb.set_told();
}

/// # Safety
///
/// `event` must be this CPU's own.
#[inline(always)]
unsafe fn publish(event: *mut PolicyEvent, sequence: u64) {
    // SAFETY: a whole word, written after all others.
    unsafe { (&raw mut (*event).sequence).write_volatile(sequence) };
}

#[inline(always)]
fn count(index: u32, bytes: u32) {
    if let Some(counter) = maps::POLICY_COUNTERS.get_ptr_mut(index) {
        // SAFETY: this CPU's own, and only one program of ours runs on it at a time.
        unsafe {
            (*counter).packets = (*counter).packets.wrapping_add(1);
            (*counter).bytes = (*counter).bytes.wrapping_add(u64::from(bytes));
        }
    }
}
