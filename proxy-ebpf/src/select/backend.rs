//! From a packet's destination to a backend: frontend, slice, slot, owner.

use proxy_common::backend::Backend;
use proxy_common::flow::FlowKey;
use proxy_common::frontend::{
    FRONTEND_AFFINITY, FRONTEND_KIND_NODE_PORT, FRONTEND_MAY_HAVE_DSR, FRONTEND_WAS_CLUSTER, Frontend,
    FrontendKey, SCOPE_ENCAPSULATED, SCOPE_EXTERNAL, SCOPE_INTERNAL,
};
use proxy_common::hash::{client_hash, flow_hash};
use proxy_common::rules::Role;
use proxy_common::selection::{BackendRef, SERVICE_ELSEWHERE, SERVICE_VACANT, ServiceEntry, Slot};
use proxy_common::trace::Step;
use proxy_common::verdict::Reason;
use proxy_common::way::{PEER_NODE, PEER_SELF};

use crate::header::has_connections;
use crate::maps::family::{Family, KeyOf};
use crate::maps::global::{KEY, global_by_family, store_key, stored_key};
use crate::maps::{self, peers};
use crate::packet::Parsed;
use crate::trace;
use crate::verdict::Verdict;

/// The frontend of a packet that came in over an uplink.
#[inline(always)]
pub fn lookup_frontend<F: Family>(tuple: &KeyOf<F>) -> Option<Frontend> {
    let FlowKey { destination, destination_port, protocol, .. } = *tuple;
    F::frontend(&FrontendKey {
        address: destination,
        port: destination_port,
        protocol,
        scope: SCOPE_EXTERNAL,
    })
}

/// The frontend of a packet or call of a pod or process of this node.
#[inline(always)]
pub fn lookup_internal<F: Family>(address: &F::Address, port: u16, protocol: u8) -> Option<Frontend> {
    F::frontend(&FrontendKey { address: *address, port, protocol, scope: SCOPE_INTERNAL })
}

/// The frontend of a client's packet inside a tunnel.
///
/// It is one that all nodes have, or a NodePort of the node that the client sent to. No node passes on a
/// packet for a NodePort at another address of its own.
#[inline(always)]
pub fn lookup_encapsulated<F: Family>(tuple: &KeyOf<F>) -> Option<Frontend> {
    let found = match lookup_frontend::<F>(tuple) {
        None if peers::is_other_node::<F>(&tuple.destination) => F::frontend(&FrontendKey {
            address: F::Address::default(),
            port: tuple.destination_port,
            protocol: tuple.protocol,
            scope: SCOPE_ENCAPSULATED,
        }),
        found => found,
    };
    found.filter(|frontend| {
        frontend.may_have_dsr()
            && (frontend.kind() != FRONTEND_KIND_NODE_PORT
                || peers::peer::<F>(&tuple.destination) & PEER_NODE != 0)
    })
}

/// The slot of a packet; the default without an owner if the list is empty.
///
/// Connections of former owners keep their slots while the list is empty.
#[inline(always)]
pub fn select_slot<F: Family>(frontend: &Frontend, key: &KeyOf<F>) -> Slot {
    let Some(service) = lookup_slice(frontend) else {
        return Slot::default();
    };
    let affinity = frontend.flags & FRONTEND_AFFINITY != 0;
    let slot = slot_of(service, if affinity { client_hash(&key.source) } else { flow_hash(key) });
    trace::step(Step::Slot, slot.current().id());
    slot
}

/// The slice of a frontend's list, unless the list is empty.
#[inline(always)]
pub fn lookup_slice(frontend: &Frontend) -> Option<ServiceEntry> {
    let service = ServiceEntry(*maps::SERVICES.get(frontend.service)?);
    if service.length() == 0 { None } else { Some(service) }
}

/// The slot that a hash falls on.
#[inline(always)]
pub fn slot_of(service: ServiceEntry, hash: u32) -> Slot {
    match maps::SELECTION.get(service.slot(hash)) {
        Some(word) => Slot(*word),
        None => Slot::default(),
    }
}

/// The owner that a connection without a flow entry had in the table before this one.
///
/// That is a former table of the list, or the Cluster list if the traffic policy was Cluster. The agent keeps it, and
/// lets no slot of the list settle, until each of its connections has an entry or has ended.
#[inline(always)]
pub fn former_owner<F: Family>(frontend: &Frontend, key: &KeyOf<F>) -> Option<BackendRef> {
    store_key::<F>(KEY, key);
    // With affinity every connection has an entry, and another hash chooses the slots.
    let is_by_slot = frontend.flags & FRONTEND_AFFINITY == 0;
    let was_cluster = if is_by_slot { frontend.flags & FRONTEND_WAS_CLUSTER } else { 0 };
    let list = if was_cluster != 0 { frontend.cluster_service } else { frontend.service };
    let owner = BackendRef(global_former_owner::<F>(list, was_cluster));
    (!owner.is_none()).then_some(owner)
}

