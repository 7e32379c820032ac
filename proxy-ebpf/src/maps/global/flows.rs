//! What is done to flow entries once a connection, or once a second and connection.

use proxy_common::addr::Address;
use proxy_common::selection::BackendRef;

use super::{by_family, leave, left};
use crate::flow::{self, Owner, Sender, snat_ports};
use crate::maps::family::{Family, KeyOf};
use crate::maps::v4::V4;
use crate::maps::v6::V6;

/// Bit of [`renew`]'s event: the entry is in FLOWS_NEW.
pub const EMBRYO: u32 = 1 << 0;
/// Bit of [`renew`]'s event: the packet is the backend's.
pub const FROM_BACKEND: u32 = 1 << 1;

/// Bits by which the state is shifted in what says how a connection is opened; below it are the `FLOW_*` bits of both entries.
const STATE_SHIFT: u32 = 8;

/// As [`flow::open`].
#[inline(always)]
pub fn open<F: Family>(key: &KeyOf<F>, reply_key: &KeyOf<F>, owner: &Owner, state: u8) -> u32 {
    leave::<F>(0, key);
    leave::<F>(1, reply_key);
    open_left::<F>(owner.backend.0, owner.service, how_to_open(owner, state))
}

/// As [`snat_ports::open`], with a port that is [chosen](snat_ports::choose) first.
#[inline(always)]
pub fn open_translated<F: Family>(key: &KeyOf<F>, reply_key: &KeyOf<F>, owner: &Owner, state: u8) -> u32 {
    leave::<F>(0, key);
    leave::<F>(1, reply_key);
    let chosen = choose_left::<F>();
    translate_left::<F>(owner.backend.0, owner.service, how_to_open(owner, state), chosen)
}

#[inline(always)]
const fn how_to_open(owner: &Owner, state: u8) -> u32 {
    (state as u32) << STATE_SHIFT | owner.flags as u32
}

by_family! { fn open_left = open_flow4 | open_flow6(backend: u32, service: u32, how: u32) -> u32, open_with }
by_family! { fn choose_left = choose_port4 | choose_port6() -> u32, choose_for_left }
by_family! { fn translate_left = open_translated4 | open_translated6(backend: u32, service: u32, how: u32, chosen: u32) -> u32, translate_with }

#[inline(always)]
fn open_with<F: Family>(backend: u32, service: u32, how: u32) -> u32 {
    let (Some(key), Some(reply_key)) = (left::<F>(0), F::key_scratch(1)) else {
        return flow::REFUSED;
    };
    let owner = Owner { backend: BackendRef(backend), service, flags: how as u8 };
    // SAFETY: this CPU's own, and nobody else looks at it meanwhile.
    flow::open::<F>(key, unsafe { &mut *reply_key }, &owner, (how >> STATE_SHIFT) as u8)
}

// Its own beginning, as `open_with` has: with a function for both it needs half as much stack again.
#[inline(always)]
fn translate_with<F: Family>(backend: u32, service: u32, how: u32, chosen: u32) -> u32 {
    let (Some(key), Some(reply_key)) = (left::<F>(0), F::key_scratch(1)) else {
        return flow::REFUSED;
    };
    let owner = Owner { backend: BackendRef(backend), service, flags: how as u8 };
    snat_ports::open::<F>(key, reply_key, &owner, (how >> STATE_SHIFT) as u8, chosen)
}

#[inline(always)]
fn choose_for_left<F: Family>() -> u32 {
    match (left::<F>(0), F::key_scratch(1)) {
        (Some(key), Some(reply_key)) => snat_ports::choose::<F>(key, reply_key),
        _ => snat_ports::TAKEN,
    }
}

/// As [`flow::is_shown`].
#[inline(always)]
pub fn is_shown<F: Family>(key: &KeyOf<F>, number: u32) -> bool {
    leave::<F>(0, key);
    shown_left::<F>(number) != 0
}

by_family! { fn shown_left = is_shown4 | is_shown6(number: u32) -> u32, is_shown_with }

#[inline(always)]
fn is_shown_with<F: Family>(number: u32) -> u32 {
    match (left::<F>(0), F::key_scratch(1)) {
        (Some(key), Some(place)) => flow::is_shown::<F>(key, place, number).into(),
        _ => 0,
    }
}

/// As [`flow::promote`].
#[inline(always)]
pub fn promote<F: Family>(key: &KeyOf<F>) -> bool {
    leave::<F>(0, key);
    promote_left::<F>() != 0
}

by_family! { fn promote_left = promote4 | promote6() -> u32, promote_with }

#[inline(always)]
fn promote_with<F: Family>() -> u32 {
    match (left::<F>(0), F::key_scratch(1)) {
        (Some(key), Some(place)) => flow::promote::<F>(key, place).into(),
        _ => 0,
    }
}

/// As [`flow::renew`]; `event` is a set of `EMBRYO` and `FROM_BACKEND`.
#[inline(always)]
pub fn renew<F: Family>(key: &KeyOf<F>, tcp_flags: u8, event: u32, now: u32) {
    leave::<F>(0, key);
    renew_left::<F>(u32::from(tcp_flags), event, now);
}

by_family! { fn renew_left = renew4 | renew6(tcp_flags: u32, event: u32, now: u32) -> u32, renew_with }

#[inline(always)]
fn renew_with<F: Family>(tcp_flags: u32, event: u32, now: u32) -> u32 {
    if let Some(key) = left::<F>(0) {
        let sender = if event & FROM_BACKEND != 0 { Sender::Backend } else { Sender::Client };
        flow::renew::<F>(key, tcp_flags as u8, event & EMBRYO != 0, sender, now);
    }
    0
}

by_family! {
    /// As [`snat_ports::occupancy`], of the keys that [`open_translated`] has left.
    pub fn occupancy = occupancy4 | occupancy6() -> u32, occupancy_of_left
}

#[inline(always)]
fn occupancy_of_left<F: Family>() -> u32 {
    let (Some(key), Some(reply_key)) = (left::<F>(0), left::<F>(1)) else {
        return snat_ports::TAKEN;
    };
    snat_ports::occupancy::<F>(key, reply_key)
}

by_family! {
    /// As [`snat_ports::evict`], of the reply key that [`open_translated`] has left.
    pub fn evict = evict4 | evict6() -> u32, evict_left
}

#[inline(always)]
fn evict_left<F: Family>() -> u32 {
    if let Some(reply_key) = left::<F>(1) {
        snat_ports::evict::<F>(reply_key);
    }
    0
}

by_family! {
    /// As [`snat_ports::search_row`], of the keys that [`open_translated`] has left.
    pub fn search_row = search_row4 | search_row6(from: u32, distance: u32) -> u32, search_row_of_left
}

#[inline(always)]
fn search_row_of_left<F: Family>(from: u32, distance: u32) -> u32 {
    match F::key_scratch(1) {
        Some(reply_key) => snat_ports::search_row::<F>(reply_key, from, distance),
        None => snat_ports::TAKEN,
    }
}
