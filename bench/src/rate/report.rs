//! The figures of a case, for the report.

use anyhow::Result;
use millrace_lab::topology::Family;

use super::case::Case;
use super::programs::Sent;
use super::sides::Side;
use crate::report::{Figure, Group, Section, Unit};

/// The spells of a side in a case.
#[derive(Debug)]
pub struct Row {
    side: Side,
    /// Frames a second that arrived, in each spell.
    samples: Vec<f64>,
    /// The share of the sent frames that arrived, in the worst spell.
    arrived: f64,
    /// The reason why there is no figure: the frames that arrived were wrong.
    refusal: Option<String>,
}

impl Row {
    /// Returns a row without figures so far.
    pub const fn new(side: Side, refusal: Option<String>) -> Self {
        Self { side, samples: Vec::new(), arrived: 1.0, refusal }
    }

    /// Returns whether the side's frames arrived as expected.
    pub const fn stands(&self) -> bool {
        self.refusal.is_none()
    }

    /// Adds a spell.
    #[allow(clippy::cast_precision_loss, reason = "exact up to 2^52")]
    pub fn add(&mut self, sent: Sent, arrived: u64) {
        self.samples.push(arrived as f64 / sent.time.as_secs_f64());
        self.arrived = self.arrived.min(arrived as f64 / sent.frames as f64);
    }

    fn median(&self) -> f64 {
        let mut sorted = self.samples.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
    }
}

/// Adds the rows of a case to the section.
pub fn add(section: &mut Section, case: Case, family: Family, processors: usize, rows: &[Row]) -> Result<()> {
    let title = format!("{}, {family}, {processors} CPU", case.title());
    let bare = rows.iter().find(|row| row.side == Side::BareTransmit).map_or(f64::NAN, Row::median);
    let mut group = Group::new(title.as_str(), Unit::PacketsPerSecond);
    for row in rows {
        if let Some(refusal) = &row.refusal {
            section.leave_out(format!("{title}: {}", row.side.name()), refusal.as_str());
            continue;
        }
        let figure = Figure::new(row.side.name(), row.side.subject(), &row.samples)?;
        let figure = figure.detail("arrived, %", row.arrived * 100.0);
        group.add(figure.detail("of bare TX", row.median() / bare));
    }
    section.add(group);
    Ok(())
}
