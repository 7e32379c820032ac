//! The measurement of a case: the program and the empty one in turn, each result checked.

use anyhow::{Result, bail, ensure};
use millrace_lab::program::Counts;

use super::case::Case;
use super::network::in_a_namespace;
use super::scene::Scene;

/// The samples of a case, in nanoseconds a round.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    /// Those of the empty program.
    pub empty: Vec<f64>,
    /// Those of the measured program.
    pub program: Vec<f64>,
}

impl Samples {
    /// Returns the differences of neighbours.
    pub fn costs(&self) -> Vec<f64> {
        self.program.iter().zip(&self.empty).map(|(program, empty)| program - empty).collect()
    }
}

/// Measures a case. The kernel's other network state is out of its way if it needs one of its own.
pub fn measure(case: &Case, rounds: u32, samples: usize) -> Result<Samples> {
    if case.needs_network() {
        in_a_namespace(|| take(case, rounds, samples))
    } else {
        take(case, rounds, samples)
    }
}

fn take(case: &Case, rounds: u32, samples: usize) -> Result<Samples> {
    let mut scene = Scene::new(*case)?;
    let mut taken = Samples::default();
    for sample in 0..samples {
        // The one that comes second finds warmer caches, so the order changes.
        if sample % 2 == 0 {
            taken.empty.push(scene.sample_empty(rounds)?);
            taken.program.push(scene.sample_program(rounds)?);
        } else {
            taken.program.push(scene.sample_program(rounds)?);
            taken.empty.push(scene.sample_empty(rounds)?);
        }
    }
    Ok(taken)
}

impl Scene {
    /// Takes a sample of the empty program. Its last frame must be the round's own.
    fn sample_empty(&mut self, rounds: u32) -> Result<f64> {
        let sample = self.wrapper.sample(&self.empty, self.case.repetition(), rounds)?;
        let (round, outcome) = &sample.last;
        self.case.check_empty(&self.facts, *round, outcome)?;
        Ok(sample.nanoseconds)
    }

    /// Takes a sample of the measured program.
    ///
    /// The last round must end with the expected action and frame. The program must have counted
    /// every round under the expected reason.
    pub fn sample_program(&mut self, rounds: u32) -> Result<f64> {
        self.bed.beat();
        let before = self.bed.counters();
        let sample = self.wrapper.sample(&self.target, self.case.repetition(), rounds)?;
        let counts = Counts::between(self.case.hook, &before, &self.bed.counters());
        let (round, outcome) = &sample.last;
        self.case.check(&self.facts, *round, outcome)?;
        let reason = self.case.walk.reason(self.case.hook);
        let counted = counts.of(reason).packets;
        ensure!(
            counts.packets() == counted,
            "{}: not all rounds ended as {}: {counts}",
            self.case.name(),
            reason.name()
        );
        if counted != sample.rounds {
            bail!("{}: {} rounds, but {counts}", self.case.name(), sample.rounds);
        }
        Ok(sample.nanoseconds)
    }
}
