//! What packets do to the entries they belong to: promotion, the TCP states, and the time of the last one.

use aya_ebpf::bindings::BPF_ANY;
use proxy_common::flow::{
    FLOW_ANSWERED, FLOW_CLOSING, FLOW_DATAGRAM, FLOW_ENCAPSULATE, FLOW_ESTABLISHED, FLOW_FIN_BACKEND,
    FLOW_FIN_CLIENT, FLOW_SYN,
};

use super::{Found, Sender, find, is_client_entry, is_reply_entry, is_twin, turn_round};
use crate::apart;
use crate::family::{Family, FlowOf, KeyOf};
use crate::packet::Parsed;
use crate::packet::header::tcp_flag;

/// Renews an entry and its twin for a packet: promotes an embryo the client has answered in, follows FIN and RST,
/// and writes the time at most once a second.
#[inline(always)]
pub fn track<F: Family>(parsed: &Parsed<F::Address>, found: Found, sender: Sender) {
    let answered = !found.translated || found.flags & FLOW_ANSWERED != 0;
    let promoted =
        found.embryo && sender == Sender::Client && !parsed.is_syn() && !parsed.is_later() && answered;
    let noteworthy =
        parsed.tcp_flags & (tcp_flag::FIN | tcp_flag::RST) != 0 || sender == Sender::Backend && !answered;
    if promoted {
        apart::promote::<F>(&parsed.key, found.now);
    }
    if noteworthy || found.last_seen != found.now {
        let embryo = found.embryo && !promoted;
        let place = u32::from(embryo) * apart::EMBRYO;
        let side = if sender == Sender::Backend { apart::FROM_BACKEND } else { 0 };
        apart::renew::<F>(&parsed.key, parsed.tcp_flags, place | side, found.now);
    }
}

/// Moves an embryo and its twin to FLOWS.
#[inline(always)]
pub fn promote<F: Family>(key: &KeyOf<F>, now: u32) {
    // SAFETY: copied at once; the check tells another connection's.
    let Some(entry) = (unsafe { F::flows_new().get(key) }) else {
        return;
    };
    let mut flow = *entry;
    if !is_client_entry::<F>(&flow, key) {
        return;
    }
    let is_alone = flow.flags & FLOW_ENCAPSULATE != 0;
    if !is_alone && is_given_away::<F>(&flow.twin(key), key) {
        let _ = F::flows_new().remove(key);
        return;
    }
    flow.last_seen = now;
    if flow.state == FLOW_SYN {
        flow.state = FLOW_ESTABLISHED;
    }
    // A refused insert leaves the embryo, which serves the connection as well.
    if F::flows().insert(key, &flow, BPF_ANY.into()).is_err() {
        return;
    }
    let _ = F::flows_new().remove(key);
    if !is_alone {
        let twin_key = flow.twin(key);
        turn_round::<F>(&mut flow, key, &twin_key);
        let _ = F::flows().insert(&twin_key, &flow, BPF_ANY.into());
        let _ = F::flows_new().remove(&twin_key);
    }
}

/// Writes time and state into both entries where they lie: an update through the map would take a node and a lock for
/// each, and lose what another CPU writes meanwhile. An evicted twin is made again from what both share.
#[inline(always)]
pub fn renew<F: Family>(key: &KeyOf<F>, tcp_flags: u8, embryo: bool, sender: Sender, now: u32) {
    let entry = if embryo { F::flows_new().get_ptr_mut(key) } else { F::flows().get_ptr_mut(key) };
    let Some(entry) = entry else {
        return;
    };
    // SAFETY: the map's memory; if it is being recycled, another connection gets a wrong time once.
    let flow = unsafe { &mut *entry };
    update::<F>(flow, tcp_flags, sender, now);
    let mut flow = *flow;
    let ours = match sender {
        Sender::Client => is_client_entry::<F>(&flow, key),
        Sender::Backend => is_reply_entry::<F>(&flow, key),
    };
    if !ours || flow.flags & FLOW_ENCAPSULATE != 0 {
        return;
    }
    let twin_key = flow.twin(key);
    let twin = if embryo { F::flows_new().get_ptr_mut(&twin_key) } else { F::flows().get_ptr_mut(&twin_key) };
    // SAFETY: as above.
    if let Some(twin) = twin.map(|twin| unsafe { &mut *twin })
        && is_twin::<F>(twin, key)
    {
        update::<F>(twin, tcp_flags, sender, now);
        return;
    }
    if is_given_away::<F>(&twin_key, key) {
        let _ = if embryo { F::flows_new().remove(key) } else { F::flows().remove(key) };
        return;
    }
    turn_round::<F>(&mut flow, key, &twin_key);
    let _ = if embryo {
        F::flows_new().insert(&twin_key, &flow, BPF_ANY.into())
    } else {
        F::flows().insert(&twin_key, &flow, BPF_ANY.into())
    };
}

/// Both FINs or a RST close, or what means the same in SCTP. A director sees the client's side only. What comes after a RST
/// shows that it was not believed: it may have been forged. An answer to a SYN shows nothing: the RST may have been the answer
/// to a forged ACK.
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
        // Of the backend's side a director knows no more than that nothing follows a RST, if it is the last word.
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

/// Whether the other direction's key is another connection's by now: this one's entry was evicted, and its reply key given away.
#[inline(always)]
fn is_given_away<F: Family>(twin_key: &KeyOf<F>, key: &KeyOf<F>) -> bool {
    find::<F>(twin_key).is_some_and(|(_, twin)| !is_twin::<F>(twin, key))
}
