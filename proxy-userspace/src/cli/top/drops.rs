//! Rates of drops.

use std::collections::BTreeMap;

use millrace_views::Word;
use serde::{Deserialize, Serialize};

use super::Interval;
use super::rate::rate;
use crate::cli::output::{Column, Row};
use crate::dataplane::ebpf::read::CounterView;

/// Packets that were dropped for one reason: those of a Service, or all of a program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DropRate {
    /// Name of the reason.
    reason: Word,
    /// `namespace/name:port`; none in a row of a program.
    service: Option<String>,
    /// Name of the program; none in a row of a Service.
    program: Option<Word>,
    /// Dropped packets.
    packets_per_second: f64,
    /// Dropped packets since the maps were made.
    packets: u64,
}

/// Returns the rows: a program's, with all its drops, and those of its Services, which are among them.
pub fn rows(interval: &Interval<'_>) -> Vec<DropRate> {
    let mut rows = of_programs(interval);
    for (label, now) in &interval.now.services {
        let Some(before) = interval.before.services.get(label) else { continue };
        rows.extend(now.dropped.iter().map(|(reason, packets)| DropRate {
            reason: reason.clone(),
            service: Some(label.clone()),
            program: None,
            packets_per_second:
                interval.per_second(before.dropped.get(reason).copied().unwrap_or(0), *packets),
            packets: *packets,
        }));
    }
    rows
}

/// Returns the dropped packets a second by reason, over all programs.
pub fn reasons<'a>(interval: &Interval<'a>) -> BTreeMap<&'a str, f64> {
    let mut sums = BTreeMap::new();
    let before: BTreeMap<_, u64> = interval
        .before
        .counters
        .iter()
        .map(|one| ((one.program.as_ref(), one.reason.as_ref()), one.packets))
        .collect();
    for one in interval.now.counters.iter().filter(|one| one.drop) {
        let was = before.get(&(one.program.as_ref(), one.reason.as_ref())).copied().unwrap_or(0);
        *sums.entry(one.reason.as_ref()).or_default() += interval.per_second(was, one.packets);
    }
    sums
}

fn of_programs(interval: &Interval<'_>) -> Vec<DropRate> {
    let before = |program: &Word, reason: &Word| {
        let same =
            interval.before.counters.iter().find(|one| one.program == *program && one.reason == *reason);
        same.map_or(0, |one| one.packets)
    };
    let dropped = interval.now.counters.iter().filter(|one| one.drop && one.packets > 0);
    let row = |one: &CounterView| DropRate {
        reason: one.reason.clone(),
        service: None,
        program: Some(one.program.clone()),
        packets_per_second: interval.per_second(before(&one.program, &one.reason), one.packets),
        packets: one.packets,
    };
    dropped.map(row).collect()
}

impl Row for DropRate {
    const COLUMNS: &'static [Column] = &[
        Column::new("REASON", "reason"),
        Column::new("SERVICE", "service"),
        Column::new("PROGRAM", "program"),
        Column::new("PACKETS/S", "packets_per_second"),
        Column::new("PACKETS", "packets"),
    ];

    fn cells(&self, _: bool) -> Vec<String> {
        vec![
            self.reason.to_string(),
            self.service.clone().unwrap_or_default(),
            self.program.as_ref().map(ToString::to_string).unwrap_or_default(),
            rate(self.packets_per_second),
            self.packets.to_string(),
        ]
    }

    fn name(&self) -> String {
        self.reason.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{interval, reading};
    use super::*;

    #[test]
    fn drops_are_told_by_program_and_by_service() {
        let (before, mut now) = (reading(), reading());
        now.counters[0].packets += 6;
        *now.services.get_mut("shop/web:http").unwrap().dropped.get_mut("no_endpoint").unwrap() += 4;
        let interval = interval(&before, &now, 2.0);
        let rows = rows(&interval);
        let of = |service: Option<&str>| {
            let row = rows.iter().find(|row| row.service.as_deref() == service).unwrap();
            (row.program.as_deref(), row.packets_per_second)
        };
        assert_eq!(of(None), (Some("tc_ingress"), 3.0));
        assert_eq!(of(Some("shop/web:http")), (None, 2.0));
        assert_eq!(reasons(&interval), BTreeMap::from([("no_endpoint", 3.0)]));
        assert_eq!(interval.head("node-a"), "node-a: rates of 2.0 s; drops 3.0/s: no_endpoint 3.0");
        assert_eq!(rows[0].cells(false).len(), DropRate::COLUMNS.len());
    }

    #[test]
    fn a_counter_that_began_anew_counts_from_zero() {
        let (before, mut now) = (reading(), reading());
        now.counters[0].packets = 2;
        assert_eq!(reasons(&interval(&before, &now, 1.0)), BTreeMap::from([("no_endpoint", 2.0)]));
    }
}
