//! The effects of packets on their entries: promotion, the TCP states, and the time of the last packet.

use aya_ebpf::bindings::BPF_ANY;
use proxy_common::figures::ConnectionEvent;
use proxy_common::flow::{
    FLOW_ANSWERED, FLOW_CLOSING, FLOW_DATAGRAM, FLOW_ENCAPSULATE, FLOW_ESTABLISHED, FLOW_FIN_BACKEND,
    FLOW_FIN_CLIENT, FLOW_SYN,
};
use proxy_common::selection::BackendRef;

use super::entry::{Found, Sender, find};
use super::proof;
use crate::header::{has_connections, tcp_flag};
use crate::maps::family::{Family, FlowOf, KeyOf};
use crate::maps::global::{KEY, REPLY_KEY, global_by_family, key_room, store_key, stored_key};
use crate::maps::{clock, figures, observe};
use crate::packet::shape::used;
use crate::packet::{Packet, Parsed};

/// The packet shows nothing new about the connection.
const NOTHING: u32 = 0;
/// The connection is established, and its entries are in FLOWS.
const MOVED: u32 = 1;
/// The connection is established from this packet on, and its entries wait in FLOWS_NEW: FLOWS is full.
const WAITS: u32 = 2;

/// Renews an entry and its twin for a packet; returns whether the packet establishes the connection.
///
/// Promotes an embryo the client has answered in, follows FIN and RST, and writes the time if the entry's is
/// old enough.
#[inline(always)]
pub fn track<P: Packet, F: Family>(
    packet: &P,
    parsed: &Parsed<F::Address>,
    found: Found,
    sender: Sender,
) -> bool {
    let answered = !found.is_translated() || found.has(FLOW_ANSWERED);
    let noteworthy =
        parsed.tcp_flags & (tcp_flag::FIN | tcp_flag::RST) != 0 || sender == Sender::Backend && !answered;
    let shown = match sender {
        _ if !found.is_embryo() => NOTHING,
        Sender::Backend => {
            used(proof::record_answer::<P, F>(*packet, parsed));
            NOTHING
        }
        Sender::Client if answered => promote_if_shown::<P, F>(*packet, parsed),
        Sender::Client => NOTHING,
    };
    if noteworthy || found.is_due() {
        let embryo = found.is_embryo() && shown != MOVED;
        if sender == Sender::Backend && parsed.tcp_flags & tcp_flag::RST != 0 {
            count_reset::<F>(&parsed.key);
        }
        let place = u32::from(embryo) * EMBRYO;
        let side = if sender == Sender::Backend { FROM_BACKEND } else { 0 };
        renew::<F>(&parsed.key, parsed.tcp_flags, place | side);
    }
    shown != NOTHING
}

/// Promotes an embryo if the client's packet is an answer; returns `NOTHING`, `MOVED` or `WAITS`.
///
/// Not inlined: the walks have no room on the stack. From a packet encapsulated meanwhile it reads a wrong
/// number, which is not used.
#[inline(never)]
fn promote_if_shown<P: Packet, F: Family>(packet: P, parsed: &Parsed<F::Address>) -> u32 {
    if parsed.is_syn() || parsed.is_later() {
        return NOTHING;
    }
    let number = proof::acknowledged::<P>(&packet, parsed.transport());
    if !is_shown::<F>(&parsed.key, number) {
        return NOTHING;
    }
    match promote::<F>(&parsed.key) {
        // The key is still stored.
        WAITS => global_establish::<F>(),
        answer => answer,
    }
}

#[inline(always)]
fn is_shown<F: Family>(key: &KeyOf<F>, number: u32) -> bool {
    store_key::<F>(KEY, key);
    global_is_shown::<F>(number) != 0
}

global_by_family! { fn global_is_shown = is_shown4 | is_shown6(number: u32) -> u32, is_shown_body }

#[inline(always)]
fn is_shown_body<F: Family>(number: u32) -> u32 {
    match (stored_key::<F>(KEY), key_room::<F>(REPLY_KEY)) {
        (Some(key), Some(room)) => has_seen_answer::<F>(key, room, number).into(),
        _ => 0,
    }
}

