//! The figures of Services and the recorder's events.

use aya::maps::{MapData, PerCpuArray, PerCpuHashMap};
use proxy_common::event::{EVENTS_PER_CPU, Event, Recording};
use proxy_common::figures::{Connections, DropKey, Handshakes};
use proxy_common::verdict::{Counter, Reason};

use super::Bed;

impl Bed {
    /// Reads what became of the connections of a Service.
    #[must_use]
    pub fn connections(&self, service: u32) -> Connections {
        self.get("SERVICE_CONNECTIONS", service)
    }

    /// Reads the number of a Service's timed connections.
    #[must_use]
    pub fn handshakes(&self, service: u32) -> u32 {
        self.get::<Handshakes>("SERVICE_HANDSHAKES", service).counts.iter().sum()
    }

    /// Reads the packets of a Service that were dropped for a reason.
    ///
    /// # Panics
    /// If the map can't be read.
    #[must_use]
    pub fn service_drops(&self, service: u32, reason: Reason) -> u64 {
        let ebpf = self.ebpf();
        let map = ebpf.map("SERVICE_DROPS").expect("SERVICE_DROPS");
        let map: PerCpuHashMap<&MapData, DropKey, Counter> = map.try_into().expect("SERVICE_DROPS");
        let key = DropKey { service, reason: reason as u32 };
        map.get(&key, 0).map_or(0, |values| values.iter().map(|value| value.packets).sum())
    }

    /// Reads each CPU's place in the recorder.
    ///
    /// # Panics
    /// If the map can't be read.
    #[must_use]
    pub fn recordings(&self) -> Vec<Recording> {
        let ebpf = self.ebpf();
        let map = ebpf.map("RECORDING").expect("RECORDING");
        let map: PerCpuArray<&MapData, Recording> = map.try_into().expect("RECORDING");
        map.get(&0, 0).expect("a recording").iter().copied().collect()
    }

    /// Reads the events since a reading of [`recordings`](Self::recordings), in the order of their time.
    #[must_use]
    pub fn events_since(&self, before: &[Recording]) -> Vec<Event> {
        let mut events = Vec::new();
        for ((cpu, before), now) in (0_u32..).zip(before).zip(self.recordings()) {
            for sequence in before.sequence + 1..=now.sequence {
                let place = u32::try_from(sequence % u64::from(EVENTS_PER_CPU)).unwrap_or(0);
                events.push(self.get::<Event>("EVENTS", cpu * EVENTS_PER_CPU + place));
            }
        }
        events.sort_by_key(|event| event.at);
        events
    }
}
