//! The comparison of a soak's end with the time after five minutes, and what else must not be.

use std::collections::BTreeMap;
use std::time::Duration;

use super::sample::{Held, Sample};
use crate::drill::Trouble;

/// The time after which nothing may grow any more.
const SETTLED: Duration = Duration::from_mins(5);
/// The length of each of the compared times.
const WINDOW: Duration = Duration::from_mins(2);
/// The most growth from the first to the second, in thousandths.
const MOST: i64 = 50;

/// The reasons for which packets may be dropped during a soak.
const EXPLAINED: [(&str, &str); 0] = [];

/// Two means of one figure of one node.
#[derive(Clone, Debug)]
pub(super) struct Growth {
    /// The node, from 1.
    pub(super) node: usize,
    /// The figure.
    pub(super) what: &'static str,
    /// The mean of the two minutes after the fifth.
    pub(super) early: u64,
    /// The mean of the last two minutes.
    pub(super) late: u64,
}

impl Growth {
    /// Returns the change in thousandths of the first mean.
    pub(super) fn thousandths(&self) -> i64 {
        let early = self.early.max(1);
        // Rounded.
        let share = (self.late.saturating_mul(2000) / early).saturating_add(1) / 2;
        i64::try_from(share).unwrap_or(i64::MAX) - 1000
    }
}

/// The outcome.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    /// Exchanges that failed.
    pub(super) failed: usize,
    /// All comparisons.
    pub(super) growth: Vec<Growth>,
    /// Dropped packets, by reason, with the explanation.
    pub(super) drops: Vec<(String, u64, Option<&'static str>)>,
    /// Everything that must not be.
    pub(super) faults: Vec<String>,
}

impl Verdict {
    /// Judges a soak.
    pub(super) fn of(samples: &[Sample], troubles: &[Trouble], drops: &BTreeMap<String, u64>) -> Self {
        let mut verdict = Self { growth: growth(samples), ..Self::default() };
        let losses = || troubles.iter().filter_map(|trouble| Some((trouble.loss?, trouble)));
        verdict.failed = losses().count();
        for (loss, Trouble { way, family, what, .. }) in losses().take(10) {
            verdict.faults.push(format!("{loss}: {way} {family}: {what}"));
        }
        if verdict.growth.is_empty() {
            verdict.faults.push("too short to compare its end with the time after five minutes".to_owned());
        }
        let silent = samples.iter().filter(|sample| sample.exchanges == 0).count();
        if silent > 0 {
            verdict.faults.push(format!("no exchange ended well in {silent} of {} samples", samples.len()));
        }
        // Less is no fault.
        for grown in verdict.growth.iter().filter(|growth| growth.thousandths() > MOST) {
            let (node, what, percent) = (grown.node, grown.what, grown.thousandths() / 10);
            verdict.faults.push(format!("the {what} of node {node} grew by {percent} %"));
        }
        for (reason, packets) in drops {
            let because = EXPLAINED.iter().find(|(known, _)| known == reason).map(|(_, because)| *because);
            if because.is_none() {
                verdict.faults.push(format!("{packets} packets were dropped, for the reason {reason}"));
            }
            verdict.drops.push((reason.clone(), *packets, because));
        }
        verdict
    }
}

/// Compares the figures of all nodes; none if there are too few samples.
fn growth(samples: &[Sample]) -> Vec<Growth> {
    let end = samples.last().map_or(Duration::ZERO, |last| last.at);
    if end < SETTLED + WINDOW * 2 {
        return Vec::new();
    }
    let within = |from: Duration| {
        samples
            .iter()
            .filter(move |sample| sample.at >= from && sample.at <= from + WINDOW)
            .collect::<Vec<_>>()
    };
    let (early, late) = (within(SETTLED), within(end.saturating_sub(WINDOW)));
    let nodes = samples.first().map_or(0, |first| first.nodes.len());
    let figures: [Figure; 3] = [
        ("resident memory", |held| held.resident),
        ("map memory", |held| held.maps),
        ("open files", |held| held.files),
    ];
    let mut growth = Vec::new();
    for node in 0..nodes {
        for (what, figure) in figures {
            let mean = |samples: &[&Sample]| {
                let values: Vec<u64> =
                    samples.iter().filter_map(|sample| sample.nodes.get(node)).map(figure).collect();
                values.iter().sum::<u64>() / (values.len() as u64).max(1)
            };
            growth.push(Growth { node: node + 1, what, early: mean(&early), late: mean(&late) });
        }
    }
    growth
}

/// Name and value of a figure.
type Figure = (&'static str, fn(&Held) -> u64);

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the samples of ten minutes, every ten seconds, with resident memory by the minute.
    fn samples(resident: impl Fn(u64) -> u64) -> Vec<Sample> {
        let sample = |tick: u64| Sample {
            at: Duration::from_secs(tick * 10),
            nodes: vec![Held { resident: resident(tick / 6), files: 100, maps: 1 << 20, flows: 10 }],
            kernel: 0,
            exchanges: 7000,
            median: Duration::ZERO,
            slow: Duration::ZERO,
        };
        (0..=60).map(sample).collect()
    }

    #[test]
    fn memory_that_grows_after_five_minutes_is_a_fault() {
        assert!(Verdict::of(&samples(|minute| minute.min(5)), &[], &BTreeMap::new()).faults.is_empty());
        assert!(Verdict::of(&samples(|minute| 100 - minute), &[], &BTreeMap::new()).faults.is_empty());
        let verdict = Verdict::of(&samples(|minute| 100 + minute * 3), &[], &BTreeMap::new());
        assert_eq!(verdict.faults, ["the resident memory of node 1 grew by 7 %"]);
    }

    #[test]
    fn silence_is_a_fault() {
        let mut silent = samples(|_| 1);
        silent[30].exchanges = 0;
        let verdict = Verdict::of(&silent, &[], &BTreeMap::new());
        assert_eq!(verdict.faults, ["no exchange ended well in 1 of 61 samples"]);
    }

    #[test]
    fn a_short_soak_and_an_unexplained_drop_are_faults() {
        let drops = BTreeMap::from([("unheard_of".to_owned(), 3)]);
        let verdict = Verdict::of(&samples(|_| 1)[..20], &[], &drops);
        assert_eq!(verdict.faults.len(), 2, "{:?}", verdict.faults);
        assert!(verdict.faults[1].contains("unheard_of"));
    }
}
