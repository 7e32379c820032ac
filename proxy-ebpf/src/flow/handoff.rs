//! What one stage of a packet's way leaves for the next: a flow entry in SCRATCH. The next stage begins anew from the frame, with a stack
//! of its own.

use crate::maps::family::{Family, FlowOf};
use crate::verdict::{Leave, NO_ROOM, Verdict};

/// What was noted last.
#[inline(always)]
pub fn noted<F: Family>() -> Result<&'static FlowOf<F>, Verdict> {
    let scratch = F::scratch().ok_or(NO_ROOM)?;
    // SAFETY: as in `note`.
    Ok(unsafe { &*scratch })
}

#[inline(always)]
pub fn note<F: Family>(flow: &FlowOf<F>) -> Leave {
    let Some(scratch) = F::scratch() else {
        return NO_ROOM.into();
    };
    // SAFETY: this CPU's own, and no other program of ours runs on it before this packet is done with.
    unsafe { *scratch = *flow };
    Leave::Translate
}
