//! The counters against the oracle's expectation: every packet once, under a possible reason.

use millrace_lab::program::{Counts, Hook};
use proxy_common::verdict::{Counter, Reason};

/// The expected counts of a batch of frames.
#[derive(Default)]
pub struct Tally {
    packets: u64,
    bytes: u64,
    expected: Vec<(&'static [Reason], u64)>,
}

impl Tally {
    /// Adds a frame of `bytes` bytes that one of the reasons counts.
    pub fn note(&mut self, bytes: usize, reasons: &'static [Reason]) {
        self.packets += 1;
        self.bytes += bytes as u64;
        match self.expected.iter_mut().find(|(known, _)| *known == reasons) {
            Some((_, packets)) => *packets += 1,
            None => self.expected.push((reasons, 1)),
        }
    }

    /// Compares the expected counts with two readings of COUNTERS.
    pub fn check(&self, hook: Hook, before: &[Counter], after: &[Counter]) -> Result<(), String> {
        let counts = Counts::between(hook, before, after);
        let bytes: u64 = Reason::ALL.iter().map(|reason| counts.of(*reason).bytes).sum();
        if (counts.packets(), bytes) != (self.packets, self.bytes) {
            return Err(format!("{} frames of {} bytes, but {counts}", self.packets, self.bytes));
        }
        for reason in Reason::ALL {
            let may = self.sum(|reasons| reasons.contains(reason));
            let must = self.sum(|reasons| reasons == [*reason]);
            let counted = counts.of(*reason).packets;
            if counted < must || counted > may {
                return Err(format!("{} counted {counted} times, not {must} to {may} times", reason.name()));
            }
        }
        Ok(())
    }

    fn sum(&self, of: impl Fn(&[Reason]) -> bool) -> u64 {
        self.expected.iter().filter(|(reasons, _)| of(reasons)).map(|(_, packets)| packets).sum()
    }
}
