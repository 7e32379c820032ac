//! A data plane whose maps grow with the cluster.
//!
//! The maps are sized for twice the Services when they are made. Once most of a map is in use, the data plane is
//! closed, and opened with larger maps. A restarted agent does the same. The programs serve meanwhile, and connections
//! go on.

use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::ebpf::{OpenError, Sizes};
use super::{Check, Dataplane, SyncFailure, SyncReport};
use crate::model::{Desired, Dirty};
use crate::node::Topology;

/// The shortest time between two counts of what the Services need.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// The time between two attempts to make larger maps.
const RETRY_INTERVAL: Duration = Duration::from_mins(10);

/// Opens a data plane with room for so much.
type Open<D> = Box<dyn Fn(&Sizes, &Desired) -> Result<D, OpenError>>;

/// A data plane, and how it is opened anew.
pub struct Growing<D> {
    open: Open<D>,
    /// The sizes with which the data plane was opened. Maps of an earlier agent may be larger.
    sizes: Sizes,
    /// None if it could not be opened anew. Its programs and maps serve on.
    dataplane: Option<D>,
    topology: Topology,
    /// The time of the next look at what the Services need.
    look_at: Instant,
}

impl<D: Dataplane> Growing<D> {
    /// Opens a data plane with room for the Services.
    pub fn open(
        desired: &Desired,
        open: impl Fn(&Sizes, &Desired) -> Result<D, OpenError> + 'static,
    ) -> Result<Self, OpenError> {
        let sizes = Sizes::for_desired(desired);
        let dataplane = Some(open(&sizes, desired)?);
        let (topology, look_at) = (Topology::default(), Instant::now());
        Ok(Self { open: Box::new(open), sizes, dataplane, topology, look_at })
    }

    /// Returns the sizes that the Services need if the maps have too little room. `is_complete` is whether every
    /// Service found room.
    fn outgrown(&mut self, desired: &Desired, is_complete: bool) -> Option<Sizes> {
        let now = Instant::now();
        if now < self.look_at {
            return None;
        }
        self.look_at = now + LOOK_INTERVAL;
        let room = self.dataplane.as_ref().and_then(Dataplane::room)?;
        let is_crowded = room.are_nearly_full(&Sizes::needed(desired));
        let wanted = room.or_larger(&Sizes::for_desired(desired));
        ((is_crowded || !is_complete) && wanted != room).then_some(wanted)
    }

    /// Closes the data plane and opens it with larger maps; with the former sizes if that fails.
    fn grow(&mut self, wanted: Sizes, desired: &Desired, incomplete: bool) -> SyncReport {
        info!(
            "the Services need more room than the maps have: the data plane is opened anew with larger maps"
        );
        // Its lock is given up with it.
        self.dataplane = None;
        match (self.open)(&wanted, desired) {
            Ok(dataplane) => {
                self.sizes = wanted;
                self.dataplane = Some(dataplane);
            }
            Err(error) => {
                warn!(%error, "larger maps can't be made; the agent goes on with the present ones, and tries again in ten minutes");
                self.look_at = Instant::now() + RETRY_INTERVAL;
            }
        }
        self.begin(desired, incomplete)
    }

    /// Gives a new data plane everything. Opens one with the present sizes if there is none.
    fn begin(&mut self, desired: &Desired, incomplete: bool) -> SyncReport {
        if self.dataplane.is_none() {
            match (self.open)(&self.sizes, desired) {
                Ok(dataplane) => self.dataplane = Some(dataplane),
                Err(error) => return failed(&error),
            }
        }
        let Some(dataplane) = &mut self.dataplane else { return SyncReport::default() };
        let report = dataplane.set_topology(&self.topology);
        report.then(dataplane.sync(desired, &Dirty::everything(desired, incomplete)))
    }
}

/// Reports that there is no data plane. The reconcile task tries again.
fn failed(error: &OpenError) -> SyncReport {
    let failures = vec![SyncFailure::Node(format!("the data plane can't be opened anew: {error}"))];
    SyncReport { failures, ..SyncReport::default() }
}

impl<D: Dataplane> Dataplane for Growing<D> {
    fn sync(&mut self, desired: &Desired, dirty: &Dirty) -> SyncReport {
        let Some(dataplane) = &mut self.dataplane else { return self.begin(desired, dirty.incomplete) };
        let mut report = dataplane.sync(desired, dirty);
        if let Some(wanted) = self.outgrown(desired, report.is_complete()) {
            let writes = report.writes;
            report = self.grow(wanted, desired, dirty.incomplete);
            report.writes += writes;
        }
        report
    }

    fn set_topology(&mut self, topology: &Topology) -> SyncReport {
        self.topology.clone_from(topology);
        // Without a data plane, the sync that follows opens one, and gives it the topology.
        self.dataplane.as_mut().map_or_else(SyncReport::default, |dataplane| dataplane.set_topology(topology))
    }

    fn housekeep(&mut self, now_monotonic_seconds: u64) -> Option<Duration> {
        self.dataplane.as_mut().and_then(|dataplane| dataplane.housekeep(now_monotonic_seconds))
    }

    fn check(&mut self) -> Check {
        self.dataplane.as_mut().map_or_else(Check::default, Dataplane::check)
    }

