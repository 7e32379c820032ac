//! What a program leaves in BUFFER for the part that answers a refused packet.

use proxy_common::verdict::Reason;

use crate::maps;
use crate::maps::family::Family;
use crate::verdict::{NO_ROOM, Verdict};

/// The reasons that a sender may be told.
const TOLD: [Reason; 5] =
    [Reason::NoEndpoint, Reason::UnknownPort, Reason::UnknownProtocol, Reason::TooBig, Reason::HopLimit];

/// Leaves a refusal to its part. Any other verdict stays.
#[inline(always)]
pub fn hand_over<F: Family>(verdict: Verdict) -> Verdict {
    let Verdict::Refuse(reason, detail) = verdict else {
        return verdict;
    };
    if leave_refusal(reason as u32, detail) == 0 { NO_ROOM } else { Verdict::Continue(F::REFUSAL) }
}

/// Returns whether there is room. A function, because the largest program has no stack left.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn leave_refusal(reason: u32, detail: u32) -> u32 {
    let Some(room) = maps::BUFFER.get_ptr_mut(0) else {
        return 0;
    };
    // SAFETY: this CPU's own, and nothing else uses it before the part has read it.
    unsafe { *room.cast() = [reason, detail] };
    1
}

/// The refusal that the program left: the reason, and its number as in [`Verdict::Refuse`].
#[inline(always)]
pub fn handed_over() -> Option<(Reason, u32)> {
    // SAFETY: as in `leave_refusal`.
    let [number, detail] = maps::BUFFER.get_ptr_mut(0).map(|room| unsafe { *room.cast::<[u32; 2]>() })?;
    Some((TOLD.into_iter().find(|reason| *reason as u32 == number)?, detail))
}
