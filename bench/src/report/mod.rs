//! The figures of all benchmarks: one schema, one table, one JSON document, one page.
//!
//! A benchmark builds a [`Section`] and hands it to [`Output::write`]. The section then appears in
//! the table, in the JSON, on the page of `bench report`, and in comparisons:
//!
//! ```ignore
//! let mut section = Section::new("rate", "Packets a second", "Each side sends for a second in turn.");
//! let mut group = Group::new("XDP, encapsulating, 1 CPU", Unit::PacketsPerSecond);
//! group.add(Figure::new("IPv4", "Millrace", &samples)?.target(3.0e6));
//! group.add(Figure::new("IPv4", "bare TX", &others)?);
//! section.add(group);
//! section.leave_out("kube-proxy, IPVS", "this kernel has no IPVS");
//! arguments.output.write(vec![section])
//! ```
//!
//! The benchmark must provide:
//!
//! - samples, not means: a figure is their median, and its noise is their spread;
//! - only figures whose result it has checked (frames, replies, counts), of the peers, too;
//! - names that stay the same between versions: a comparison finds a figure by section, group,
//!   name, subject and `x`;
//! - a line of [`Section::leave_out`] for everything that it could not measure.
#![allow(dead_code, reason = "not every benchmark needs every part of the schema")]

pub mod command;
mod compare;
mod environment;
mod output;
mod page;
mod spread;
mod unit;

pub use environment::Environment;
pub use output::Output;
pub use spread::Spread;
pub use unit::{Better, Unit};

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// The version of the schema. A change that old readers would misread raises it.
pub const VERSION: u32 = 1;

/// The subject of Millrace's own figures.
pub const MILLRACE: &str = "Millrace";

/// The document: the output of a benchmark with `--json`, and of `bench report`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`VERSION`].
    pub version: u32,
    /// One for each benchmark.
    pub sections: Vec<Section>,
}

/// The figures of a benchmark, from one run on one machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Section {
    /// The benchmark's name on the command line, such as `packets`.
    pub id: String,
    /// The heading.
    pub title: String,
    /// The method, in a few sentences.
    pub method: String,
    /// The machine, the kernel, the commit.
    pub environment: Environment,
    /// The figures.
    pub groups: Vec<Group>,
    /// Figures that are missing, with the reasons.
    #[serde(default)]
    pub left_out: Vec<LeftOut>,
}

/// Figures of one unit that are compared with each other. A group is one picture and one table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// The heading, unique in the section.
    pub title: String,
    /// The unit of all figures.
    pub unit: Unit,
    /// The direction of an improvement.
    pub better: Better,
    /// The label of the horizontal axis, if the figures have an `x`. The picture then has lines
    /// instead of bars.
    #[serde(default)]
    pub axis: Option<String>,
    /// The figures, in the order of the table.
    pub figures: Vec<Figure>,
}

/// A figure with its spread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The row in table and picture.
    pub name: String,
    /// Whose figure it is: [`MILLRACE`] or a peer. Subjects differ in colour.
    pub subject: String,
    /// The place on the group's axis, such as a number of Services.
    #[serde(default)]
    pub x: Option<f64>,
    /// The samples in short.
    pub spread: Spread,
    /// The value to reach: at least or at most, by the group's direction.
    #[serde(default)]
    pub target: Option<f64>,
    /// The smallest step that the instrument shows, in the group's unit. 0 = the values are exact.
    #[serde(default)]
    pub resolution: f64,
    /// Further numbers, such as the empty program's nanoseconds. The key has the unit.
    #[serde(default)]
    pub details: BTreeMap<String, f64>,
}

/// Something that was not measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// The figure or the peer.
    pub what: String,
    /// The reason.
    pub why: String,
}

impl Report {
    /// Returns the document of these sections.
    pub const fn new(sections: Vec<Section>) -> Self {
        Self { version: VERSION, sections }
    }
}

impl Section {
    /// Returns a section without figures, with this machine's description.
    pub fn new(id: &str, title: &str, method: &str) -> Self {
        Self {
            id: id.to_owned(),
            title: title.to_owned(),
            method: method.to_owned(),
            environment: Environment::of_this_machine(),
            groups: Vec::new(),
            left_out: Vec::new(),
        }
    }

    /// Adds a group. Figures of a group with the same title join it.
    pub fn add(&mut self, group: Group) {
        match self.groups.iter_mut().find(|known| known.title == group.title) {
            Some(known) => known.figures.extend(group.figures),
            None => self.groups.push(group),
        }
    }

    /// Says what was not measured, and why.
    pub fn leave_out(&mut self, what: impl Into<String>, why: impl Into<String>) {
        self.left_out.push(LeftOut { what: what.into(), why: why.into() });
    }

    /// Returns the number of figures.
    pub fn figures(&self) -> usize {
        self.groups.iter().map(|group| group.figures.len()).sum()
    }
}

impl Group {
    /// Returns a group without figures. The unit gives the direction of an improvement.
    pub fn new(title: impl Into<String>, unit: Unit) -> Self {
        Self { title: title.into(), unit, better: unit.better(), axis: None, figures: Vec::new() }
    }

    /// Sets the direction of an improvement.
    #[must_use]
    pub fn better(self, better: Better) -> Self {
        Self { better, ..self }
    }

    /// Sets the label of the axis for figures with an `x`.
    #[must_use]
    pub fn over(self, axis: impl Into<String>) -> Self {
        Self { axis: Some(axis.into()), ..self }
    }

    /// Returns the direction in words.
    pub const fn direction(&self) -> &'static str {
        match self.better {
            Better::Lower => "less is better",
            Better::Higher => "more is better",
            Better::Neither => "",
        }
    }

    /// Adds a figure.
    pub fn add(&mut self, figure: Figure) {
        self.figures.push(figure);
    }
}

impl Figure {
    /// Returns the figure of these samples. There must be one at least.
    pub fn new(name: impl Into<String>, subject: impl Into<String>, samples: &[f64]) -> Result<Self> {
        let (name, subject) = (name.into(), subject.into());
        let spread = Spread::of(samples).with_context(|| format!("{name}, {subject}"))?;
        let details = BTreeMap::new();
        Ok(Self { name, subject, x: None, spread, target: None, resolution: 0.0, details })
    }

    /// Sets the place on the group's axis.
    #[must_use]
    pub fn at(self, x: f64) -> Self {
        Self { x: Some(x), ..self }
    }

    /// Sets the value to reach. The group's direction says whether it is the least or the most.
    #[must_use]
    pub fn target(self, target: f64) -> Self {
        Self { target: Some(target), ..self }
    }

    /// Sets the smallest step that the instrument shows.
    #[must_use]
    pub fn resolution(self, resolution: f64) -> Self {
        Self { resolution, ..self }
    }

    /// Adds a number that the table shows beside the figure.
    #[must_use]
    pub fn detail(mut self, key: &str, value: f64) -> Self {
        self.details.insert(key.to_owned(), value);
        self
    }
}
