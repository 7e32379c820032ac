//! The destination of encapsulated packets (node or pod), and the effect of a change on
//! connections.

use std::net::SocketAddr;

use proxy_common::backend::{BACKEND_EXISTS, BACKEND_POD, BACKEND_READY};
use proxy_common::rules::Role;
use proxy_common::selection::{BackendRef, Slot};

use super::cases::Bed;
use super::kernel::CAPACITIES;
use super::world::{address, assert_serves, desired, dsr, key, port};
use crate::dataplane::ebpf::plan::{BackendEntry, BackendId, GRACE, Plan, REST};
use crate::dataplane::ebpf::settings::Dispatch;
use crate::model::{Desired, Family, Frontend, ServicePort};

const V4: Family = Family::V4;

/// Gives a port's frontends the port of its endpoints.
fn keeping_the_port(mut port: ServicePort) -> ServicePort {
    let moved = |frontend: Frontend| {
        let address = SocketAddr::new(frontend.address.ip(), address(1, V4).port());
        Frontend { address, ..frontend }
    };
    port.frontends = port.frontends.into_iter().map(moved).collect();
    port
}

/// One service with an endpoint here and two on another node.
fn service() -> Desired {
    let endpoints = [(1, 0, true), (2, 1, true), (3, 1, true)];
    desired([(key(0, V4), dsr(keeping_the_port(port(0, V4, &endpoints))))])
}

impl Bed {
    /// Restarts the agent with a setting.
    fn restart(&mut self, dispatch: Dispatch) {
        self.plan = Plan::adopt(CAPACITIES, self.kernel.found(), self.now).with_dispatch(dispatch);
    }

    fn serve(&mut self, state: &Desired) {
        assert!(self.sync(state, &[]).is_complete());
        assert_serves(&self.kernel, state);
    }

    /// Returns the existing backends in the map, with their ids.
    fn existing(&self) -> Vec<(BackendId, BackendEntry)> {
        let all = self.kernel.backends.iter().map(|(id, entry)| (*id, *entry));
        all.filter(|(_, entry)| entry.flags & BACKEND_EXISTS != 0).collect()
    }

    /// Returns whether the pod of a reference removes outer headers.
    fn is_pod(&self, reference: BackendRef) -> bool {
        let entry = self.kernel.backends[&BackendId { family: V4, id: reference.id() }];
        assert_eq!(entry.generation, reference.generation(), "the reference names no backend");
        entry.flags & BACKEND_POD != 0
    }

    fn slots(&self) -> Vec<Slot> {
        self.kernel.slice(*self.kernel.names.keys().next().expect("a service was written"))
    }
}

#[test]
fn only_pods_that_can_take_packets_as_they_are_get_them() {
    let endpoints = [(1, 0, true), (2, 1, true)];
    let by_its_port = |n, port: ServicePort| (key(n, V4), port);
    let with_dsr = keeping_the_port(port(0, V4, &endpoints));
    let host_network = {
        let mut port = dsr(keeping_the_port(port(0, V4, &[])));
        let member = SocketAddr::from(([172, 16, 0, 2], address(1, V4).port()));
        port.endpoints.insert(member, super::world::endpoint(1, true));
        port.cluster = Some([member].into());
        port.has_any = true;
        port
    };
    for (dispatch, state, pods) in [
        (Dispatch::Pod, dsr(with_dsr.clone()), 2),
        (Dispatch::Node, dsr(with_dsr.clone()), 0),
        (Dispatch::Pod, with_dsr, 0),
        (Dispatch::Pod, dsr(port(0, V4, &endpoints)), 0),
        (Dispatch::Pod, host_network, 0),
    ] {
        let mut bed = Bed::new();
        bed.restart(dispatch);
        bed.serve(&desired([by_its_port(0, state)]));
        let found = bed.existing().iter().filter(|(_, entry)| entry.flags & BACKEND_POD != 0).count();
        assert_eq!(found, pods);
    }
}

