//! The collector deletes expired flow entries, and flow and affinity entries of unassigned service
//! ids. The same walk finds the slots without a disagreeing entry, which the agent then settles.
//!
//! The programs ignore expired entries, so the collector need not hurry while FLOWS has room; see
//! [`flow_pressure`](super::flow_pressure). A service id, however, is free only after a walk through all
//! tables. That is a separate walk, which deletes nothing else.

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use proxy_common::affinity::{Affinity, AffinityKey};
use proxy_common::flow::{Flow, FlowKey};
use proxy_common::timeouts::Timeouts;
use proxy_common::{Addr4, Addr6};

use super::error::OpenError;
use super::expire::{Clock, Observers, Rules, expire, of_affinity, of_flow, remove_unassigned};
use super::flow_count::{self, FLOW_TABLES, States};
use super::flow_pressure::Pressure;
use super::maps::{Batch, Maps};
use super::plan::{Plan, RestedId, SettlingRound};
use super::snat_usage::Usage;
use super::sys::Cursor;
use crate::dataplane::FlowCount;

/// The maximal time of a call while FLOWS has room. Changes of the cluster wait that long, however large the
/// tables are.
const BUDGET: Duration = Duration::from_millis(5);

/// Walks round the tables and remembers its position.
#[derive(Debug)]
pub struct Collector {
    expiry: Walk,
    reclaim: Walk,
    /// The findings of the expiry walk on unsettled slots.
    round: Option<SettlingRound>,
    /// A finished round whose slots are being settled.
    done: Option<SettlingRound>,
    budget: Duration,
    /// How full FLOWS4 and FLOWS6 are.
    pressure: [Pressure; 2],
    /// The counts of the running expiry walk.
    counting: Usage,
    /// The same by state, for each table.
    states: [States; FLOW_TABLES],
    /// The ports to count; none = all.
    ports: Option<RangeInclusive<u16>>,
    /// The counts of the last finished walk, until `take_counts` returns them.
    counted: Option<Counts>,
    /// Service ids that had rested when the running reclaim walk began.
    reclaiming: Vec<RestedId>,
    flows4: Batch<FlowKey<Addr4>, Flow<Addr4>>,
    flows6: Batch<FlowKey<Addr6>, Flow<Addr6>>,
    affinity4: Batch<AffinityKey<Addr4>, Affinity>,
    affinity6: Batch<AffinityKey<Addr6>, Affinity>,
}

/// A position in the walk through the tables.
#[derive(Clone, Copy, Debug, Default)]
struct Walk {
    table: usize,
    cursor: Option<Cursor>,
}

/// The result of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Deleted flow entries.
    pub flows: usize,
    /// Deleted affinity entries.
    pub affinities: usize,
    /// Slots settled, or to be settled after another round.
    pub slots: usize,
    /// Whether service ids wait for the reclaim walk.
    pub is_reclaiming: bool,
    /// The time until the next call, if FLOWS is so full that it matters.
    pub again_in: Option<Duration>,
}

/// The counts of a finished walk.
#[derive(Debug)]
pub struct Counts {
    /// Connections, and ports in use.
    pub usage: Usage,
    /// Entries by state.
    pub flows: Vec<FlowCount>,
}

/// The number of tables. The flow tables come first.
const TABLES: usize = 6;

impl Collector {
    /// Returns a collector at its start.
    #[must_use]
    pub fn new() -> Self {
        Self {
            expiry: Walk::default(),
            reclaim: Walk::default(),
            round: None,
            done: None,
            budget: BUDGET,
            pressure: [Pressure::default(); 2],
            counting: Usage::default(),
            states: [States::default(); FLOW_TABLES],
            ports: None,
            counted: None,
            reclaiming: Vec::new(),
            flows4: Batch::new(),
            flows6: Batch::new(),
            affinity4: Batch::new(),
            affinity6: Batch::new(),
        }
    }

    /// Restricts the count to these ports.
    #[must_use]
    pub fn within(self, ports: RangeInclusive<u16>) -> Self {
        Self { counting: Usage::of(Some(ports.clone())), ports: Some(ports), ..self }
    }

    /// Continues both walks: the expiry walk, and the reclaim walk if any service id waits for it.
    /// Reports reclaimed ids to `plan` after a full reclaim walk.
    ///
    /// A call ends after a full round at the latest, or after the batch in which its time is up.
    /// Each walk has its share of the time, however slow the other walk is.
    pub fn collect(
        &mut self,
        maps: &mut Maps,
        plan: &mut Plan,
        timeouts: &Timeouts,
        now: Clock,
    ) -> Result<Collected, OpenError> {
        if self.reclaiming.is_empty() {
            self.reclaiming = plan.ids_to_reclaim(now.time);
        }
        let [pressure4, pressure6] = &mut self.pressure;
        pressure4.look(&maps.of4.flows, &mut self.flows4, now.seconds)?;
        pressure6.look(&maps.of6.flows, &mut self.flows6, now.seconds)?;
        let paces = self.pressure.iter().filter_map(Pressure::pace);
        let (budget, again_in) = paces.fold((self.budget, None), |(most, soonest), (budget, again_in)| {
            (budget.max(most), soonest.into_iter().chain([again_in]).min())
        });
        let slots = self.settle(maps, plan, timeouts, now);
        if self.reclaiming.is_empty() {
            let flows = self.expire(maps, &Rules { plan, timeouts, now }, budget)?;
            return Ok(Collected { flows, slots, again_in, ..Collected::default() });
        }
        let share = budget / 2;
        let expired = self.expire(maps, &Rules { plan, timeouts, now }, share)?;
        let removed = self.remove_unassigned(maps, &Rules { plan, timeouts, now }, share)?;
        if self.reclaim.is_at_start() {
            plan.entries_removed(std::mem::take(&mut self.reclaiming));
        }
        Ok(Collected {
            flows: removed.flows + expired,
            slots,
            again_in,
            is_reclaiming: !plan.ids_to_reclaim(now.time).is_empty(),
            ..removed
        })
    }

