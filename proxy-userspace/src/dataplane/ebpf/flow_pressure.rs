//! How full FLOWS is, and which entries have to go before it is full.
//!
//! The kernel evicts nothing from FLOWS. So the agent looks at a sample of its buckets: the keys' hashes spread
//! evenly, so a thousand entries tell the number of all to 3 percent. While the map has room, expired
//! entries go slowly. The fuller it is, the more time the walk gets. From nine tenths on, the 15 percent go that
//! were silent for longest.
//!
//! One sample in a hundred is 7 percent too high, and would let connections go from a map with room. So only several
//! samples say that it is nearly full, or one that says that it is full.

use std::time::Duration;

use proxy_common::Address;
use proxy_common::flow::{FLOW_DATAGRAM, Flow, FlowKey};
use proxy_common::timeouts::{FLOW_RENEWAL, silence};
use tracing::{info, warn};

use super::error::OpenError;
use super::maps::{Batch, Table};

/// The percentage from which the agent looks every second.
const WATCHED: u32 = 25;
/// The percentage from which expired entries must go quickly.
const BUSY: u32 = 50;
/// The percentage from which entries go that were silent for longest.
const CROWDED: u32 = 90;
/// The percentage below which the map is not crowded any more.
const EASED: u32 = 80;
/// The percentage from which an entry may go that had a packet lately.
const FULL: u32 = 98;
/// The percentage of entries that go before the agent looks whether there is room again.
const SHARE_TO_GO: u32 = 15;
/// The number of samples that a percentage is the mean of.
const SAMPLES: u32 = 4;
/// The percentage of one sample that says that the map is full.
const NO_DOUBT: u32 = 100;
/// The share of a map, in thousandths, that a round must remove if the next one is to have more time.
const WORTHWHILE: u32 = 5;
/// The seconds without a packet before which no entry goes.
const LEAST_SILENCE: u32 = 30;
/// The same for datagrams, which nobody has to confirm, and for all entries of a full map. `last_seen` may be older
/// than the last packet by as much.
const SHORTEST_SILENCE: u32 = 2 * FLOW_RENEWAL;

/// The state of one map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// Entries of a hundred places, by the last samples.
    percent: u32,
    /// The last samples, the latest first.
    samples: [u32; 2],
    /// The number of looks so far.
    looks: u32,
    /// The number of places.
    room: u32,
    /// Entries that the present round has removed.
    removed: u32,
    /// Whether the last round removed too little for more time.
    is_idle: bool,
    is_crowded: bool,
    /// Entries that had no packet for this many seconds have to go, if they may.
    silence: u32,
    /// The number of entries that have to go.
    to_go: u32,
}

impl Pressure {
    /// Looks at a sample of the map, another one each time. `seconds` is the clock of the entries.
    pub fn look<A: Address>(
        &mut self,
        table: &Table<FlowKey<A>, Flow<A>>,
        batch: &mut Batch<FlowKey<A>, Flow<A>>,
        seconds: u32,
    ) -> Result<(), OpenError> {
        self.looks = self.looks.wrapping_add(1);
        let (entries, count) = table.sample(self.looks.wrapping_mul(0x9e37_79b9), batch)?;
        let mut silences: Vec<u32> = entries.map(|(_, flow)| silence(flow.last_seen, seconds)).collect();
        self.see(table.name(), count, table.entries(), &mut silences);
        Ok(())
    }

    fn see(&mut self, map: &str, count: u64, room: u32, silences: &mut [u32]) {
        let percent = u32::try_from(count * 100 / u64::from(room.max(1))).unwrap_or(100);
        self.room = room;
        let [before, earlier] = self.samples;
        self.samples = [percent, before];
        // A map that fills quickly is known after three looks, or when it is full.
        let sure = if percent >= NO_DOUBT { percent } else { percent.min(before).min(earlier) };
        self.percent = sure.max((self.percent * (SAMPLES - 1) + percent) / SAMPLES);
        let was_crowded = self.is_crowded;
        self.is_crowded = self.percent >= if was_crowded { EASED } else { CROWDED };
        if self.is_crowded && !was_crowded {
            warn!(
                map,
                entries = room,
                "the flow table is nearly full: the connections that were silent for longest lose their entries; raise \
                 --flow-table-size"
            );
        } else if was_crowded && !self.is_crowded {
            info!(map, "the flow table has room again");
        }
        if !self.is_crowded {
            self.to_go = 0;
            return;
        }
        // At each look, because what was silent for long goes first, and then nothing may be silent as long.
        silences.sort_unstable_by(|one, other| other.cmp(one));
        let longest = silences.get(silences.len() * SHARE_TO_GO as usize / 100);
        self.silence = longest.copied().unwrap_or(u32::MAX);
        if self.to_go == 0 {
            self.to_go = u32::try_from(count).unwrap_or(u32::MAX) / 100 * SHARE_TO_GO;
        }
    }

