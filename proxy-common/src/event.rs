//! EVENTS, RECORDING and MONITOR: the last events of each CPU, in memory that any number of readers can watch.
//!
//! Each CPU writes its events round its own row of EVENTS. Nothing is consumed: a reader follows the
//! sequence numbers, and sees by a gap what it missed. So the last drops are there when somebody asks for them
//! later, also without an agent.

use crate::layout::shared;
use crate::verdict::Reason;

/// Entries of a CPU's row.
pub const EVENTS_PER_CPU: u32 = 1 << 8;
/// 64-bit words of a captured frame.
pub const CAPTURED_WORDS: usize = 16;
/// Bytes of a captured frame.
pub const CAPTURED_BYTES: usize = CAPTURED_WORDS * 8;
/// [`Event::program`] of the hooks of sockets.
pub const SOCKET: u8 = u8::MAX;
/// Drops that each CPU records in a second while nobody watches.
pub const USUAL_RATE: u32 = 10;

shared! {
    /// Value of EVENTS. Index: the CPU times [`EVENTS_PER_CPU`], and the sequence number modulo that.
    pub struct Event {
        /// Number of the event on its CPU, from 1; 0 while it is being written.
        pub sequence: u64,
        /// Monotonic nanoseconds (CLOCK_MONOTONIC).
        pub at: u64,
        /// Service id, or 0 if the program did not get that far.
        pub service: u32,
        /// [`BackendRef`](crate::selection::BackendRef) of the backend, or 0.
        pub backend: u32,
        /// Index of the device the packet came in or leaves by; 0 for events of connections.
        pub device: u32,
        /// Bytes of the frame; 0 for events of connections.
        pub length: u32,
        /// Client's address, v4-mapped; zeros if there is a frame.
        pub source: [u32; 4],
        /// Frontend's address, v4-mapped; zeros if there is a frame.
        pub destination: [u32; 4],
        /// Client's port, network byte order.
        pub source_port: u16,
        /// Frontend's port, network byte order.
        pub destination_port: u16,
        /// Protocol number; 0 if there is a frame.
        pub protocol: u8,
        /// [`EventKind`].
        pub kind: u8,
        /// [`Program`](crate::verdict::Program) of a drop, or [`SOCKET`].
        pub program: u8,
        /// [`Reason`] of a drop.
        pub reason: u8,
        /// Bytes in `frame`.
        pub captured: u16,
        /// Whether the frame begins with an IP header, not an Ethernet one.
        pub is_bare: u16,
        /// Zero.
        pub reserved: u32,
        /// The beginning of the frame.
        pub frame: [u64; CAPTURED_WORDS],
    }

    /// Value of RECORDING, one for each CPU. Written by the programs.
    pub struct Recording {
        /// Number of this CPU's last event.
        pub sequence: u64,
        /// Events left out, because the second had no more of the rate.
        pub lost: u64,
        /// The second that `used` belongs to.
        pub second: u32,
        /// Events recorded in that second, because somebody watches.
        pub used: u32,
        /// The Service of this CPU's packet, if it is to be dropped; 0 before it is known.
        pub service: u32,
        /// Drops recorded in that second, because nobody watches them.
        pub usual: u32,
    }

    /// Value of MONITOR, the only one: what a watching command wants recorded. Without one, the programs record
    /// drops at [`USUAL_RATE`].
    pub struct Monitor {
        /// Bits by number of the [`Reason`] of a drop.
        pub reasons: u64,
        /// Bits by [`EventKind`].
        pub kinds: u32,
        /// Events a second on each CPU.
        pub rate: u32,
        /// Services that are recorded, a bit for each remainder of their ids ([`services_bit`]); 0 for all.
        pub services: u32,
        /// Monotonic second until which this holds, so that a killed command leaves nothing behind.
        pub until: u32,
    }
}

impl Monitor {
    /// The state without a watching command.
    pub const USUAL: Self = Self {
        reasons: u64::MAX,
        kinds: EventKind::Drop.bit(),
        rate: USUAL_RATE,
        services: 0,
        until: u32::MAX,
    };

    /// Returns whether an event is wanted.
    #[inline(always)]
    #[must_use]
    pub const fn wants(&self, kind: EventKind, reason: u32, service: u32) -> bool {
        let is_reason = !matches!(kind, EventKind::Drop) || self.reasons >> (reason % u64::BITS) & 1 != 0;
        let is_service = self.services == 0 || self.services & services_bit(service) != 0;
        self.kinds & kind.bit() != 0 && is_reason && is_service
    }
}

/// Returns the bit of a Service id in [`Monitor::services`]. Others have the same bit: the reader sorts them out.
#[inline(always)]
#[must_use]
pub const fn services_bit(service: u32) -> u32 {
    1 << (service % u32::BITS)
}

/// The kind of an event.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EventKind {
    /// A packet was dropped, or its sender refused.
    Drop = 0,
    /// A connection, or an exchange of datagrams, began.
    Opened = 1,
    /// The client showed that it had seen an answer.
    Established = 2,
    /// The backend refused a connection.
    Refused = 3,
    /// The backend ended an established connection with a RST.
    Reset = 4,
}

impl EventKind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Self; 5] = [Self::Drop, Self::Opened, Self::Established, Self::Refused, Self::Reset];

    /// Returns the bit in [`Monitor::kinds`].
    #[inline(always)]
    #[must_use]
    pub const fn bit(self) -> u32 {
        1 << self as u32
    }

    /// Returns the name in the output and in flags.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Drop => "drop",
            Self::Opened => "opened",
            Self::Established => "established",
            Self::Refused => "refused",
            Self::Reset => "reset",
        }
    }
}

impl Event {
    /// Returns the kind; `None` for a number that this version does not know.
    #[must_use]
    pub fn kind(&self) -> Option<EventKind> {
        EventKind::ALL.get(usize::from(self.kind)).copied()
    }

    /// Returns the reason of a drop.
    #[must_use]
    pub fn reason(&self) -> Option<Reason> {
        Reason::try_from(u32::from(self.reason)).ok()
    }
}

const _: () = assert!(crate::verdict::REASONS <= u64::BITS, "Monitor::reasons has a bit for each reason");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_monitor_wants_its_kinds_reasons_and_service_only() {
        let drop = |monitor: Monitor, reason: Reason, service| {
            monitor.wants(EventKind::Drop, reason as u32, service)
        };
        assert!(drop(Monitor::USUAL, Reason::NoEndpoint, 0));
        assert!(!Monitor::USUAL.wants(EventKind::Opened, 0, 7));
        let services = services_bit(7) | services_bit(9);
        let one = Monitor { reasons: 1 << Reason::NoEndpoint as u32, services, ..Monitor::USUAL };
        assert!(drop(one, Reason::NoEndpoint, 7));
        assert!(!drop(one, Reason::NoWay, 7) && !drop(one, Reason::NoEndpoint, 8));
        assert!(drop(one, Reason::NoEndpoint, 9) && drop(one, Reason::NoEndpoint, 7 + u32::BITS));
        let opened = Monitor { kinds: EventKind::Opened.bit(), reasons: 0, ..Monitor::USUAL };
        assert!(opened.wants(EventKind::Opened, 0, 7), "reasons are those of drops");
    }
}
