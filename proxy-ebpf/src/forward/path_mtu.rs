//! Ways that are narrower somewhere between than their routes say.

use proxy_common::verdict::Reason;
use proxy_common::way::{Narrowing, Way};

use crate::maps::{self, clock};
use crate::verdict::Verdict;

/// Takes an MTU that a router named for a way's own, for so many seconds, if it is lower.
///
/// It stands where the route's MTU stood, so that packets that fit pay nothing for it. The agent may write that again at any
/// time (another neighbour, another route): the next packet that is too large brings the router's word back.
#[inline(always)]
pub fn narrow(id: u32, way: *mut Way, mtu: u16, seconds: u32) {
    let Some(word) = maps::NARROWED.get_ptr_mut(id) else {
        return;
    };
    // SAFETY: the map look-ups checked the index; two writers of one word both mean what they write.
    unsafe {
        let current = (&raw const (*way).mtu).read_volatile();
        if mtu >= current {
            return;
        }
        let before = Narrowing(word.read_volatile());
        let is_narrow = !before.is_none() && before.mtu() == current;
        let former = if is_narrow { before.former() } else { current };
        // Before the MTU: one that nobody remembers the former of would stay.
        word.write_volatile(Narrowing::new(clock::now().saturating_add(seconds), mtu, former).0);
        (&raw mut (*way).mtu).write_volatile(mtu);
    }
}

/// Whether a packet of so many bytes can have been sent on a way: before a router named a lower MTU, larger ones were.
#[inline(always)]
pub fn can_have_sent(id: u32, way: &Way, size: u32) -> bool {
    let former = maps::NARROWED.get(id).map_or(0, |word| Narrowing(*word).former());
    size <= u32::from(way.mtu.max(former))
}

/// Whether a packet of `size` bytes, `outer` of them headers of ours, fits a way after all: where what a router said is ten
/// minutes old, the MTU is what it was before.
#[inline(never)]
pub fn check(id: u32, size: u32, outer: u32) -> Result<(), Verdict> {
    let (Some(way), Some(word)) = (maps::WAYS.get_ptr_mut(id), maps::NARROWED.get_ptr_mut(id)) else {
        return Err(Verdict::Drop(Reason::NoWay));
    };
    // SAFETY: as above.
    let mtu = unsafe {
        let narrowing = Narrowing(word.read_volatile());
        if !narrowing.is_none() && narrowing.until() <= clock::now() {
            restore(way, word, narrowing);
        }
        u32::from((&raw const (*way).mtu).read_volatile())
    };
    if size > mtu { Err(Verdict::Refuse(Reason::TooBig, mtu.saturating_sub(outer))) } else { Ok(()) }
}

/// Gives a way its former MTU back, unless the agent has written one since.
///
/// # Safety
///
/// Both are the map's memory.
#[inline(always)]
unsafe fn restore(way: *mut Way, word: *mut u64, narrowing: Narrowing) {
    // SAFETY: the caller's.
    unsafe {
        let mtu = &raw mut (*way).mtu;
        if mtu.read_volatile() == narrowing.mtu() {
            mtu.write_volatile(narrowing.former());
        }
        // Last, and not what another CPU has written meanwhile.
        if word.read_volatile() == narrowing.0 {
            word.write_volatile(0);
        }
    }
}
