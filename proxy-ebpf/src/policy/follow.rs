//! Connections: what was judged once holds for both directions, until the tables change.

use aya_ebpf::bindings::BPF_ANY;
use proxy_common::policy::{
    DATAGRAM_SECONDS, ECHO_SECONDS, OPENED_BY_PEER, OPENED_BY_POD, PolicyDrop, PolicyFlow,
};

use crate::header::has_connections;
use crate::policy::family::{Family, KeyOf};
use crate::policy::judge::{allows, destination_port};
use crate::policy::record::count_allowed;
use crate::policy::scene::Scene;
use crate::policy::skb::Skb;

/// What a packet is to its connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It opens one: judged in its own direction, whatever is known.
    Opening,
    /// Its protocol has packets that open a connection, and this is none.
    Connected,
    /// Its protocol has no connections; whoever sends first has opened the exchange.
    Datagram,
    /// It belongs to an exchange, or is judged alone.
    Answer,
    /// It is judged alone.
    Alone,
    /// It is for another address than the pod's, and judged by its ports, but makes no entry.
    Passing,
}

/// Decides about a packet of an isolated pod.
#[inline(always)]
pub fn decide<F: Family, const FROM_POD: bool>(
    skb: Skb,
    key: &KeyOf<F>,
    scene: &Scene,
    role: Role,
) -> Result<(), PolicyDrop> {
    if !matches!(role, Role::Opening | Role::Alone | Role::Passing)
        && let Some(is_allowed) = by_entry::<F, true>(key, scene)
    {
        return if is_allowed { Ok(()) } else { Err(PolicyDrop::Denied) };
    }
    if judge_new::<F, FROM_POD>(key, scene, role, skb.came_in_by() == 0) {
        count_allowed::<FROM_POD>(skb);
        return Ok(());
    }
    Err(PolicyDrop::Denied)
}

/// Whether a connection is allowed by its entry. `None`: there is none, or an exchange was silent for too long.
///
/// Another CPU may recycle the entry while it is read, in which case one packet may get another's verdict. So
/// nothing but the second is written in place.
#[inline(always)]
pub fn by_entry<F: Family, const REFRESHES: bool>(key: &KeyOf<F>, scene: &Scene) -> Option<bool> {
    let entry = F::flows().get_ptr_mut(key)?;
    // SAFETY: the look-up found it; the fields are numbers.
    let PolicyFlow { generation, seen, opened, is_allowed, epoch } = unsafe { *entry };
    // The device had another pod, or a pod that is not known.
    if epoch != scene.epoch {
        return None;
    }
    if seen != scene.now && !is_alive::<F>(key, scene, seen) {
        return None;
    }
    if generation != scene.generation {
        return Some(judge_again::<F>(key, scene, opened, seen));
    }
    if REFRESHES && is_allowed != 0 && seen != scene.now {
        // SAFETY: as above. A word of one's own would cost a write for each packet.
        unsafe { (*entry).seen = scene.now };
    }
    Some(is_allowed != 0)
}

#[inline(always)]
fn is_alive<F: Family>(key: &KeyOf<F>, scene: &Scene, seen: u32) -> bool {
    let protocol = key.protocol as u8;
    let seconds = if protocol == F::ICMP { ECHO_SECONDS } else { DATAGRAM_SECONDS };
    has_connections(protocol) || scene.is_recent(seen, seconds)
}

/// Judges a connection by the present tables. A denied entry stays: it remembers who opened.
#[inline(never)]
fn judge_again<F: Family>(key: &KeyOf<F>, scene: &Scene, opened: u16, seen: u32) -> bool {
    // The first packet showed whether the node opened it.
    let is_allowed = allows::<F>(key, scene, opened, destination_port(key, opened), true);
    let flow = PolicyFlow {
        generation: scene.generation,
        seen: if is_allowed { scene.now } else { seen },
        opened,
        is_allowed: is_allowed.into(),
        epoch: scene.epoch,
    };
    put::<F>(key, &flow);
    is_allowed
}

/// Judges a packet without an entry, or one that opens a connection.
#[inline(never)]
fn judge_new<F: Family, const FROM_POD: bool>(
    key: &KeyOf<F>,
    scene: &Scene,
    role: Role,
    is_of_node: bool,
) -> bool {
    let (own, other) =
        if FROM_POD { (OPENED_BY_POD, OPENED_BY_PEER) } else { (OPENED_BY_PEER, OPENED_BY_POD) };
    // What is judged alone has no ports. An answer's key has an identifier there.
    let is_alone = matches!(role, Role::Alone | Role::Answer);
    let port = if is_alone { 0 } else { destination_port(key, own) };
    let mut opened = own;
    let mut is_allowed = allows::<F>(key, scene, opened, port, is_of_node);
    // The first policy cuts no connection that it allows.
    if !is_allowed && role == Role::Connected && scene.is_lenient {
        opened = other;
        is_allowed = allows::<F>(key, scene, opened, destination_port(key, opened), FROM_POD);
    }
    if is_allowed && !is_alone && role != Role::Passing {
        put_allowed::<F>(key, scene, opened);
    }
    is_allowed
}

/// Writes an entry of a connection that is allowed.
#[inline(always)]
pub fn put_allowed<F: Family>(key: &KeyOf<F>, scene: &Scene, opened: u16) {
    let flow = PolicyFlow {
        generation: scene.generation,
        seen: scene.now,
        opened,
        is_allowed: 1,
        epoch: scene.epoch,
    };
    put::<F>(key, &flow);
}

#[inline(always)]
fn put<F: Family>(key: &KeyOf<F>, flow: &PolicyFlow) {
    // If the map refuses, the next packet is judged.
    let _ = F::flows().insert(key, flow, BPF_ANY.into());
}
