//! The figures, as a table or as JSON.

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use super::objects::Scale;

/// One figure.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    what: String,
    value: f64,
    unit: &'static str,
    /// The most that it may be. `null` = no target.
    target: Option<f64>,
}

/// The target of a figure.
#[derive(Clone, Copy, Debug)]
pub enum Target {
    /// No target.
    None,
    /// The figure may be this at most.
    AtMost(Duration),
}

/// All figures.
#[derive(Debug, Default)]
pub struct Report {
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    #[serde(flatten)]
    scale: Scale,
    #[serde(flatten)]
    figure: Figure,
}

const MEGABYTE: f64 = 1_000_000.0;

impl Figure {
    /// Returns a figure of CPU time.
    pub fn cpu(what: impl Into<String>, value: Duration, target: Target) -> Self {
        Self::milliseconds(what.into(), value, "ms CPU", target)
    }

    /// Returns a figure of elapsed time.
    pub fn time(what: impl Into<String>, value: Duration, target: Target) -> Self {
        Self::milliseconds(what.into(), value, "ms", target)
    }

    /// Returns a number.
    #[allow(clippy::cast_precision_loss, reason = "exact up to 2^52")]
    pub fn count(what: impl Into<String>, value: usize) -> Self {
        Self { what: what.into(), value: value as f64, unit: "", target: None }
    }

    /// Returns a figure of bytes, in MB.
    #[allow(clippy::cast_precision_loss, reason = "exact up to 2^52")]
    pub fn megabytes(what: impl Into<String>, bytes: usize) -> Self {
        Self { what: what.into(), value: bytes as f64 / MEGABYTE, unit: "MB", target: None }
    }

    /// Returns a share of one core, in percent.
    pub fn percent(what: impl Into<String>, share: f64) -> Self {
        Self { what: what.into(), value: share * 100.0, unit: "%", target: None }
    }

    /// Returns the figure with a target, in the figure's own unit.
    #[must_use]
    pub fn at_most(self, target: f64) -> Self {
        Self { target: Some(target), ..self }
    }

    fn milliseconds(what: String, value: Duration, unit: &'static str, target: Target) -> Self {
        let milliseconds = |time: Duration| time.as_secs_f64() * 1000.0;
        let target = match target {
            Target::None => None,
            Target::AtMost(most) => Some(milliseconds(most)),
        };
        Self { what, value: milliseconds(value), unit, target }
    }
}

impl Report {
    /// Adds the figures of a cluster.
    pub fn add(&mut self, scale: Scale, figures: Vec<Figure>) {
        self.rows.extend(figures.into_iter().map(|figure| Row { scale, figure }));
    }

    /// Prints a line for each figure.
    pub fn print_table(&self) {
        let mut last = None;
        for Row { scale, figure } in &self.rows {
            if last.replace(*scale) != Some(*scale) {
                let families = if scale.dual_stack { "IPv4 and IPv6" } else { "IPv4" };
                println!("\n{} Services with {} endpoints each, {families}", scale.services, scale.endpoints);
            }
            let decimals = if figure.unit.is_empty() { 0 } else { 2 };
            let verdict = match figure.target {
                Some(most) if figure.value <= most => format!("at most {most}: yes"),
                Some(most) => format!("at most {most}: NO"),
                None => String::new(),
            };
            let line =
                format!("  {:<44} {:>12.decimals$} {:<6}  {verdict}", figure.what, figure.value, figure.unit);
            println!("{}", line.trim_end());
        }
    }

    /// Prints an array with an object for each figure.
    pub fn print_json(&self) -> Result<()> {
        println!("{}", serde_json::to_string_pretty(&self.rows)?);
        Ok(())
    }
}
