//! Two ways of doing the same thing, in turn.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use millrace_lab::net::Namespace;
use millrace_lab::topology::{Dual, Family};

use super::awake::Awake;

/// What is done in a spell: returns how much of it could be done.
pub type Spell = fn(&Namespace, SocketAddr, Duration) -> Result<usize>;

/// One of two ways: a client, and where it sends to.
#[derive(Clone, Copy)]
pub struct Side<'a> {
    client: &'a Namespace,
    target: SocketAddr,
}

impl<'a> Side<'a> {
    /// A client and one address of its target.
    pub fn new(client: &'a Namespace, target: Dual, port: u16, family: Family) -> Self {
        Self { client, target: SocketAddr::new(target.of(family), port) }
    }
}

/// How often, and how long.
pub struct Pairs {
    number: usize,
    time: Duration,
}

/// What came of it: medians.
pub struct Compared {
    /// By the Service, a second.
    pub service: f64,
    /// By the other way, a second.
    pub other: f64,
    /// Of the pairs' ratios.
    pub ratio: f64,
}

impl Pairs {
    /// Neither may be 0.
    pub fn new(number: usize, milliseconds: u64) -> Result<Self> {
        ensure!(number > 0 && milliseconds > 0, "--pairs and --milliseconds take positive numbers");
        Ok(Self { number, time: Duration::from_millis(milliseconds) })
    }

    /// Measures both in turn.
    pub fn compare(&self, spell: Spell, service: Side<'_>, other: Side<'_>) -> Result<Compared> {
        let _awake = Awake::start()?;
        // Once for nothing: caches, neighbours.
        for side in [service, other] {
            self.rate(spell, side)?;
        }
        let mut rates = [Vec::new(), Vec::new()];
        let mut ratios = Vec::new();
        for pair in 0..self.number {
            // Who comes first has it harder, or easier: each in turn.
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
