//! Two sides that do the same work, measured alternately.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use millrace_lab::net::Namespace;
use millrace_lab::topology::{Dual, Family};

use super::awake::Awake;

/// The work of a spell. Returns how much of it was done.
pub type Spell = fn(&Namespace, SocketAddr, Duration) -> Result<usize>;

/// One of the two sides: a client, and the target that it sends to.
#[derive(Clone, Copy)]
pub struct Side<'a> {
    client: &'a Namespace,
    target: SocketAddr,
}

impl<'a> Side<'a> {
    /// Returns a side of a client and one address of its target.
    pub fn new(client: &'a Namespace, target: Dual, port: u16, family: Family) -> Self {
        Self { client, target: SocketAddr::new(target.of(family), port) }
    }
}

/// The number of pairs, and the duration of a spell.
pub struct Pairs {
    number: usize,
    time: Duration,
}

/// The medians of a comparison.
pub struct Compared {
    /// The Service's rate, a second.
    pub service: f64,
    /// The other side's rate, a second.
    pub other: f64,
    /// The ratio of a pair.
    pub ratio: f64,
}

impl Pairs {
    /// Checks the settings. Neither may be 0.
    pub fn new(number: usize, milliseconds: u64) -> Result<Self> {
        ensure!(number > 0 && milliseconds > 0, "--pairs and --milliseconds take positive numbers");
        Ok(Self { number, time: Duration::from_millis(milliseconds) })
    }

    /// Measures both sides alternately.
    pub fn compare(&self, spell: Spell, service: Side<'_>, other: Side<'_>) -> Result<Compared> {
        let _awake = Awake::start()?;
        // A first spell without a record fills caches and finds neighbours.
        for side in [service, other] {
            self.rate(spell, side)?;
        }
        let mut rates = [Vec::new(), Vec::new()];
        let mut ratios = Vec::new();
        for pair in 0..self.number {
            // The order may matter, so the sides come first alternately.
            let [by_service, by_other] = if pair % 2 == 0 {
                [self.rate(spell, service)?, self.rate(spell, other)?]
            } else {
                let by_other = self.rate(spell, other)?;
                [self.rate(spell, service)?, by_other]
            };
            ensure!(by_service > 0.0 && by_other > 0.0, "nothing was done in a spell of {:?}", self.time);
            rates[0].push(by_service);
            rates[1].push(by_other);
            ratios.push(by_service / by_other);
        }
        let [service, other] = rates.map(median);
        Ok(Compared { service, other, ratio: median(ratios) })
    }

    #[allow(clippy::cast_precision_loss, reason = "exact up to 2^52")]
    fn rate(&self, spell: Spell, side: Side<'_>) -> Result<f64> {
        Ok(spell(side.client, side.target, self.time)? as f64 / self.time.as_secs_f64())
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
