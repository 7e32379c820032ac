//! Verdicts about packets. Only `action.rs` turns them into actions.

use proxy_common::part::Part;
use proxy_common::verdict::Reason;

/// A program's decision about a packet.
#[derive(Clone, Copy)]
pub enum Verdict {
    /// Passes the packet to the stack unchanged.
    Pass(Reason),
    /// Passes the packet, translated, to the stack or onwards out of the node.
    Deliver(Reason),
    /// Sends the packet out through this device. The frame is complete for XDP, and for TC but for its MAC
    /// addresses.
    Send(Reason, u32),
    /// Sends the packet out through this device as it is: the frame is complete, its MAC addresses included.
    Transmit(Reason, u32),
    /// Sends the packet back out of the device it came in by. The frame is complete.
    Bounce(Reason),
    /// Has the device it came in by receive the packet again. The frame is complete.
    Reinject(Reason),
    /// Drops the packet.
    Drop(Reason),
    /// Drops the packet and tells its sender, in another [part](Part).
    ///
    /// The number for [`Reason::HopLimit`] is the way's id, or [`BY_HOP`] and the backend's id. For
    /// [`Reason::TooBig`] it is the size that would have fitted.
    Refuse(Reason, u32),
    /// No verdict yet: another program decides, from the frame as it is.
    Continue(Part),
}

/// The end of a stage. Both variants are final verdicts; `Err` only lets `?` return early.
pub type Decision = Result<Verdict, Verdict>;

/// The packet would have gone to the backend with this id, by its hop.
pub const BY_HOP: u32 = 1 << 31;

/// Not for us, or not understood.
pub const UNTOUCHED: Verdict = Verdict::Pass(Reason::NotOurs);
/// For us, but only the TC program can handle it.
pub const HAND_TO_TC: Verdict = Verdict::Pass(Reason::HandedToTc);
/// A fragment for a Service's address, held until its packet's first one comes.
pub const HELD_FRAGMENT: Verdict = Verdict::Drop(Reason::FragmentHeld);
/// A fragment for an address of this node, held in case its packet is for a NodePort, or another node's
/// answer.
pub const HELD_AND_PASSED: Verdict = Verdict::Pass(Reason::FragmentHeld);
/// A fragment for a Service's address whose packet's first fragment was not seen.
pub const UNKNOWN_FRAGMENT: Verdict = Verdict::Drop(Reason::FragmentUnknown);
/// The kernel refused to change the frame, or a map refused an entry.
pub const NO_ROOM: Verdict = Verdict::Drop(Reason::NoRoom);

/// The next stage for a client's packet. It begins anew from the frame, with a stack of its own.
#[derive(Clone, Copy)]
pub enum NextStage {
    /// No further stage: this is the verdict.
    Done(Verdict),
    /// The client's address is translated, too: another [part](Part).
    Translate,
    /// `dsr_pod::send`: the backend's pod decapsulates.
    ToPod,
    /// A reply to a translated client: another [part](Part).
    Restore,
    /// A tunnel packet in UDP: another [part](Part).
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
            | Self::Transmit(reason, _)
            | Self::Bounce(reason)
            | Self::Reinject(reason)
            | Self::Drop(reason)
            | Self::Refuse(reason, _) => reason,
            // Counted only if the part is missing.
            Self::Continue(_) => Reason::NoRoom,
        }
    }
}