    /// Returns the counts of the last finished walk, once.
    pub const fn take_counts(&mut self) -> Option<Counts> {
        self.counted.take()
    }

    /// Settles the findings of the last round, one service at a time. Returns the number of slots.
    fn settle(&mut self, maps: &mut Maps, plan: &mut Plan, timeouts: &Timeouts, now: Clock) -> usize {
        let (started, mut settled) = (Instant::now(), 0);
        let established = Duration::from_secs(timeouts.established.into());
        while let Some(round) = &mut self.done {
            match plan.settle_next(round, established, now.time, maps) {
                Some(slots) => settled += slots,
                None => self.done = None,
            }
            if started.elapsed() >= self.budget {
                break;
            }
        }
        settled
    }

    /// Continues the expiry walk and returns the number of deleted entries.
    ///
    /// A round that begins while the slots of the last round are being settled records nothing.
    fn expire(&mut self, maps: &mut Maps, rules: &Rules<'_>, budget: Duration) -> Result<usize, OpenError> {
        let (started, mut removed) = (Instant::now(), 0);
        if self.expiry.is_at_start() && self.done.is_none() {
            self.round = rules.plan.begin_round(rules.now.time);
        }
        loop {
            let cursor = self.expiry.cursor;
            let [new4, new6, states4, states6] = &mut self.states;
            let (round, usage) = (&mut self.round, &mut self.counting);
            let [pressure4, pressure6] = &mut self.pressure;
            let (count, next) = match self.expiry.table {
                0 => {
                    let embryos = Observers { round, states: new4, usage, pressure: None };
                    expire(&mut maps.of4.flows_new, cursor, &mut self.flows4, rules, embryos)
                }
                1 => {
                    let embryos = Observers { round, states: new6, usage, pressure: None };
                    expire(&mut maps.of6.flows_new, cursor, &mut self.flows6, rules, embryos)
                }
                2 => {
                    let flows = Observers { round, states: states4, usage, pressure: Some(pressure4) };
                    expire(&mut maps.of4.flows, cursor, &mut self.flows4, rules, flows)
                }
                _ => {
                    let flows = Observers { round, states: states6, usage, pressure: Some(pressure6) };
                    expire(&mut maps.of6.flows, cursor, &mut self.flows6, rules, flows)
                }
            }?;
            removed += count;
            self.expiry.advance(next, FLOW_TABLES);
            if self.expiry.is_at_start() {
                for pressure in &mut self.pressure {
                    pressure.end_round();
                }
                self.counted = Some(Counts {
                    usage: std::mem::replace(&mut self.counting, Usage::of(self.ports.clone())),
                    flows: flow_count::named(&std::mem::take(&mut self.states)),
                });
                if self.done.is_none() {
                    self.done = self.round.take();
                }
            }
            if self.expiry.is_at_start() || started.elapsed() >= budget {
                return Ok(removed);
            }
        }
    }

    fn remove_unassigned(
        &mut self,
        maps: &mut Maps,
        rules: &Rules<'_>,
        budget: Duration,
    ) -> Result<Collected, OpenError> {
        let (started, mut removed) = (Instant::now(), Collected::default());
        loop {
            let cursor = self.reclaim.cursor;
            let (count, next) = match self.reclaim.table {
                0 => remove_unassigned(&mut maps.of4.flows, cursor, &mut self.flows4, of_flow, rules),
                1 => remove_unassigned(&mut maps.of6.flows, cursor, &mut self.flows6, of_flow, rules),
                2 => remove_unassigned(&mut maps.of4.flows_new, cursor, &mut self.flows4, of_flow, rules),
                3 => remove_unassigned(&mut maps.of6.flows_new, cursor, &mut self.flows6, of_flow, rules),
                4 => {
                    remove_unassigned(&mut maps.of4.affinity, cursor, &mut self.affinity4, of_affinity, rules)
                }
                _ => {
                    remove_unassigned(&mut maps.of6.affinity, cursor, &mut self.affinity6, of_affinity, rules)
                }
            }?;
            let counted =
                if self.reclaim.table < FLOW_TABLES { &mut removed.flows } else { &mut removed.affinities };
            *counted += count;
            self.reclaim.advance(next, TABLES);
            if self.reclaim.is_at_start() || started.elapsed() >= budget {
                return Ok(removed);
            }
        }
    }
}

impl Walk {
    /// Moves to the next batch; `None` = to the next table.
    const fn advance(&mut self, next: Option<Cursor>, tables: usize) {
        self.cursor = next;
        if next.is_none() {
            self.table = (self.table + 1) % tables;
        }
    }

    /// Returns whether a round is over.
    const fn is_at_start(&self) -> bool {
        self.table == 0 && self.cursor.is_none()
    }
}

#[cfg(test)]
#[path = "slot_settling_tests.rs"]
mod slot_settling_tests;
#[cfg(test)]
#[path = "collect_tests.rs"]
mod tests;
