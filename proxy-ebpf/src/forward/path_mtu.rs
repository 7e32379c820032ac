//! Ways with a smaller MTU somewhere between than their routes say.

use proxy_common::verdict::Reason;
use proxy_common::way::{Narrowing, Way};

use crate::maps::{self, clock};
use crate::verdict::Verdict;

/// Stores the lower MTU of a router's message in a way, for so many seconds.
///
/// It replaces the route's MTU, so packets that fit pay nothing for it. The agent may write the route's again
/// at any time (another neighbour, another route). The next packet that is too large then brings the router's
/// MTU back.
#[inline(always)]
pub fn narrow(id: u32, way: *mut Way, mtu: u16, seconds: u32) {
    let Some(word) = maps::NARROWED.get_ptr_mut(id) else {
        return;
    };
    // SAFETY: the map look-ups checked the index; both of two concurrent writers of a word write a valid
    // value.
    unsafe {
        let current = (&raw const (*way).mtu).read_volatile();
        if mtu >= current {
            return;
        }
        let before = Narrowing(word.read_volatile());
        let is_narrow = !before.is_none() && before.mtu() == current;
        let former = if is_narrow { before.former() } else { current };
        // Before the MTU: without a record of the former MTU, the lower one would stay forever.
        word.write_volatile(Narrowing::new(clock::now().saturating_add(seconds), mtu, former).0);
        (&raw mut (*way).mtu).write_volatile(mtu);
    }
}

/// Whether a packet of so many bytes can have been sent on a way. Before a router named a lower MTU, larger
/// packets were.
#[inline(always)]
pub fn can_have_sent(id: u32, way: &Way, size: u32) -> bool {
    let former = maps::NARROWED.get(id).map_or(0, |word| Narrowing(*word).former());
    size <= u32::from(way.mtu.max(former))
}

/// Checks whether a packet of `size` bytes, `outer` of them our headers, fits a way after all.
///
/// Once a router's message is ten minutes old, the way gets its former MTU back.
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
    // SAFETY: the caller guarantees that both point into the maps.
    unsafe {
        let mtu = &raw mut (*way).mtu;
        if mtu.read_volatile() == narrowing.mtu() {
            mtu.write_volatile(narrowing.former());
        }
        // Last, and not if another CPU has written the word meanwhile.
        if word.read_volatile() == narrowing.0 {
            word.write_volatile(0);
        }
    }
}