global_by_family! {
    fn global_former_owner = former_owner4 | former_owner6(list: u32, was_cluster: u32) -> u32, former_owner_body
}

#[inline(always)]
fn former_owner_body<F: Family>(list: u32, was_cluster: u32) -> u32 {
    let key = stored_key::<F>(KEY);
    key.and_then(|key| find_former_owner::<F>(list, was_cluster != 0, key)).map_or(0, |owner| owner.0)
}

#[inline(always)]
fn find_former_owner<F: Family>(list: u32, was_cluster: bool, key: &KeyOf<F>) -> Option<BackendRef> {
    let service = ServiceEntry(*maps::SERVICES.get(list)?);
    let former = match service.former() {
        Some(word) => ServiceEntry(*maps::SELECTION.get(word)?),
        None if was_cluster && service.length() != 0 => service,
        None => return None,
    };
    let owner = keeper::<F>(slot_of(former, flow_hash(key)), key.protocol);
    F::backend(owner).map(|_| owner)
}

/// The verdict about a packet without a backend.
#[inline(always)]
pub fn verdict_of_none(frontend: &Frontend) -> Verdict {
    match reason_of_none(frontend) {
        Reason::NoEndpoint => Verdict::Refuse(Reason::NoEndpoint, 0),
        reason => Verdict::Drop(reason),
    }
}

/// Why no backend was found.
#[inline(always)]
pub fn reason_of_none(frontend: &Frontend) -> Reason {
    let Some(word) = maps::SERVICES.get(frontend.service) else {
        return Reason::NoBackend;
    };
    let service = ServiceEntry(*word);
    if service.length() != 0 && service.flags() & SERVICE_VACANT == 0 {
        Reason::NoBackend
    } else if service.flags() & SERVICE_ELSEWHERE != 0 {
        Reason::NoLocalEndpoint
    } else {
        Reason::NoEndpoint
    }
}

/// The flags of a reference's backend, unless it is gone. Slots ask for them about a settled owner.
#[inline(always)]
pub fn flags_of<F: Family>(reference: BackendRef) -> Option<u8> {
    F::backend(reference).map(|backend| backend.flags)
}

/// The backend of a flow, if the flow may keep it.
#[inline(always)]
pub fn lookup_keeper<F: Family>(
    reference: BackendRef,
    parsed: &Parsed<F::Address>,
) -> Option<&'static Backend<F::Address>> {
    F::backend(reference).filter(|backend| parsed.role().keeps(backend.flags))
}

/// The backend of a packet that has no flow entry.
#[inline(always)]
pub fn owner<F: Family>(slot: Slot, parsed: &Parsed<F::Address>) -> BackendRef {
    slot.owner(parsed.role(), flags_of::<F>)
}

/// The backend for a message about an existing connection, if the protocol has connections.
#[inline(always)]
pub fn keeper<F: Family>(slot: Slot, protocol: u8) -> BackendRef {
    let role = if has_connections(protocol) { Role::Midstream } else { Role::Datagram };
    slot.owner(role, flags_of::<F>)
}

/// An owner on another node of an unsettled slot: it may know a connection that this node does not.
#[inline(always)]
pub fn other_owner<F: Family>(frontend: &Frontend, key: &KeyOf<F>) -> Option<BackendRef> {
    let slot = Some(select_slot::<F>(frontend, key)).filter(|slot| slot.is_unsettled())?;
    let is_remote = |owner: &BackendRef| F::backend(*owner).is_some_and(|backend| !backend.is_local());
    Some(slot.settled()).filter(is_remote).or(Some(slot.current()).filter(is_remote))
}

/// Whether a packet that leaves the node comes from a frontend with encapsulated packets: a pod took off the
/// outer header.
#[inline(never)]
pub fn is_pods_answer<F: Family>(key: &KeyOf<F>) -> bool {
    let FlowKey { source: address, source_port: port, protocol, .. } = *key;
    let flags = F::frontend_flags(&FrontendKey { address, port, protocol, scope: SCOPE_EXTERNAL });
    flags & FRONTEND_MAY_HAVE_DSR != 0 && !peers::is_own::<F>(&address)
}

/// Whether a backend's pod can take a packet unchanged: nothing translates the port there, and no pod has an
/// address of this node.
#[inline(always)]
pub fn pod_takes<F: Family>(backend: &Backend<F::Address>, key: &KeyOf<F>) -> bool {
    backend.is_pod() && has_pods_port::<F>(backend.port, key)
}

/// Whether a packet has the pod's port and is not for an address of this node.
///
/// Not inlined: the calling walk has no stack left. On Linux 7.3 it must call no other function with a key on
/// the walk's stack. The walk and `dsr_pod::prepare` both call it, and the verifier's liveness analysis
/// confuses their stacks.
#[inline(never)]
pub fn has_pods_port<F: Family>(port: u16, key: &KeyOf<F>) -> bool {
    port == key.destination_port && peers::peer::<F>(&key.destination) & PEER_SELF == 0
}
