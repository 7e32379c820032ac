//! The last packets that the firewall dropped on each CPU, for any number of readers at a time.

use std::collections::BTreeSet;

use aya::maps::{MapData, MapError, PerCpuArray};
use proxy_common::policy::{POLICY_EVENTS_ENTRIES, PolicyEvent};

use super::maps::typed;
use super::read::PinnedFirewall;
use crate::dataplane::ebpf::error::OpenError;
use crate::dataplane::ebpf::read::ReadError;

const EVENTS: &str = "POLICY_EVENTS";
const RECORDING: &str = "POLICY_RECORDING";

/// Dropped packets since the last reading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedDrops {
    /// The drops, in the order of their time.
    pub events: Vec<PolicyEvent>,
    /// Drops that other ones have overwritten before they were read.
    pub missed: u64,
}

/// A reader of the drops.
pub struct DropRecorder {
    events: PerCpuArray<MapData, PolicyEvent>,
    recording: PerCpuArray<MapData, u64>,
    cursor: Cursor,
}

/// The number of the last drop of each CPU that was read; 0 before the first one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Cursor(Vec<u64>);

impl std::fmt::Debug for DropRecorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DropRecorder").field("cursor", &self.cursor).finish_non_exhaustive()
    }
}

impl PinnedFirewall {
    /// Opens the drops. `history` says whether the first reading returns those that are still there.
    pub fn drops(&self, history: bool) -> Result<DropRecorder, ReadError> {
        let open = || {
            let recording: PerCpuArray<MapData, u64> = typed(&self.maps(), RECORDING)?;
            let last = last(&recording)?;
            let seen = if history { vec![0; last.len()] } else { last };
            let events = typed(&self.maps(), EVENTS)?;
            Ok(DropRecorder { events, recording, cursor: Cursor(seen) })
        };
        open().map_err(|error| self.explain(error))
    }
}

impl DropRecorder {
    /// Returns the drops since the last reading.
    pub fn read(&mut self) -> Result<RecordedDrops, OpenError> {
        let before = last(&self.recording)?;
        let mut rows = Vec::new();
        for index in self.cursor.places(&before) {
            let row = self.events.get(&index, 0).map_err(failed(EVENTS))?;
            rows.push(row.iter().copied().collect::<Vec<_>>());
        }
        // A drop that this reading has not overtaken was not overwritten while it was copied.
        let after = if rows.is_empty() { before.clone() } else { last(&self.recording)? };
        Ok(self.cursor.take(&before, &after, &rows))
    }
}

impl Cursor {
    /// Returns the indexes of the drops that are new.
    fn places(&self, last: &[u64]) -> BTreeSet<u32> {
        let fresh = self.0.iter().zip(last).flat_map(|(seen, last)| first(*seen, *last)..=*last);
        fresh.map(place).collect()
    }

    /// Takes the drops up to the numbers `before` out of rows with a value for each CPU, which were copied before the
    /// numbers were `after`.
    fn take(&mut self, before: &[u64], after: &[u64], rows: &[Vec<PolicyEvent>]) -> RecordedDrops {
        let mut recorded = RecordedDrops::default();
        for (cpu, seen) in self.0.iter_mut().enumerate() {
            let number = |numbers: &[u64]| numbers.get(cpu).copied().unwrap_or_default();
            let (last, now) = (number(before), number(after));
            let oldest = first(*seen, last);
            // The history from before the start is not missed.
            recorded.missed += if *seen == 0 { 0 } else { oldest - (*seen + 1) };
            for sequence in oldest..=last {
                let found = rows.iter().filter_map(|row| row.get(cpu)).find(|one| one.sequence == sequence);
                match found {
                    Some(event) if now < sequence + u64::from(POLICY_EVENTS_ENTRIES) => {
                        recorded.events.push(*event);
                    }
                    // It is being written: it is for the next reading.
                    None if sequence == last && now < sequence + u64::from(POLICY_EVENTS_ENTRIES) => break,
                    _ => recorded.missed += 1,
                }
                *seen = sequence;
            }
        }
        recorded.events.sort_by_key(|event| event.at);
        recorded
    }
}

