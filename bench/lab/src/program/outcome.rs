//! The outcome of a run, and assertions about it.

use std::fmt;

use bytes::Bytes;
use proxy_common::verdict::{Counter, Reason};

use super::run::{Hook, RawRun};
use crate::frame::{Frame, describe, difference};

/// The action of a program, with the same words for XDP and TC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Passed to the stack (`XDP_PASS`, `TC_ACT_OK`, `TCX_NEXT`).
    Pass,
    /// Dropped.
    Drop,
    /// Sent out of the device that received it (`XDP_TX`).
    Transmit,
    /// Sent out of a device that the program named.
    Redirect,
    /// The program failed (`XDP_ABORTED`) or returned an invalid value.
    Fault,
}

impl Verdict {
    /// Returns the meaning of a program's return value.
    #[must_use]
    pub const fn new(hook: Hook, action: u32) -> Self {
        const TCX_NEXT: u32 = u32::MAX;
        match (hook.is_xdp(), action) {
            (true, 2) | (false, 0 | TCX_NEXT) => Self::Pass,
            (true, 1) | (false, 2) => Self::Drop,
            (true, 3) => Self::Transmit,
            (true, 4) | (false, 7) => Self::Redirect,
            _ => Self::Fault,
        }
    }

    /// Returns whether the frame leaves by a device.
    #[must_use]
    pub const fn is_sent(self) -> bool {
        matches!(self, Self::Transmit | Self::Redirect)
    }
}

/// The counts of each reason, in packets and bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counts(Vec<(Reason, Counter)>);

impl Counts {
    /// Returns the counts of a program between two readings of COUNTERS. Unchanged reasons are left
    /// out.
    #[must_use]
    pub fn between(hook: Hook, before: &[Counter], after: &[Counter]) -> Self {
        let counts = Reason::ALL.iter().filter_map(|reason| {
            let index = hook.counted_as().counter(*reason) as usize;
            let (old, new) = (before[index], after[index]);
            (old != new).then(|| {
                (*reason, Counter { packets: new.packets - old.packets, bytes: new.bytes - old.bytes })
            })
        });
        Self(counts.collect())
    }

    /// Returns the packets counted under any reason.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.0.iter().map(|(_, counter)| counter.packets).sum()
    }

    /// Returns the packets and bytes of one reason.
    #[must_use]
    pub fn of(&self, reason: Reason) -> Counter {
        self.0.iter().find(|(counted, _)| *counted == reason).map(|(_, counter)| *counter).unwrap_or_default()
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counted: Vec<String> = self
            .0
            .iter()
            .map(|(reason, counter)| {
                format!("{} {} ({} bytes)", reason.name(), counter.packets, counter.bytes)
            })
            .collect();
        write!(
            formatter,
            "counted: {}",
            if counted.is_empty() { "nothing".into() } else { counted.join(", ") }
        )
    }
}

/// The outcome of one run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The program that ran.
    pub hook: Hook,
    /// The frame that it received.
    pub sent: Bytes,
    /// Its verdict.
    pub verdict: Verdict,
    /// The program's return value, frame, metadata and mark.
    pub run: RawRun,
    /// Its counts.
    pub counts: Counts,
}

impl Outcome {
    pub(super) fn new(hook: Hook, sent: Bytes, run: RawRun, counts: Counts) -> Self {
        Self { hook, sent, verdict: Verdict::new(hook, run.action), run, counts }
    }

    /// Returns the frame as the program left it, parsed.
    #[track_caller]
    pub fn frame(&self) -> Frame {
        Frame::parse(&self.run.frame).unwrap_or_else(|error| panic!("{error}\n{self}"))
    }

    /// Asserts that the frame was passed to the stack and equals `expected`.
    #[track_caller]
    pub fn assert_passed(&self, expected: &Frame) -> &Self {
        self.assert_verdict(|verdict| verdict == Verdict::Pass, "to be passed")
            .assert_frame(&expected.build())
    }

    /// Asserts that the frame was passed to the stack unchanged, without metadata.
    #[track_caller]
    pub fn assert_untouched(&self) -> &Self {
        self.assert_verdict(|verdict| verdict == Verdict::Pass, "to be passed");
        assert!(self.run.frame == self.sent, "the frame was changed\n{self}");
        assert!(self.run.metadata.is_empty(), "the frame was given metadata\n{self}");
        self
    }

    /// Asserts that the frame was sent out of a device and equals `expected`.
    #[track_caller]
    pub fn assert_sent(&self, expected: &Frame) -> &Self {
        self.assert_verdict(Verdict::is_sent, "to be sent").assert_frame(&expected.build())
    }

    /// Asserts that the frame was dropped and counted once, under this reason.
    #[track_caller]
    pub fn assert_dropped(&self, reason: Reason) -> &Self {
        self.assert_verdict(|verdict| verdict == Verdict::Drop, "to be dropped").assert_counted(reason)
    }

    /// Asserts that the frame was counted exactly once, under this reason, with its bytes as
    /// received.
    #[track_caller]
    pub fn assert_counted(&self, reason: Reason) -> &Self {
        let expected = Counter { packets: 1, bytes: self.sent.len() as u64 };
        let once = self.counts.packets() == 1 && self.counts.of(reason) == expected;
        assert!(once, "expected one packet counted as {}\n{self}", reason.name());
        self
    }

    #[track_caller]
    fn assert_verdict(&self, wanted: impl Fn(Verdict) -> bool, what: &str) -> &Self {
        assert!(wanted(self.verdict), "expected the frame {what}\n{self}");
        self
    }

    #[track_caller]
    fn assert_frame(&self, expected: &[u8]) -> &Self {
        if let Some(difference) = difference(expected, &self.run.frame) {
            panic!("{difference}\n{self}");
        }
        self
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (program, action, verdict) = (self.hook.program(), self.run.action, self.verdict);
        writeln!(formatter, "{program} returned {action} ({verdict:?}); {}", self.counts)?;
        writeln!(formatter, "metadata {:02x?}, mark {:#x}", &self.run.metadata[..], self.run.mark)?;
        write!(formatter, "given:\n{}left:\n{}", describe(&self.sent), describe(&self.run.frame))
    }
}
