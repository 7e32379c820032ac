//! What is to become of a packet. Only `main.rs` turns this into an action.

use proxy_common::verdict::Reason;

/// What a program does with a packet.
#[derive(Clone, Copy)]
pub enum Verdict {
    /// To the stack exactly as it came.
    Pass(Reason),
    /// To the stack, or onwards out of the node, translated.
    Deliver(Reason),
    /// Out through this device; the frame is complete for XDP, and for TC but for its MAC addresses.
    Send(Reason, u32),
    /// Back out of the device it came in by; the frame is complete.
    Bounce(Reason),
    /// Received again by the device it came in by; the frame is complete.
    Reinject(Reason),
    /// Away with it.
    Drop(Reason),
    /// Away with it, and its sender is told. The number is the way's id for [`Reason::HopLimit`], or [`BY_HOP`] and that of the
    /// backend, and for [`Reason::TooBig`] the size that would have fitted.
    Refuse(Reason, u32),
}

/// How a stage ends. Both variants are final verdicts; `Err` only lets `?` return early.
pub type Decision = Result<Verdict, Verdict>;

/// The packet would have gone to the backend of this id, by its hop.
pub const BY_HOP: u32 = 1 << 31;

/// Not for us, or not understood.
pub const UNTOUCHED: Verdict = Verdict::Pass(Reason::NotOurs);
/// For us, but the TC program has to do it.
pub const HAND_TO_TC: Verdict = Verdict::Pass(Reason::HandedToTc);
/// A fragment for an address of a service, held until its packet's first one comes.
pub const HELD_FRAGMENT: Verdict = Verdict::Drop(Reason::FragmentHeld);
/// A fragment for an address of this node, held in case that its packet turns out to be for a NodePort, or another node's answer.
pub const HELD_AND_PASSED: Verdict = Verdict::Pass(Reason::FragmentHeld);
/// A fragment for an address of a service, of a packet whose first fragment was not seen.
pub const UNKNOWN_FRAGMENT: Verdict = Verdict::Drop(Reason::FragmentUnknown);
/// The kernel refused to change the frame, or a map to take an entry.
pub const NO_ROOM: Verdict = Verdict::Drop(Reason::NoRoom);

/// What follows the first stage of a client's packet. A later stage begins anew from the frame, with a stack of its own.
#[derive(Clone, Copy)]
pub enum NextStage {
    /// Nothing: this is the verdict.
    Done(Verdict),
    /// `snat::translate`, or `hairpin::translate` for a pod: the client's address is translated, too.
    Translate,
    /// `dsr_pod::send`: the backend's pod decapsulates.
    ToPod,
    /// `snat::restore`, or `hairpin::restore` for a pod: a reply to a translated client.
    Restore,
    /// `decap::receive`: the packet is a tunnel packet in UDP.
    Decapsulate,
    /// `other_mode::track`: the connection is the other mode's.
    TrackOtherMode,
}

impl From<Verdict> for NextStage {
    #[inline(always)]
    fn from(verdict: Verdict) -> Self {
        Self::Done(verdict)
    }
}

impl From<Result<Verdict, NextStage>> for NextStage {
    #[inline(always)]
    fn from(result: Result<Verdict, Self>) -> Self {
        match result {
            Ok(verdict) => Self::Done(verdict),
            Err(next) => next,
        }
    }
}

impl Verdict {
    /// The counter this packet belongs to.
    #[inline(always)]
    pub const fn reason(self) -> Reason {
        match self {
            Self::Pass(reason)
            | Self::Deliver(reason)
            | Self::Send(reason, _)
            | Self::Bounce(reason)
            | Self::Reinject(reason)
            | Self::Drop(reason)
            | Self::Refuse(reason, _) => reason,
        }
    }
}
