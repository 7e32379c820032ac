//! Drops by Service and reason.

use aya_ebpf::bindings::BPF_ANY;
use proxy_common::figures::DropKey;
use proxy_common::verdict::Counter;

use crate::maps;

/// Counts a packet of a Service that is dropped, or whose sender is refused.
#[inline(always)]
pub fn count(service: u32, reason: u32) {
    let key = DropKey { service, reason };
    if let Some(counter) = maps::SERVICE_DROPS.get_ptr_mut(&key) {
        // SAFETY: this CPU's own value. The kernel may give it to another key, which then counts one more.
        unsafe { (*counter).packets = (*counter).packets.wrapping_add(1) };
    } else {
        let _ = maps::SERVICE_DROPS.insert(&key, &Counter { packets: 1, bytes: 0 }, BPF_ANY.into());
    }
}
