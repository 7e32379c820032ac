//! A flood of drops while `millrace monitor` watches, beside one while nobody does.
//!
//! Both run in one scene, turn by turn. The rate of events is one of a second, so a sample takes a second or more.
//! It is timed by a clock here: the kernel reports whole nanoseconds, which are more than a hundredth of a packet.

use std::time::Instant;

use anyhow::{Result, ensure};
use millrace_lab::program::monotonic_seconds;
use proxy_common::event::{Monitor, USUAL_RATE};

use super::case::Case;
use super::scene::Scene;
use super::walk::Walk;
use crate::report::{Better, Figure, Group, MILLRACE, Section, Unit};

/// The rounds of a sample for each of the others': more than a second of packets.
const TIMES: u32 = 30;
/// `millrace monitor --rate` by default.
const RATE: u32 = 1000;
/// The part of the throughput that must be left.
const LEFT: f64 = 0.99;

/// Returns the ratios of the throughput watched to that unwatched, one for each pair of samples.
pub fn measure(case: &Case, rounds: u32, samples: usize) -> Result<Vec<f64>> {
    ensure!(case.walk == Walk::Dropped, "only drops are watched");
    let mut scene = Scene::new(*case)?;
    let rounds = rounds.saturating_mul(TIMES);
    let mut ratios = Vec::new();
    for sample in 0..samples {
        let is_first = sample % 2 == 0;
        let first = time(&mut scene, is_first, rounds)?;
        let second = time(&mut scene, !is_first, rounds)?;
        let (watched, unwatched) = if is_first { (first, second) } else { (second, first) };
        ratios.push(unwatched / watched);
    }
    Ok(ratios)
}

/// Returns the seconds of a sample.
fn time(scene: &mut Scene, is_watched: bool, rounds: u32) -> Result<f64> {
    let until = u32::try_from(monotonic_seconds() + 600)?;
    let wish = Monitor { rate: RATE, until, ..Monitor::USUAL };
    let wish = if is_watched { wish } else { Monitor::default() };
    scene.bed.set::<Monitor>("MONITOR", 0, wish);
    let before = scene.bed.recordings();
    let start = Instant::now();
    scene.sample_program(rounds)?;
    let seconds = start.elapsed().as_secs_f64();
    let after = scene.bed.recordings();
    let each = after.iter().zip(&before).map(|(now, then)| now.sequence - then.sequence);
    #[expect(clippy::cast_precision_loss, reason = "a count of some thousands")]
    let recorded = each.max().unwrap_or_default() as f64;
    // The seconds of the clock that a sample touches, and so the events that a CPU may have.
    let most = f64::from(if is_watched { RATE } else { USUAL_RATE }) * (seconds + 2.0);
    // More than without a wish shows that it holds. Within a second, earlier samples may have used its events.
    ensure!(
        recorded <= most && (recorded > 0.0 || seconds < 1.0),
        "{recorded} events of a CPU in {seconds} s"
    );
    Ok(seconds)
}

/// Adds the figure of a case.
pub fn add(section: &mut Section, case: &Case, ratios: &[f64]) -> Result<()> {
    let figure = Figure::new(case.name(), MILLRACE, ratios)?;
    let mut group = Group::new("Drops watched over drops unwatched, packets a second", Unit::Ratio)
        .better(Better::Higher);
    group.add(Figure { target: Some(LEFT), ..figure });
    section.add(group);
    Ok(())
}