/// Whether a client's number shows that it has seen the answer to an embryo.
///
/// A director sees no answers, and datagrams have no numbers. `place` has room for the other direction's key.
#[inline(always)]
fn has_seen_answer<F: Family>(key: &KeyOf<F>, place: *mut KeyOf<F>, number: u32) -> bool {
    // SAFETY: the memory is the map's for the program's run; the check shows another connection's entry.
    let Some(flow) = (unsafe { F::flows_new().get(key) }) else {
        return false;
    };
    if !flow.is_clients(key) {
        return false;
    }
    if flow.flags & FLOW_ENCAPSULATE != 0 || !has_connections(key.protocol) {
        return true;
    }
    // SAFETY: this CPU's own, and no other code uses it meanwhile.
    let twin_key = unsafe {
        *place = flow.twin(key);
        &*place
    };
    proof::is_shown::<F>(twin_key, number)
}

#[inline(always)]
fn promote<F: Family>(key: &KeyOf<F>) -> u32 {
    store_key::<F>(KEY, key);
    global_promote::<F>()
}

global_by_family! { fn global_promote = promote4 | promote6() -> u32, promote_body }

#[inline(always)]
fn promote_body<F: Family>() -> u32 {
    match (stored_key::<F>(KEY), key_room::<F>(REPLY_KEY)) {
        (Some(key), Some(room)) => move_to_flows::<F>(key, room),
        _ => NOTHING,
    }
}

/// Moves an embryo and its twin to FLOWS; returns `NOTHING`, `MOVED`, or `WAITS` if FLOWS has no room.
///
/// `place` has room for the other direction's key, which the stack lacks.
#[inline(always)]
fn move_to_flows<F: Family>(key: &KeyOf<F>, place: *mut KeyOf<F>) -> u32 {
    let Some(entry) = F::flows_new().get_ptr_mut(key) else {
        return NOTHING;
    };
    // SAFETY: copied at once; the check shows another connection's entry.
    let mut flow = unsafe { *entry };
    if !flow.is_clients(key) {
        return NOTHING;
    }
    let is_alone = flow.flags & FLOW_ENCAPSULATE != 0;
    // SAFETY: as in `is_shown`.
    let twin_key = unsafe {
        *place = flow.twin(key);
        &*place
    };
    if !is_alone && is_given_away::<F>(twin_key, key) {
        let _ = F::flows_new().remove(key);
        return NOTHING;
    }
    flow.last_seen = clock::now();
    if flow.state == FLOW_SYN {
        flow.state = FLOW_ESTABLISHED;
    }
    let mut has_moved = !observe::flows_are_held() && F::flows().insert(key, &flow, BPF_ANY.into()).is_ok();
    if has_moved && !is_alone {
        flow.reverse(key, twin_key);
        if F::flows().insert(twin_key, &flow, BPF_ANY.into()).is_err() {
            let _ = F::flows().remove(key);
            has_moved = false;
        }
    }
    if !has_moved {
        return WAITS;
    }
    // The stack has no room to remember the former state, which the embryo still has.
    // SAFETY: the map's memory; if it is recycled here, another connection's state decides what is counted.
    let former = unsafe { (*entry).state };
    let _ = F::flows_new().remove(key);
    if !is_alone {
        // Datagrams have no state that would show it before they move. A connection that was met in its middle was
        // established before.
        if former == FLOW_SYN || former == FLOW_DATAGRAM {
            count_established::<F>(key, &flow);
        }
        let _ = F::flows_new().remove(twin_key);
    }
    MOVED
}

global_by_family! { fn global_establish = establish4 | establish6() -> u32, establish_body }

#[inline(always)]
fn establish_body<F: Family>() -> u32 {
    match (stored_key::<F>(KEY), key_room::<F>(REPLY_KEY)) {
        (Some(key), Some(room)) => establish_in_place::<F>(key, room),
        _ => NOTHING,
    }
}

