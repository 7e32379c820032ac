//! The rounds of a run. Each has a seed of its own, so that it can be repeated alone.

use std::fmt;
use std::io::{Write as _, stderr};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use millrace_lab::program::Counts;
use proxy_common::verdict::Reason;

/// Frames of a usual run for each program.
const FRAMES: u64 = 500_000;
/// The same with `MILLRACE_LONG=1`.
const LONG_FRAMES: u64 = 20_000_000;
/// Frames of a round. It takes some seconds, so that a failed one is repeated quickly.
const ROUND: u64 = 250_000;
/// Frames after which every expected reason has occurred. One round is too short for the rarest.
const ENOUGH: u64 = 500_000;
/// Time between two lines of progress.
const INTERVAL: Duration = Duration::from_mins(1);

/// A round.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    /// The seed of its frames.
    pub seed: u64,
    /// The number of frames.
    pub frames: u64,
}

/// Ends all rounds if its thread panics: a long run must not go on for hours after a failure.
pub struct Stop<'a>(&'a Rounds);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.has_failed.store(true, Relaxed);
        }
    }
}

/// The rounds of one program, which threads take in turn.
pub struct Rounds {
    program: &'static str,
    seed: u64,
    frames: u64,
    next: AtomicU64,
    has_failed: AtomicBool,
    played: AtomicU64,
    start: Instant,
    told: Mutex<Instant>,
    counts: Mutex<Vec<u64>>,
}

impl Rounds {
    /// Returns all rounds. With `MILLRACE_SEED`, that is one round with this seed, unless
    /// `MILLRACE_FRAMES` wants more.
    pub fn new(program: &'static str) -> Self {
        let usual = if given_seed().is_some() { ROUND } else { if_long(LONG_FRAMES, FRAMES) };
        let start = Instant::now();
        Self {
            program,
            seed: given_seed().unwrap_or_else(seed_of_now),
            frames: number("MILLRACE_FRAMES").unwrap_or(usual),
            next: AtomicU64::new(0),
            has_failed: AtomicBool::new(false),
            played: AtomicU64::new(0),
            start,
            told: Mutex::new(start),
            counts: Mutex::new(vec![0; Reason::ALL.len()]),
        }
    }

    /// Returns the next round, or `None` behind the last one and after a failure.
    pub fn next(&self) -> Option<Round> {
        if self.has_failed.load(Relaxed) {
            return None;
        }
        let index = self.next.fetch_add(1, Relaxed);
        let frames = self.frames.saturating_sub(index.saturating_mul(ROUND)).min(ROUND);
        (frames > 0).then(|| Round { seed: derived(self.seed, index), frames })
    }

    /// Returns the guard of a thread.
    pub fn stop_on_panic(&self) -> Stop<'_> {
        Stop(self)
    }

    /// Adds played frames, and tells the progress once a minute.
    pub fn played(&self, frames: u64) {
        self.played.fetch_add(frames, Relaxed);
        let mut told = self.told.lock().unwrap();
        if told.elapsed() >= INTERVAL {
            *told = Instant::now();
            drop(told);
            self.report();
        }
    }

    /// Tells how many frames were played, and how many in a second. libtest does not capture this.
    pub fn report(&self) {
        let (played, time) = (self.played.load(Relaxed), self.start.elapsed());
        let rate = u128::from(played) * 1000 / time.as_millis().max(1);
        let (program, all, seconds, seed) = (self.program, self.frames, time.as_secs(), self.seed);
        let line = format!(
            "fuzz {program}: {played} of {all} frames in {seconds} s, {rate} a second; the run's seed is {seed}"
        );
        let _ = writeln!(stderr(), "{line}");
    }

    /// Adds the counts of a round.
    pub fn add_counts(&self, counts: &Counts) {
        let mut sums = self.counts.lock().unwrap();
        for (sum, reason) in sums.iter_mut().zip(Reason::ALL) {
            *sum += counts.of(*reason).packets;
        }
    }

    /// Returns the expected reasons that did not occur. A short run says nothing about them.
    pub fn unmet(&self, expected: &[Reason]) -> Vec<Reason> {
        let sums = self.counts.lock().unwrap();
        let met =
            |wanted: &Reason| sums.iter().zip(Reason::ALL).any(|(sum, reason)| reason == wanted && *sum > 0);
        let is_enough = self.frames >= ENOUGH;
        expected.iter().filter(|reason| is_enough && !met(reason)).copied().collect()
    }
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MILLRACE_SEED={} repeats this round of {} frames alone", self.seed, self.frames)
    }
}

/// Returns the seed of a part of a run. The first part has the seed of the run, so a part's seed
/// repeats it alone.
pub fn derived(seed: u64, index: u64) -> u64 {
    seed.wrapping_add(index.wrapping_mul(0xa076_1d64_78bd_642f))
}

/// Returns `MILLRACE_SEED`.
pub fn given_seed() -> Option<u64> {
    number("MILLRACE_SEED")
}

/// Returns a seed that no earlier run had.
pub fn seed_of_now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    now.as_secs().wrapping_mul(1_000_000_000) + u64::from(now.subsec_nanos())
}

/// Returns a number of inputs, ten times as many with `MILLRACE_LONG=1`.
pub fn times_if_long(inputs: u64) -> u64 {
    if_long(10 * inputs, inputs)
}

fn if_long(long: u64, usual: u64) -> u64 {
    let is_long = std::env::var_os("MILLRACE_LONG").is_some_and(|value| value == "1");
    if is_long { long } else { usual }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap())
}
