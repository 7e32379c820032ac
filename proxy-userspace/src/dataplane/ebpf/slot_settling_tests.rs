//! Slot settling with real tables.

use std::collections::BTreeMap;

use proxy_common::flow::{FLOW_ENCAPSULATE, FLOW_ESTABLISHED};
use proxy_common::hash::flow_hash;
use proxy_common::selection::{BackendRef, Slot};

use super::tests::{at, key, name_ids, served};
use super::*;
use crate::dataplane::ebpf::EbpfDataplane;
use crate::dataplane::ebpf::scratch::Scratch;
use crate::model::{Algorithm, Desired, Dirty, Endpoint, Forwarding};

const SLOTS: u32 = 13;

/// A DSR service with two endpoints.
struct Bed {
    dataplane: EbpfDataplane,
    collector: Collector,
    timeouts: Timeouts,
    service: u32,
    // Removed last.
    _scratch: Scratch,
}

impl Bed {
    fn new(name: &str) -> Self {
        let scratch = Scratch::new(name);
        let mut bed = Self {
            dataplane: scratch.open(),
            collector: Collector { budget: Duration::MAX, ..Collector::new() },
            timeouts: Timeouts { established: 1000, ..Timeouts::default() },
            service: 0,
            _scratch: scratch,
        };
        bed.serve(&[(1, true), (2, true)], 1000);
        bed.service = name_ids(&bed.dataplane.maps)[0];
        bed
    }

    /// Serves these endpoints; an endpoint that is not ready still exists.
    fn serve(&mut self, endpoints: &[(u8, bool)], seconds: u32) {
        let mut state: Desired = served("settled");
        for port in state.ports.values_mut() {
            let endpoint =
                |ready| Endpoint { node: None, local: false, ready, serving: ready, terminating: !ready };
            let address = |n| ([10, 0, 0, n], 80).into();
            port.endpoints = endpoints
                .iter()
                .map(|(n, ready)| (address(*n), endpoint(*ready)))
                .collect::<BTreeMap<_, _>>();
            port.cluster =
                Some(endpoints.iter().filter(|(_, ready)| *ready).map(|(n, _)| address(*n)).collect());
            (port.forwarding, port.algorithm) = (Forwarding::Dsr, Algorithm::Maglev(SLOTS));
            (port.affinity_seconds, port.has_any) = (0, true);
        }
        let dirty = Dirty { ports: state.ports.keys().cloned().collect(), ..Dirty::default() };
        self.dataplane.plan.sync(&state, &dirty, at(seconds).time, &mut self.dataplane.maps);
    }

    fn slots(&self) -> Vec<Slot> {
        let found = self.dataplane.maps.found().unwrap();
        let (_, _, entry) = found.services.iter().find(|(id, ..)| *id == self.service).unwrap();
        let first = entry.offset() as usize;
        found.slots[first..first + entry.length() as usize].to_vec()
    }

    fn unsettled(&self) -> usize {
        assert!(self.dataplane.plan.drift(&self.dataplane.maps.found().unwrap()).is_empty());
        self.slots().iter().filter(|slot| slot.is_unsettled()).count()
    }

    /// Walks through all tables and settles the slots.
    fn round(&mut self, seconds: u32) {
        for _ in 0..2 {
            let EbpfDataplane { maps, plan, .. } = &mut self.dataplane;
            self.collector.collect(maps, plan, &self.timeouts, at(seconds)).unwrap();
        }
    }

    /// Adds a connection of this client port and returns the index of its slot.
    fn connect(&mut self, port: u16, backend: BackendRef, seen: u32) -> usize {
        let flow = Flow {
            backend: backend.0,
            service: self.service,
            state: FLOW_ESTABLISHED,
            flags: FLOW_ENCAPSULATE,
            last_seen: seen,
            ..Flow::default()
        };
        self.dataplane.maps.of4.flows.insert(&key(port), &flow).unwrap();
        ((u64::from(flow_hash(&key(port))) * u64::from(SLOTS)) >> 32) as usize
    }

    fn owner(&self, n: u8) -> BackendRef {
        let address = ([10, 0, 0, n], 80).into();
        let found = self.dataplane.maps.found().unwrap();
        let (id, entry) = found.backends.into_iter().find(|(_, entry)| entry.address == address).unwrap();
        BackendRef::new(id.id, entry.generation)
    }
}

#[test]
fn slots_of_an_endpoint_that_is_gone_settle_after_a_round() {
    let mut bed = Bed::new("settle-gone");
    bed.serve(&[(1, true)], 1010);
    assert_ne!(bed.unsettled(), 0);
    bed.serve(&[(1, true)], 1013);
    bed.round(1013);
    assert_ne!(bed.unsettled(), 0, "a program may still use the slot it read");
    bed.round(1020);
    assert_eq!(bed.unsettled(), 0);
    assert!(bed.slots().iter().all(|slot| *slot == Slot::settled_on(bed.owner(1))));
}

#[test]
fn a_slot_stays_unsettled_while_an_entry_names_another_living_backend() {
    let mut bed = Bed::new("settle-held");
    let second = bed.owner(2);
    // The second endpoint leaves the lists and returns. Its slots are its own again, and some
    // connections are the first endpoint's.
    bed.serve(&[(1, true), (2, false)], 1010);
    bed.serve(&[(1, true), (2, true)], 1020);
    let of_second: Vec<_> =
        (0..SLOTS as usize).filter(|slot| bed.slots()[*slot].current() == second).collect();
    assert_eq!(bed.unsettled(), of_second.len());
    let first = bed.owner(1);
    let mut ports = 1..;
    let held =
        ports.find_map(|port| Some(bed.connect(port, first, 1020)).filter(|slot| of_second.contains(slot)));
    let agreeing = bed.connect(40000, second, 1020);
    bed.round(1030);
    assert_eq!(bed.unsettled(), 1, "the entry of slot {agreeing} agrees");
    assert!(bed.slots()[held.unwrap()].is_unsettled());
    // The connection has timed out.
    bed.round(2030);
    assert_eq!(bed.unsettled(), 0);
}

#[test]
fn a_living_settled_owner_is_forgotten_one_time_out_after_the_change_or_the_restart() {
    let mut bed = Bed::new("settle-silent");
    bed.serve(&[(1, true), (2, false)], 1010);
    let unsettled = bed.unsettled();
    assert_ne!(unsettled, 0);
    bed.round(2000);
    assert_eq!(bed.unsettled(), unsettled, "the connections of the settled owner may be silent");
    let EbpfDataplane { maps, plan, .. } = &mut bed.dataplane;
    *plan = Plan::adopt(maps.capacities(), maps.found().unwrap(), at(2000).time);
    bed.serve(&[(1, true), (2, false)], 2000);
    bed.round(2500);
    assert_eq!(bed.unsettled(), unsettled, "the time of the change is unknown");
    bed.round(3010);
    assert_eq!(bed.unsettled(), unsettled, "programs may still add entries for the settled owner");
    assert!(bed.slots().iter().all(|slot| slot.settled() == slot.current()));
    bed.round(3020);
    assert_eq!(bed.unsettled(), 0);
}