/// Establishes a connection whose entries have no room in FLOWS; returns `NOTHING` if it was established before, else
/// `WAITS`.
///
/// The embryos serve it as well, if they may be silent as long as its entries. `place` is as for [`move_to_flows`].
#[inline(always)]
fn establish_in_place<F: Family>(key: &KeyOf<F>, place: *mut KeyOf<F>) -> u32 {
    let Some(entry) = F::flows_new().get_ptr_mut(key) else {
        return NOTHING;
    };
    // SAFETY: the map's memory; if it is recycled here, another connection's entry lives longer, or until its next
    // packet.
    let flow = unsafe { &mut *entry };
    if !flow.is_clients(key) || flow.state != FLOW_SYN {
        return NOTHING;
    }
    flow.state = FLOW_ESTABLISHED;
    if flow.flags & FLOW_ENCAPSULATE != 0 {
        return WAITS;
    }
    count_established::<F>(key, flow);
    // SAFETY: as in `has_seen_answer`.
    let twin_key = unsafe {
        *place = flow.twin(key);
        &*place
    };
    if let Some(twin) = F::flows_new().get_ptr_mut(twin_key) {
        // SAFETY: as above.
        unsafe { (*twin).state = FLOW_ESTABLISHED };
    }
    WAITS
}

#[inline(always)]
fn count_established<F: Family>(key: &KeyOf<F>, flow: &FlowOf<F>) {
    let event = ConnectionEvent::Established;
    figures::count_connection::<F>(event, key, flow.service, BackendRef(flow.backend));
}

/// Counts a backend's RST, before [`renew`] writes the new state, which has no room for this on the stack.
#[inline(always)]
fn count_reset<F: Family>(key: &KeyOf<F>) {
    store_key::<F>(KEY, key);
    global_count_reset::<F>();
}

global_by_family! { fn global_count_reset = count_reset4 | count_reset6() -> u32, count_reset_body }

#[inline(always)]
fn count_reset_body<F: Family>() -> u32 {
    if let (Some(key), Some(place)) = (stored_key::<F>(KEY), key_room::<F>(REPLY_KEY)) {
        count_reply_reset::<F>(key, place);
    }
    0
}

/// A RST refuses a connection, or ends an established one. `place` has room for the client's key.
#[inline(always)]
fn count_reply_reset<F: Family>(key: &KeyOf<F>, place: *mut KeyOf<F>) {
    let Some((_, flow)) = find::<F>(key).filter(|(_, flow)| flow.is_reply(key)) else {
        return;
    };
    let event = match flow.state {
        FLOW_SYN => ConnectionEvent::Refused,
        FLOW_ESTABLISHED => ConnectionEvent::Reset,
        _ => return,
    };
    // SAFETY: this CPU's own, and no other code uses it meanwhile.
    let client_key = unsafe {
        *place = flow.twin(key);
        &*place
    };
    figures::count_connection::<F>(event, client_key, flow.service, BackendRef(flow.backend));
}

/// Bit of [`renew`]'s event: the entry is in FLOWS_NEW.
const EMBRYO: u32 = 1 << 0;
/// Bit of [`renew`]'s event: the packet is the backend's.
const FROM_BACKEND: u32 = 1 << 1;

/// Renews both entries; `event` is a set of `EMBRYO` and `FROM_BACKEND`.
#[inline(always)]
fn renew<F: Family>(key: &KeyOf<F>, tcp_flags: u8, event: u32) {
    store_key::<F>(KEY, key);
    global_renew::<F>(u32::from(tcp_flags), event);
}

global_by_family! {
    fn global_renew = renew4 | renew6(tcp_flags: u32, event: u32) -> u32, renew_body
}

#[inline(always)]
fn renew_body<F: Family>(tcp_flags: u32, event: u32) -> u32 {
    if let Some(key) = stored_key::<F>(KEY) {
        let sender = if event & FROM_BACKEND != 0 { Sender::Backend } else { Sender::Client };
        renew_both::<F>(key, tcp_flags as u8, event & EMBRYO != 0, sender);
    }
    0
}

