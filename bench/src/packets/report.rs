//! The figures, as a table or as JSON.

use anyhow::Result;
use serde::Serialize;

use super::case::{Case, Walk};
use super::wrapper::Repetition;

/// One figure.
#[derive(Debug, Serialize)]
pub struct Measurement {
    walk: Walk,
    program: &'static str,
    family: &'static str,
    /// `null` = every packet is of another flow.
    flows: Option<u32>,
    services: u32,
    /// How the rounds were run. Figures of the two kinds do not compare.
    repetition: Repetition,
    /// Nanoseconds of a round with the empty program.
    empty_ns: u64,
    /// Nanoseconds of a round with the program.
    program_ns: u64,
    /// The difference.
    cost_ns: i64,
    #[serde(skip)]
    label: &'static str,
}

/// All figures.
#[derive(Debug, Default)]
pub struct Report {
    measurements: Vec<Measurement>,
}

impl Measurement {
    /// Returns the figure of a case's medians.
    pub fn new(case: &Case, empty_ns: u64, program_ns: u64) -> Self {
        Self {
            walk: case.walk,
            program: case.hook.program(),
            family: case.family(),
            flows: case.has_flows().then_some(case.flows),
            services: case.services,
            repetition: case.repetition(),
            empty_ns,
            program_ns,
            cost_ns: program_ns.cast_signed() - empty_ns.cast_signed(),
            label: case.walk_name(),
        }
    }

    fn row(&self) -> [String; 9] {
        [
            self.label.to_owned(),
            self.program.to_owned(),
            self.family.to_owned(),
            self.flows.map_or_else(|| "ever new".to_owned(), |flows| flows.to_string()),
            self.services.to_string(),
            match self.repetition {
                Repetition::InKernel => "in kernel".to_owned(),
                Repetition::Single => "single".to_owned(),
            },
            self.empty_ns.to_string(),
            self.program_ns.to_string(),
            self.cost_ns.to_string(),
        ]
    }
}

impl Report {
    /// Adds a figure.
    pub fn add(&mut self, measurement: Measurement) {
        self.measurements.push(measurement);
    }

    /// Returns whether there is no figure.
    pub const fn is_empty(&self) -> bool {
        self.measurements.is_empty()
    }

    /// Prints a line for each figure, in nanoseconds a packet.
    pub fn print_table(&self) {
        let head =
            ["walk", "program", "family", "flows", "services", "rounds", "empty ns", "with ns", "cost ns"];
        let rows: Vec<[String; 9]> = std::iter::once(head.map(String::from))
            .chain(self.measurements.iter().map(Measurement::row))
            .collect();
        let mut widths = [0; 9];
        for row in &rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = cell.len().max(*width);
            }
        }
        for row in &rows {
            let cells: Vec<String> =
                row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
            println!("{}", cells.join("  ").trim_end());
        }
    }

    /// Prints an array with an object for each figure.
    pub fn print_json(&self) -> Result<()> {
        println!("{}", serde_json::to_string_pretty(&self.measurements)?);
        Ok(())
    }
}
