//! Ways that are narrower somewhere between than their routes say.

use proxy_common::verdict::Reason;
use proxy_common::way::{NARROWED_SECONDS, Way};

use crate::flow;
use crate::maps;
use crate::packet::Packet;
use crate::route;
use crate::verdict::Verdict;

/// Takes an MTU that a router named for a way's own, for ten minutes, if it is lower.
///
/// It stands where the route's MTU stood, so that packets that fit pay nothing for it. The agent may write that again at any
/// time (another neighbour, another route): the next packet that is too large brings the router's word back.
#[inline(always)]
pub fn narrow(id: u32, way: *mut Way, mtu: u16) {
    let Some(until) = maps::NARROWED.get_ptr_mut(id) else {
        return;
    };
    // SAFETY: the map look-ups checked the index; two writers of one word both mean what they write.
    unsafe {
        if mtu < (*way).mtu {
            until.write_volatile(flow::now().saturating_add(NARROWED_SECONDS));
            (&raw mut (*way).mtu).write_volatile(mtu);
        }
    }
}

/// Whether a packet of `size` bytes, `outer` of them headers of ours, fits a way after all: where what a router said is ten
/// minutes old, its route is asked again.
#[inline(never)]
pub fn check<P: Packet>(packet: &P, id: u32, size: u32, outer: u32) -> Result<(), Verdict> {
    let (Some(way), Some(until)) = (maps::WAYS.get_ptr_mut(id), maps::NARROWED.get_ptr_mut(id)) else {
        return Err(Verdict::Drop(Reason::NoWay));
    };
    // SAFETY: as above.
    let (way, until) = unsafe { (&mut *way, &mut *until) };
    if *until != 0
        && *until <= flow::now()
        && let Some(mtu) = route::mtu(packet, way)
    {
        way.mtu = mtu;
        *until = 0;
    }
    let mtu = u32::from(way.mtu);
    if size > mtu { Err(Verdict::Refuse(Reason::TooBig, mtu.saturating_sub(outer))) } else { Ok(()) }
}
