//! The endpoints of the Service, as the EndpointSlices have them from one change to the next.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;

use millrace::dataplane::ebpf::plan::maglev;
use proxy_common::backend::{BACKEND_EXISTS, BACKEND_READY, BACKEND_SERVING};
use proxy_common::selection::BackendRef;

/// The number of an endpoint. Each pod has its own.
pub type Endpoint = u32;
/// The number of a node.
pub type Node = usize;

/// The condition of an endpoint that is in an EndpointSlice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// It gets new connections.
    Ready,
    /// It ends its connections.
    Terminating,
}

/// One state of the EndpointSlices, with the Maglev table that every node computes of it.
#[derive(Debug, Default)]
pub struct Snapshot {
    members: BTreeMap<Endpoint, Condition>,
    ready: Vec<Endpoint>,
    table: Vec<Endpoint>,
}

impl Snapshot {
    /// Returns the state of these endpoints, with a table of `length` slots.
    pub fn new(members: BTreeMap<Endpoint, Condition>, length: u32) -> Rc<Self> {
        let is_ready = |(_, condition): &(_, &Condition)| **condition == Condition::Ready;
        let mut ready: Vec<Endpoint> = members.iter().filter(is_ready).map(|(number, _)| *number).collect();
        ready.sort_unstable_by_key(|endpoint| address(*endpoint));
        let addresses: Vec<SocketAddr> = ready.iter().map(|endpoint| address(*endpoint)).collect();
        let owners = maglev::table(&addresses, length);
        let table = owners.into_iter().filter_map(|owner| ready.get(owner).copied()).collect();
        Rc::new(Self { members, ready, table })
    }

    /// Returns the endpoints that get new connections, sorted by address.
    pub fn ready(&self) -> &[Endpoint] {
        &self.ready
    }

    /// Returns the owner of each slot.
    pub fn table(&self) -> &[Endpoint] {
        &self.table
    }

    /// Returns whether an EndpointSlice has an endpoint, in any condition.
    pub fn exists(&self, endpoint: Endpoint) -> bool {
        self.members.contains_key(&endpoint)
    }

    /// Returns the `BACKEND_*` bits of an endpoint that exists.
    pub fn flags(&self, endpoint: Endpoint) -> Option<u8> {
        let ready = match self.members.get(&endpoint)? {
            Condition::Ready => BACKEND_READY,
            Condition::Terminating => 0,
        };
        Some(BACKEND_EXISTS | BACKEND_SERVING | ready)
    }
}

/// Returns the reference of an endpoint in slots. Id 0 names none.
pub const fn reference(endpoint: Endpoint) -> BackendRef {
    BackendRef::new(endpoint + 1, 0)
}

/// Returns the endpoint of a reference.
pub const fn endpoint(reference: BackendRef) -> Option<Endpoint> {
    reference.id().checked_sub(1)
}

/// Returns the address of an endpoint's pod, in an order that is not that of the numbers.
fn address(endpoint: Endpoint) -> SocketAddr {
    let [_, high, middle, low] = endpoint.to_be_bytes();
    SocketAddr::from(([10, low, middle, high], 8080))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ready_endpoints_own_slots_and_all_members_exist() {
        let members = [(0, Condition::Ready), (7, Condition::Terminating), (9, Condition::Ready)].into();
        let snapshot = Snapshot::new(members, 61);
        assert_eq!(snapshot.ready(), [0, 9]);
        assert_eq!(snapshot.table().len(), 61);
        assert!(snapshot.table().iter().all(|owner| [0, 9].contains(owner)));
        assert!(snapshot.exists(7) && !snapshot.exists(1));
        assert_eq!(snapshot.flags(7).map(|flags| flags & BACKEND_READY), Some(0));
        assert_eq!(endpoint(reference(9)), Some(9));
        assert_eq!(endpoint(BackendRef::NONE), None);
    }
}