#[test]
fn an_endpoint_that_turns_out_to_be_a_node_gets_no_more_packets_as_they_are() {
    let mut bed = Bed::new();
    bed.restart(Dispatch::Pod);
    let mut state = service();
    bed.serve(&state);
    assert!(bed.slots().iter().all(|slot| bed.is_pod(slot.current())));
    state.nodes.get_mut("node1").unwrap().insert(address(2, V4).ip());
    bed.serve(&state);
    let (former, _) = bed.existing()[1];
    for slot in bed.slots().into_iter().filter(|slot| slot.is_unsettled()) {
        assert_eq!(slot.settled().id(), former.id, "its connections go on");
        assert!(!bed.is_pod(slot.current()));
    }
    assert!(bed.slots().iter().any(|slot| slot.is_unsettled()));
}

#[test]
fn connections_stay_with_the_way_they_began_when_the_setting_changes() {
    for (first, second) in [(Dispatch::Node, Dispatch::Pod), (Dispatch::Pod, Dispatch::Node)] {
        let mut bed = Bed::new();
        bed.restart(first);
        bed.serve(&service());
        let (before, backends) = (bed.slots(), bed.existing());
        bed.restart(second);
        bed.serve(&service());
        assert_eq!(bed.existing().len(), 6, "each endpoint is there both ways");
        for (slot, before) in bed.slots().into_iter().zip(&before) {
            assert_eq!((slot.is_unsettled(), slot.settled()), (true, before.current()));
            assert_eq!(bed.is_pod(slot.settled()), first == Dispatch::Pod);
            assert_eq!(bed.is_pod(slot.current()), second == Dispatch::Pod);
        }
        let still = |(id, entry): &(BackendId, BackendEntry)| {
            bed.kernel.backends[id] == BackendEntry { flags: entry.flags & !BACKEND_READY, ..*entry }
        };
        assert!(backends.iter().all(still), "what was there serves what it has");
        for slot in bed.slots() {
            let flags = |reference: BackendRef| {
                let id = BackendId { family: V4, id: reference.id() };
                Some(bed.kernel.backends[&id].flags)
            };
            assert_eq!(slot.owner(Role::Midstream, flags), slot.settled());
            assert_eq!(slot.owner(Role::Datagram, flags), slot.current(), "UDP changes at once");
        }

        bed.restart(first);
        bed.serve(&service());
        for (slot, before) in bed.slots().into_iter().zip(&before) {
            assert_eq!((slot.current(), slot.settled()), (before.current(), before.current()));
        }
        assert_eq!(bed.existing().len(), 6, "connections that began meanwhile go on, too");
    }
}

#[test]
fn one_endpoint_can_be_two_backends_at_once() {
    let mut bed = Bed::new();
    bed.serve(&service());
    bed.restart(Dispatch::Pod);
    bed.serve(&service());
    let without = desired([(key(0, V4), dsr(keeping_the_port(port(0, V4, &[(1, 0, true), (2, 1, true)]))))]);
    bed.sync(&without, &[]);
    bed.now += GRACE;
    bed.serve(&without);
    assert_eq!(bed.existing().len(), 4);
    // A resting backend keeps its kind: it stays the same if it returns in time.
    bed.restart(Dispatch::Pod);
    bed.now += REST / 2;
    bed.serve(&service());
    assert_eq!(bed.existing().len(), 5, "it returns as its new connections reach it");
    assert!(bed.slots().iter().all(|slot| bed.is_pod(slot.current())));
}

#[test]
fn a_plan_that_begins_anew_keeps_the_setting() {
    let mut bed = Bed::new();
    bed.restart(Dispatch::Pod);
    bed.serve(&service());
    let before = bed.slots();
    bed.plan.readopt(bed.kernel.found(), bed.now);
    bed.serve(&service());
    assert!(bed.slots() == before, "nothing was wrong, and nothing is changed");
}