/// Writes time and state into both entries in place.
///
/// An update through the map would take a node and a lock for each, and lose what another CPU writes
/// meanwhile. An evicted twin is made again from the other entry.
#[inline(always)]
fn renew_both<F: Family>(key: &KeyOf<F>, tcp_flags: u8, embryo: bool, sender: Sender) {
    let now = clock::now();
    let entry = if embryo { F::flows_new().get_ptr_mut(key) } else { F::flows().get_ptr_mut(key) };
    let Some(entry) = entry else {
        return;
    };
    // SAFETY: the map's memory; if it is recycled from here on, another connection gets a wrong state once,
    // until its next packet.
    let flow = unsafe { &mut *entry };
    let ours = match sender {
        Sender::Client => flow.is_clients(key),
        Sender::Backend => flow.is_reply(key),
    };
    if !ours {
        return;
    }
    update::<F>(flow, tcp_flags, sender, now);
    let mut flow = *flow;
    if flow.flags & FLOW_ENCAPSULATE != 0 {
        return;
    }
    let twin_key = flow.twin(key);
    let twin = if embryo { F::flows_new().get_ptr_mut(&twin_key) } else { F::flows().get_ptr_mut(&twin_key) };
    // SAFETY: as above.
    if let Some(twin) = twin.map(|twin| unsafe { &mut *twin })
        && twin.is_twin_of(key)
    {
        update::<F>(twin, tcp_flags, sender, now);
        return;
    }
    if is_given_away::<F>(&twin_key, key) {
        let _ = if embryo { F::flows_new().remove(key) } else { F::flows().remove(key) };
        return;
    }
    flow.reverse(key, &twin_key);
    if embryo || F::flows().insert(&twin_key, &flow, BPF_ANY.into()).is_err() {
        // Also the place of the half for which FLOWS has no room. Packets find it there.
        let _ = F::flows_new().insert(&twin_key, &flow, BPF_ANY.into());
    }
}

/// Updates state and time for a packet.
///
/// Both FINs, or a RST, close a connection, as do their equivalents in SCTP. A director sees the client's
/// side only. A packet after a RST shows that the receiver did not believe it: the RST may have been forged.
/// An answer to a SYN shows nothing: the RST may have been the answer to a forged ACK.
#[inline(always)]
fn update<F: Family>(flow: &mut FlowOf<F>, tcp_flags: u8, sender: Sender, now: u32) {
    flow.last_seen = now;
    if sender == Sender::Backend && flow.is_translated() && tcp_flags & tcp_flag::RST == 0 {
        flow.flags |= FLOW_ANSWERED;
    }
    if flow.state == FLOW_DATAGRAM {
        return;
    }
    if tcp_flags & tcp_flag::FIN != 0 {
        flow.flags |= match sender {
            Sender::Client => FLOW_FIN_CLIENT,
            Sender::Backend => FLOW_FIN_BACKEND,
        };
    }
    if flow.flags & FLOW_ENCAPSULATE != 0 {
        // A director knows only this of the backend's side: nothing follows a RST, if it is the last packet.
        flow.flags &= !FLOW_FIN_BACKEND;
        if tcp_flags & tcp_flag::RST != 0 {
            flow.flags |= FLOW_FIN_BACKEND;
        }
    }
    let other_side = flow.flags & (FLOW_FIN_BACKEND | FLOW_ENCAPSULATE) != 0;
    let finished = flow.flags & FLOW_FIN_CLIENT != 0 && other_side;
    if finished || tcp_flags & tcp_flag::RST != 0 {
        flow.state = FLOW_CLOSING;
    } else if flow.state == FLOW_CLOSING && tcp_flags & tcp_flag::SYN == 0 {
        flow.state = FLOW_ESTABLISHED;
    }
}

/// Whether the other direction's key is another connection's by now: this one's entry was evicted, and its
/// reply key given away.
#[inline(always)]
fn is_given_away<F: Family>(twin_key: &KeyOf<F>, key: &KeyOf<F>) -> bool {
    find::<F>(twin_key).is_some_and(|(_, twin)| !twin.is_twin_of(key))
}
