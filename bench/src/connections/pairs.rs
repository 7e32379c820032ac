//! Two sides that do the same work, measured alternately.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use millrace_lab::net::Namespace;
use millrace_lab::topology::{Dual, Family};

use super::awake::Awake;
use super::measure::Done;

/// The work of a spell.
pub type Spell = fn(&Namespace, SocketAddr, Duration) -> Result<Done>;

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

/// The samples of a comparison.
#[derive(Debug, Default)]
pub struct Compared {
    /// The Service.
    pub service: Samples,
    /// The other side.
    pub other: Samples,
    /// The ratio of each pair.
    pub ratios: Vec<f64>,
}

/// The samples of a side.
#[derive(Debug, Default)]
pub struct Samples {
    /// The rate of each spell, a second.
    pub rates: Vec<f64>,
    /// The set-up time of each connection, in microseconds.
    pub times: Vec<f64>,
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
            self.rate(spell, side, &mut Samples::default())?;
        }
        let mut compared = Compared::default();
        for pair in 0..self.number {
            // The order may matter, so the sides come first alternately.
            let [by_service, by_other] = if pair % 2 == 0 {
                let by_service = self.rate(spell, service, &mut compared.service)?;
                [by_service, self.rate(spell, other, &mut compared.other)?]
            } else {
                let by_other = self.rate(spell, other, &mut compared.other)?;
                [self.rate(spell, service, &mut compared.service)?, by_other]
            };
            ensure!(by_service > 0.0 && by_other > 0.0, "nothing was done in a spell of {:?}", self.time);
            compared.ratios.push(by_service / by_other);
        }
        Ok(compared)
    }

    /// Works for a spell, and notes its samples. Returns the rate.
    #[allow(clippy::cast_precision_loss, reason = "exact up to 2^52")]
    fn rate(&self, spell: Spell, side: Side<'_>, samples: &mut Samples) -> Result<f64> {
        let done = spell(side.client, side.target, self.time)?;
        let rate = done.count as f64 / self.time.as_secs_f64();
        samples.rates.push(rate);
        samples.times.extend(done.times.iter().map(|time| time.as_secs_f64() * 1e6));
        Ok(rate)
    }
}
