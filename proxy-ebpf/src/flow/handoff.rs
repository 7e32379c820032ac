//! SCRATCH: the flow entry that one stage of a packet stores for the next, which begins anew from the frame
//! with a stack of its own.

use crate::maps::family::{Family, FlowOf};
use crate::verdict::{NO_ROOM, NextStage, Verdict};

/// The last stored entry.
#[inline(always)]
pub fn load<F: Family>() -> Result<&'static FlowOf<F>, Verdict> {
    let scratch = F::scratch().ok_or(NO_ROOM)?;
    // SAFETY: as in `store`.
    Ok(unsafe { &*scratch })
}

#[inline(always)]
pub fn store<F: Family>(flow: &FlowOf<F>) -> NextStage {
    let Some(scratch) = F::scratch() else {
        return NO_ROOM.into();
    };
    // SAFETY: this CPU's own, and no other program of ours runs on it before this packet is done with.
    unsafe { *scratch = *flow };
    NextStage::Translate
}
