//! The figures of all comparisons, in three groups: ratios, rates, and set-up times.

use anyhow::Result;
use millrace_lab::topology::Family;

use super::pairs::{Compared, Samples};
use crate::peers::quantile;
use crate::report::{Figure, Group, MILLRACE, Section, Unit};

/// The groups.
pub struct Figures {
    ratios: Group,
    rates: Group,
    times: Group,
}

impl Default for Figures {
    fn default() -> Self {
        Self {
            ratios: Group::new("rate beside another's", Unit::Ratio),
            rates: Group::new("rates", Unit::PerSecond),
            times: Group::new("set-up of a connection", Unit::Microseconds),
        }
    }
}

impl Figures {
    /// Adds a comparison. `target` is the least ratio to reach.
    pub fn add(
        &mut self,
        what: &str,
        family: Family,
        beside: &str,
        target: f64,
        compared: &Compared,
    ) -> Result<()> {
        let name = format!("{what}, {family}, beside {beside}");
        let ratio = Figure::new(name.as_str(), MILLRACE, &compared.ratios)?.target(target);
        eprintln!("{name}: {:.3}", ratio.spread.median);
        self.ratios.add(ratio);
        for (subject, Samples { rates, times }) in [(MILLRACE, &compared.service), (beside, &compared.other)]
        {
            self.rates.add(Figure::new(name.as_str(), subject, rates)?);
            if !times.is_empty() {
                let time = Figure::new(name.as_str(), subject, times)?;
                self.times.add(time.detail("p99, µs", quantile(times, 0.99)));
            }
        }
        Ok(())
    }

    /// Adds the groups to the section.
    pub fn add_to(self, section: &mut Section) {
        for group in [self.ratios, self.rates, self.times] {
            section.add(group);
        }
    }
}
