//! The recorder's events, for any number of readers at a time.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;

use aya::maps::{Array, Map, MapData, MapError, PerCpuArray};
use proxy_common::event::{EVENTS_PER_CPU, Event, Monitor, Recording};
use proxy_common::selection::BackendRef;

use super::services::ServiceText;
use super::{PinnedMaps, ReadError};
use crate::dataplane::ebpf::convert::socket;
use crate::dataplane::ebpf::error::OpenError;
use crate::dataplane::ebpf::map;

/// Events since the last reading.
#[derive(Clone, Debug, Default)]
pub struct Recorded {
    /// The events, in the order of their time.
    pub events: Vec<Event>,
    /// Events that are gone: the rate left them out, or the reader came too late.
    pub missed: u64,
}

/// A reader of the recorder.
pub struct Recorder {
    events: Array<MapData, Event>,
    recording: PerCpuArray<MapData, Recording>,
    monitor: Array<MapData, Monitor>,
    /// The last event that was read of each CPU, and what it had left out then.
    seen: Vec<(u64, u64)>,
    /// What this reader wrote last.
    wanted: Option<Monitor>,
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder").field("seen", &self.seen).finish_non_exhaustive()
    }
}

impl Recorder {
    /// Opens the recorder. `history` says whether the first reading returns the events that are still there.
    pub fn open(maps: &PinnedMaps, history: bool) -> Result<Self, ReadError> {
        let directory = maps.layout.maps();
        let failed = |name: &str| {
            let name = name.to_owned();
            move |error: MapError| OpenError::Map { map: name, error }
        };
        let mut recorder = Self {
            events: Array::try_from(open(&directory, "EVENTS")?).map_err(failed("EVENTS"))?,
            recording: PerCpuArray::try_from(open(&directory, "RECORDING")?).map_err(failed("RECORDING"))?,
            monitor: Array::try_from(open(&directory, "MONITOR")?).map_err(failed("MONITOR"))?,
            seen: Vec::new(),
            wanted: None,
        };
        let now = recorder.recording.get(&0, 0).map_err(ReadError::Counter)?;
        let first = |recording: &Recording| if history { 0 } else { recording.sequence };
        recorder.seen = now.iter().map(|recording| (first(recording), recording.lost)).collect();
        Ok(recorder)
    }

    /// Has events recorded until the end of the wanted setting. Other readers that watch get theirs as well.
    pub fn want(&mut self, wanted: Monitor, now: u32) -> Result<(), ReadError> {
        let others = self.monitor.get(&0, 0).map_err(ReadError::Counter)?;
        // What is there may be of this reader alone. Else others would get what has ended for as long as it watches.
        let has_others = others.until >= now && self.wanted != Some(others);
        let wanted = if has_others { join(others, wanted) } else { wanted };
        self.wanted = Some(wanted);
        self.monitor.set(0, wanted, 0).map_err(ReadError::Counter)
    }

    /// Returns the events since the last reading.
    pub fn read(&mut self) -> Result<Recorded, ReadError> {
        let now = self.recording.get(&0, 0).map_err(ReadError::Counter)?;
        let mut recorded = Recorded::default();
        for ((cpu, recording), seen) in (0_u32..).zip(now.iter()).zip(&mut self.seen) {
            let oldest = recording.sequence.saturating_sub(u64::from(EVENTS_PER_CPU) - 1).max(1);
            let first = (seen.0 + 1).max(oldest);
            // The history from before the start is not missed.
            recorded.missed += recording.lost.saturating_sub(seen.1);
            recorded.missed += if seen.0 == 0 { 0 } else { first - (seen.0 + 1) };
            for sequence in first..=recording.sequence {
                let place = u32::try_from(sequence % u64::from(EVENTS_PER_CPU)).unwrap_or(0);
                let event =
                    self.events.get(&(cpu * EVENTS_PER_CPU + place), 0).map_err(ReadError::Counter)?;
                // Another number: it is being overwritten.
                if event.sequence == sequence {
                    recorded.events.push(event);
                } else {
                    recorded.missed += 1;
                }
            }
            *seen = (recording.sequence, recording.lost);
        }
        recorded.events.sort_by_key(|event| event.at);
        Ok(recorded)
    }
}

/// The kinds, reasons and rate that both want.
fn join(one: Monitor, other: Monitor) -> Monitor {
    Monitor {
        reasons: one.reasons | other.reasons,
        kinds: one.kinds | other.kinds,
        rate: one.rate.max(other.rate),
        // Zero is for all.
        services: if one.services == 0 || other.services == 0 { 0 } else { one.services | other.services },
        until: one.until.max(other.until),
    }
}

fn open(directory: &Path, name: &'static str) -> Result<Map, OpenError> {
    let (map, _) = map::open(directory, name)?;
    Map::from_map_data(map).map_err(|error| OpenError::Map { map: name.to_owned(), error })
}

impl PinnedMaps {
    /// Returns the Service ports by service id, as `namespace/name:port`.
    pub fn service_labels(&self) -> Result<BTreeMap<u32, String>, ReadError> {
        Ok(self.names()?.into_iter().map(|(id, text)| (id, ServiceText::label(&text))).collect())
    }

    /// Returns the address of a backend, unless its id belongs to another one by now.
    #[must_use]
    pub fn backend_address(&self, reference: BackendRef, is_v6: bool) -> Option<SocketAddr> {
        if is_v6 {
            let found = self.maps.of6.backends.get(reference.id())?;
            found.is(reference).then(|| socket(found.address, found.port))
        } else {
            let found = self.maps.of4.backends.get(reference.id())?;
            found.is(reference).then(|| socket(found.address, found.port))
        }
    }
}

#[cfg(test)]
mod tests {
    use proxy_common::event::EventKind;

    use super::*;

    #[test]
    fn two_watching_commands_get_the_events_of_both() {
        let drops = Monitor { reasons: 1 << 16, services: 1 << 7, until: 9, ..Monitor::USUAL };
        let opened =
            Monitor { kinds: EventKind::Opened.bit(), reasons: 0, rate: 1000, services: 1 << 8, until: 5 };
        let both = join(drops, opened);
        assert_eq!(both.kinds, EventKind::Drop.bit() | EventKind::Opened.bit());
        assert_eq!((both.reasons, both.rate, both.services, both.until), (1 << 16, 1000, 3 << 7, 9));
        assert_eq!(join(both, Monitor::USUAL).services, 0, "one of them watches all Services");
    }
}
