//! The figures of the cases, by the heading of their walk.

use anyhow::Result;

use super::case::Case;
use super::measure::Samples;
use super::walk::Place;
use super::wrapper::Repetition;
use crate::report::{Better, Figure, Group, MILLRACE, Section, Spread, Unit};

const METHOD: &str = "BPF_PROG_TEST_RUN runs the real program in the kernel, around a wrapper that restores \
    the frame. A sample is the kernel's mean over the rounds. Samples of the empty program alternate with \
    those of the real one. A figure is the median of the differences of neighbours. After each sample the \
    last frame must equal the frame builder's byte for byte, with the expected action, and the program must \
    have counted every round under the expected reason.";
/// The kernel reports whole nanoseconds for each of two samples.
const RESOLUTION: f64 = 1.0;

/// The most that a DSR packet to one of many Services may cost, beside one to a single Service.
const MANY_OVER_ONE: f64 = 1.3;

/// Returns the section without figures.
pub fn section() -> Section {
    Section::new("packets", "What a packet costs", METHOD)
}

/// Adds a case's figure.
pub fn add(section: &mut Section, case: &Case, samples: &Samples) -> Result<()> {
    let heading = case.walk.heading();
    let title = match case.repetition() {
        Repetition::InKernel => heading.to_owned(),
        // Figures of the two kinds do not compare.
        Repetition::Single => format!("{heading}, one round a call"),
    };
    let figure = Figure::new(case.name(), MILLRACE, &samples.costs())?
        .resolution(RESOLUTION)
        .detail("empty ns", Spread::of(&samples.empty)?.median)
        .detail("with ns", Spread::of(&samples.program)?.median);
    let figure = Figure { target: case.goal(), ..figure };
    let mut group = Group::new(title, Unit::Nanoseconds);
    group.add(figure);
    section.add(group);
    Ok(())
}

/// Adds the ratios of the cases with many Services to those with one.
pub fn add_ratios(section: &mut Section, measured: &[(Case, Samples)]) -> Result<()> {
    for (many, samples) in measured {
        let Some((_, one)) = measured.iter().find(|(case, _)| many.is_many_of(case)) else { continue };
        let ratios: Vec<f64> =
            samples.costs().iter().zip(one.costs()).map(|(many, one)| many / one).collect();
        let figure = Figure::new(many.name(), MILLRACE, &ratios)?;
        let target = (many.walk.place() == Place::Dsr).then_some(MANY_OVER_ONE);
        let mut group = Group::new("Many Services over one", Unit::Ratio).better(Better::Lower);
        group.add(Figure { target, ..figure });
        section.add(group);
    }
    Ok(())
}