    /// Whether an entry has to go that was silent for so long.
    pub const fn wants<A>(&self, flow: &Flow<A>, silent: u32) -> bool {
        let may_go_early = flow.state == FLOW_DATAGRAM || self.percent >= FULL;
        let least = if may_go_early { SHORTEST_SILENCE } else { LEAST_SILENCE };
        self.to_go > 0 && silent >= self.silence && silent >= least
    }

    /// Counts an entry that went.
    pub const fn gone(&mut self) {
        self.to_go = self.to_go.saturating_sub(1);
        self.removed = self.removed.saturating_add(1);
    }

    /// Ends a round through all entries.
    pub const fn end_round(&mut self) {
        self.is_idle = self.removed < self.room / 1000 * WORTHWHILE;
        self.removed = 0;
    }

    /// Returns the least time for a walk, and the time until the next one; none if there is room.
    pub const fn pace(&self) -> Option<(Duration, Duration)> {
        match self.percent {
            0..WATCHED => None,
            WATCHED..BUSY => Some((Duration::ZERO, Duration::from_secs(1))),
            // Nothing expires in a map of long connections.
            BUSY..CROWDED if self.is_idle => Some((Duration::ZERO, Duration::from_secs(1))),
            BUSY..CROWDED => Some((Duration::from_millis(50), Duration::from_millis(500))),
            _ => Some((Duration::from_millis(100), Duration::from_millis(500))),
        }
    }
}

#[cfg(test)]
mod tests {
    use proxy_common::Addr4;
    use proxy_common::flow::FLOW_ESTABLISHED;

    use super::*;

    fn flow(state: u8) -> Flow<Addr4> {
        Flow { state, ..Flow::default() }
    }

    /// Returns the shortest silence after which an entry has to go.
    fn goes_after(pressure: &Pressure, state: u8) -> Option<u32> {
        (0..2000).find(|silent| pressure.wants(&flow(state), *silent))
    }

    #[test]
    fn only_a_crowded_map_loses_entries_and_those_that_were_silent_longest() {
        let mut pressure = Pressure::default();
        let mut silences: Vec<u32> = (0..1000).collect();
        pressure.see("FLOWS4", 899, 1000, &mut silences);
        assert_eq!(goes_after(&pressure, FLOW_ESTABLISHED), None);
        for _ in 0..3 {
            assert_eq!(goes_after(&pressure, FLOW_ESTABLISHED), None, "one sample may be wrong");
            pressure.see("FLOWS4", 900, 1000, &mut silences);
        }
        assert_eq!(goes_after(&pressure, FLOW_ESTABLISHED), Some(849), "150 of 1000");
        for _ in 0..135 {
            assert!(pressure.wants(&flow(FLOW_ESTABLISHED), 849));
            pressure.gone();
        }
        assert_eq!(
            goes_after(&pressure, FLOW_ESTABLISHED),
            None,
            "that many, however many were silent as long"
        );
        let mut shorter: Vec<u32> = (0..500).collect();
        pressure.see("FLOWS4", 820, 1000, &mut shorter);
        assert_eq!(goes_after(&pressure, FLOW_ESTABLISHED), Some(424), "until there is clearly more room");
        for _ in 0..10 {
            pressure.see("FLOWS4", 700, 1000, &mut silences);
        }
        assert_eq!(goes_after(&pressure, FLOW_ESTABLISHED), None);
    }

    #[test]
    fn no_entry_goes_that_had_a_packet_of_late_and_those_of_datagrams_go_first() {
        let mut pressure = Pressure::default();
        for _ in 0..3 {
            pressure.see("FLOWS4", 950, 1000, &mut [3; 500]);
        }
        assert_eq!(goes_after(&pressure, FLOW_ESTABLISHED), Some(LEAST_SILENCE));
        assert_eq!(goes_after(&pressure, FLOW_DATAGRAM), Some(SHORTEST_SILENCE));
        pressure.see("FLOWS4", 1000, 1000, &mut [3; 500]);
        assert_eq!(goes_after(&pressure, FLOW_ESTABLISHED), Some(SHORTEST_SILENCE));
    }

    #[test]
    fn the_fuller_the_map_the_more_time_its_walk_gets() {
        let pace = |percent| Pressure { percent, ..Pressure::default() }.pace();
        assert_eq!(pace(24), None);
        let paces: Vec<_> = [25, 50, 90, 120].map(pace).into_iter().flatten().collect();
        assert_eq!(paces.len(), 4);
        assert!(paces.is_sorted_by_key(|(time, _)| *time), "{paces:?}");
    }

    #[test]
    fn a_map_of_which_nothing_goes_gets_no_more_time() {
        let mut pressure = Pressure { percent: 70, room: 1000, ..Pressure::default() };
        let quick = pressure.pace();
        pressure.end_round();
        assert_ne!(pressure.pace(), quick);
        for _ in 0..5 {
            pressure.gone();
        }
        pressure.end_round();
        assert_eq!(pressure.pace(), quick);
    }
}
