//! The figures of a cluster, by what they measure.

use std::time::Duration;

use anyhow::Result;

use super::objects::Scale;
use crate::report::{self, Better, Group, MILLRACE, Section, Unit};

const METHOD: &str = "The agent's own source, loop and data plane run against an API server on loopback. CPU \
    time is that of the thread that does the work, including the kernel's part. Each part ends with a check \
    that the last state is the right one. A figure of several runs or changes is their median.";

/// One figure.
#[derive(Clone, Debug)]
pub struct Figure {
    what: String,
    kind: Kind,
    /// In the kind's unit.
    samples: Vec<f64>,
    /// The most that it may be.
    target: Option<f64>,
}

/// What a figure measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    CpuTime,
    Time,
    Count,
    Memory,
    Share,
}

/// The target of a figure.
#[derive(Clone, Copy, Debug)]
pub enum Target {
    /// No target.
    None,
    /// The figure may be this at most.
    AtMost(Duration),
}

/// Bytes of the unit of memory targets.
const MEGABYTE: f64 = 1_000_000.0;

impl Figure {
    /// Returns a figure of CPU time.
    pub fn cpu(what: impl Into<String>, value: Duration, target: Target) -> Self {
        Self::cpu_of(what, &[value], target)
    }

    /// Returns a figure of CPU times.
    pub fn cpu_of(what: impl Into<String>, values: &[Duration], target: Target) -> Self {
        Self::times(what.into(), values, Kind::CpuTime, target)
    }

    /// Returns a figure of elapsed time.
    pub fn time(what: impl Into<String>, value: Duration, target: Target) -> Self {
        Self::time_of(what, &[value], target)
    }

    /// Returns a figure of elapsed times.
    pub fn time_of(what: impl Into<String>, values: &[Duration], target: Target) -> Self {
        Self::times(what.into(), values, Kind::Time, target)
    }

    /// Returns a number.
    #[allow(clippy::cast_precision_loss, reason = "exact up to 2^52")]
    pub fn count(what: impl Into<String>, value: usize) -> Self {
        Self { what: what.into(), kind: Kind::Count, samples: vec![value as f64], target: None }
    }

    /// Returns a figure of bytes. Its target is in MB.
    #[allow(clippy::cast_precision_loss, reason = "exact up to 2^52")]
    pub fn megabytes(what: impl Into<String>, bytes: usize) -> Self {
        Self { what: what.into(), kind: Kind::Memory, samples: vec![bytes as f64], target: None }
    }

    /// Returns a share of one core, in percent.
    pub fn percent(what: impl Into<String>, share: f64) -> Self {
        Self { what: what.into(), kind: Kind::Share, samples: vec![share * 100.0], target: None }
    }

    /// Returns the figure with a target, in the figure's own unit.
    #[must_use]
    pub fn at_most(self, target: f64) -> Self {
        let factor = if self.kind == Kind::Memory { MEGABYTE } else { 1.0 };
        Self { target: Some(target * factor), ..self }
    }

    fn times(what: String, values: &[Duration], kind: Kind, target: Target) -> Self {
        let milliseconds = |time: &Duration| time.as_secs_f64() * 1000.0;
        let target = match target {
            Target::None => None,
            Target::AtMost(most) => Some(milliseconds(&most)),
        };
        Self { what, kind, samples: values.iter().map(milliseconds).collect(), target }
    }
}

impl Kind {
    const fn heading(self) -> &'static str {
        match self {
            Self::CpuTime => "CPU time",
            Self::Time => "latency",
            Self::Count => "counts",
            Self::Memory => "memory",
            Self::Share => "shares",
        }
    }

    const fn unit(self) -> (Unit, Better) {
        match self {
            Self::CpuTime | Self::Time => (Unit::Milliseconds, Better::Lower),
            Self::Count => (Unit::Count, Better::Neither),
            Self::Memory => (Unit::Bytes, Better::Lower),
            Self::Share => (Unit::Percent, Better::Neither),
        }
    }
}

/// Returns the section without figures.
pub fn section() -> Section {
    Section::new("control", "The control plane", METHOD)
}

/// Adds the figures of a cluster.
pub fn add(section: &mut Section, scale: Scale, figures: Vec<Figure>) -> Result<()> {
    let families = if scale.dual_stack { "IPv4 and IPv6" } else { "IPv4" };
    for Figure { what, kind, samples, target } in figures {
        let (services, endpoints, kind_of) = (scale.services, scale.endpoints, kind.heading());
        let title = format!("{services} Services with {endpoints} endpoints each, {families}: {kind_of}");
        let (unit, better) = kind.unit();
        let mut group = Group::new(title, unit).better(better);
        group.add(report::Figure { target, ..report::Figure::new(what, MILLRACE, &samples)? });
        section.add(group);
    }
    Ok(())
}
