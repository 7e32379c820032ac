//! The limits of our ICMP messages: one for each source prefix, and one for each CPU.
//!
//! Messages about size are counted apart from refusals. Otherwise a flood of refused packets could keep
//! clients from learning the size that fits.

use aya_ebpf::bindings::BPF_ANY;
use proxy_common::icmp::{SOURCE_INTERVAL, SourcePrefix, TOTAL_INTERVAL, take};

use crate::maps::{self, clock};

/// Takes a token for a message to a source, if there is one.
#[inline(never)]
pub fn admit(prefix: &SourcePrefix) -> bool {
    let now = clock::nanoseconds();
    // SAFETY: copied at once; a value that another prefix has taken over costs one message.
    let source = unsafe { maps::ICMP_SOURCES.get(prefix).copied() }.unwrap_or(0);
    let Some(source) = take(source, now, SOURCE_INTERVAL) else {
        return false;
    };
    let Some(total) = maps::ICMP_TOTAL.get_ptr_mut(prefix.kind) else {
        return false;
    };
    // SAFETY: the map look-up checked the index; the entry is this CPU's own.
    let Some(after) = take(unsafe { *total }, now, TOTAL_INTERVAL) else {
        return false;
    };
    // SAFETY: as above.
    unsafe { *total = after };
    maps::ICMP_SOURCES.insert(prefix, source, BPF_ANY.into()).is_ok()
}