    fn is_attached(&self) -> bool {
        self.dataplane.as_ref().is_none_or(Dataplane::is_attached)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeMap;
    use std::net::{IpAddr, Ipv4Addr};
    use std::rc::Rc;

    use super::*;
    use crate::dataplane::fake::FakeDataplane;

    /// The room for nodes in each data plane that was opened, and the most that can be opened.
    #[derive(Debug)]
    struct Opened {
        rooms: Vec<u32>,
        most: u32,
    }

    fn nodes(count: u32) -> Desired {
        let node = |n| (format!("node{n}"), [IpAddr::from(Ipv4Addr::from_bits(n))].into());
        Desired { nodes: (0..count).map(node).collect::<BTreeMap<_, _>>(), ..Desired::default() }
    }

    /// Returns a data plane without nodes, and what it opens. `room` returns the room of maps that were opened.
    fn begin(room: fn(Sizes) -> Option<Sizes>) -> (Growing<FakeDataplane>, Rc<RefCell<Opened>>) {
        let opened = Rc::new(RefCell::new(Opened { rooms: Vec::new(), most: 1 << 20 }));
        let seen = Rc::clone(&opened);
        let open = move |sizes: &Sizes, _: &Desired| {
            let mut opened = seen.borrow_mut();
            opened.rooms.push(sizes.nodes);
            if sizes.nodes > opened.most {
                return Err(OpenError::UnknownMap { map: "WAYS".to_owned() });
            }
            let mut opened = FakeDataplane::default();
            opened.room = room(*sizes);
            Ok(opened)
        };
        (Growing::open(&Desired::default(), open).unwrap(), opened)
    }

    /// Returns the report of a sync that may count at once.
    fn sync(growing: &mut Growing<FakeDataplane>, desired: &Desired) -> SyncReport {
        growing.look_at = growing.look_at.min(Instant::now());
        growing.sync(desired, &Dirty::default())
    }

    const LEAST: u32 = 1 << 11;

    #[test]
    fn a_nearly_full_map_gets_larger_and_the_new_data_plane_gets_everything() {
        let (mut growing, opened) = begin(Some);
        let topology = Topology { addresses: [Ipv4Addr::LOCALHOST.into()].into(), ..Topology::default() };
        growing.set_topology(&topology);
        assert!(sync(&mut growing, &nodes(LEAST / 10 * 7)).is_complete());
        assert_eq!(opened.borrow().rooms, [LEAST], "there is room");
        let desired = nodes(LEAST / 10 * 9);
        assert!(sync(&mut growing, &desired).is_complete());
        assert_eq!(opened.borrow().rooms, [LEAST, 2 * LEAST]);
        let new = growing.dataplane.as_ref().unwrap();
        assert_eq!((&new.topology, &new.syncs[..]), (&topology, &[Dirty::everything(&desired, false)][..]));
        assert!(sync(&mut growing, &desired).is_complete());
        assert_eq!(opened.borrow().rooms.len(), 2, "once");
    }

    #[test]
    fn a_service_without_room_makes_larger_maps_if_they_are_half_full() {
        for (nodes_in_use, opened_rooms) in [(LEAST / 10 * 4, 1), (LEAST / 10 * 6, 2)] {
            let (mut growing, opened) = begin(Some);
            let failure = SyncFailure::Map("SELECTION has no room".to_owned());
            growing.dataplane.as_mut().unwrap().failure = Some(failure);
            sync(&mut growing, &nodes(nodes_in_use));
            assert_eq!(opened.borrow().rooms.len(), opened_rooms, "{nodes_in_use}");
        }
    }

    #[test]
    fn the_present_maps_serve_on_if_larger_ones_can_not_be_made() {
        let (mut growing, opened) = begin(Some);
        opened.borrow_mut().most = LEAST;
        let desired = nodes(LEAST);
        assert!(sync(&mut growing, &desired).is_complete());
        assert_eq!(opened.borrow().rooms, [LEAST, 2 * LEAST, LEAST]);
        assert!(growing.sync(&desired, &Dirty::default()).is_complete());
        assert_eq!(opened.borrow().rooms.len(), 3, "not again at once");
    }

    #[test]
    fn a_data_plane_that_can_not_be_opened_at_all_is_opened_by_a_later_sync() {
        let (mut growing, opened) = begin(Some);
        opened.borrow_mut().most = 0;
        let desired = nodes(LEAST);
        for _ in 0..2 {
            let report = sync(&mut growing, &desired);
            assert_eq!(report.failures.len(), 1);
            assert!(report.failures[0].is_fatal(), "{report:?}");
        }
        opened.borrow_mut().most = LEAST;
        assert!(growing.sync(&desired, &Dirty::default()).is_complete());
        assert!(growing.dataplane.is_some());
    }

    #[test]
    fn larger_maps_of_an_earlier_agent_are_large_enough() {
        let found = |sizes: Sizes| Some(Sizes { nodes: sizes.nodes.max(4 * LEAST), ..sizes });
        let (mut growing, opened) = begin(found);
        assert!(sync(&mut growing, &nodes(LEAST * 3)).is_complete());
        assert_eq!(opened.borrow().rooms, [LEAST]);
        assert!(sync(&mut growing, &nodes(LEAST * 4)).is_complete());
        assert_eq!(opened.borrow().rooms, [LEAST, 8 * LEAST]);
    }

    #[test]
    fn a_data_plane_that_can_not_grow_stays() {
        let (mut growing, opened) = begin(|_| None);
        assert!(sync(&mut growing, &nodes(LEAST)).is_complete());
        assert_eq!(opened.borrow().rooms, [LEAST]);
    }
}