/// Returns the number of the oldest drop that is new and still there.
fn first(seen: u64, last: u64) -> u64 {
    (seen + 1).max(last.saturating_sub(u64::from(POLICY_EVENTS_ENTRIES) - 1))
}

fn place(sequence: u64) -> u32 {
    u32::try_from(sequence % u64::from(POLICY_EVENTS_ENTRIES)).unwrap_or(0)
}

fn last(recording: &PerCpuArray<MapData, u64>) -> Result<Vec<u64>, OpenError> {
    Ok(recording.get(&0, 0).map_err(failed(RECORDING))?.iter().copied().collect())
}

fn failed(map: &str) -> impl Fn(MapError) -> OpenError {
    move |error| OpenError::Map { map: map.to_owned(), error }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRIES: u64 = POLICY_EVENTS_ENTRIES as u64;

    fn event(sequence: u64) -> PolicyEvent {
        PolicyEvent { sequence, at: sequence * 10, ..PolicyEvent::default() }
    }

    /// Returns the rows of one CPU with these numbers.
    fn rows(numbers: impl IntoIterator<Item = u64>) -> Vec<Vec<PolicyEvent>> {
        numbers.into_iter().map(|number| vec![event(number)]).collect()
    }

    fn numbers(recorded: &RecordedDrops) -> (Vec<u64>, u64) {
        (recorded.events.iter().map(|event| event.sequence).collect(), recorded.missed)
    }

    #[test]
    fn a_reader_gets_each_drop_once_and_counts_those_that_are_gone() {
        let mut cursor = Cursor(vec![2]);
        assert_eq!(cursor.places(&[4]), [3, 4].into());
        assert_eq!(numbers(&cursor.take(&[4], &[4], &rows([3, 4]))), (vec![3, 4], 0));
        assert!(cursor.places(&[4]).is_empty());
        let last = 4 + ENTRIES + 3;
        let taken = cursor.take(&[last], &[last], &rows(last + 1 - ENTRIES..=last));
        assert_eq!((taken.events.len() as u64, taken.missed), (ENTRIES, 3));
        assert_eq!(cursor, Cursor(vec![last]));
    }

    #[test]
    fn the_history_has_what_is_still_there_and_misses_nothing() {
        let mut cursor = Cursor(vec![0]);
        let last = 3 * ENTRIES;
        assert_eq!(cursor.places(&[last]).len() as u64, ENTRIES);
        let taken = cursor.take(&[last], &[last], &rows(last + 1 - ENTRIES..=last));
        assert_eq!((taken.events.len() as u64, taken.missed), (ENTRIES, 0));
    }

    #[test]
    fn a_drop_that_is_being_written_is_for_the_next_reading() {
        let mut cursor = Cursor(vec![4]);
        assert_eq!(numbers(&cursor.take(&[6], &[6], &rows([5, 0]))), (vec![5], 0));
        assert_eq!(numbers(&cursor.take(&[6], &[6], &rows([6]))), (vec![6], 0));
    }

    #[test]
    fn a_drop_that_may_have_been_overwritten_while_it_was_copied_is_missed() {
        let mut cursor = Cursor(vec![4]);
        assert_eq!(numbers(&cursor.take(&[6], &[5 + ENTRIES], &rows([5, 6]))), (vec![6], 1));
    }

    #[test]
    fn the_drops_of_all_cpus_are_in_the_order_of_their_time() {
        let mut cursor = Cursor(vec![0, 0]);
        let late = PolicyEvent { at: 99, ..event(1) };
        let taken = cursor.take(&[1, 2], &[1, 2], &[vec![late, event(1)], vec![event(0), event(2)]]);
        assert_eq!(taken.events, [event(1), event(2), late]);
    }
}
