//! The plan turns the desired state into operations on the maps. It is pure: no I/O, no clock, no
//! aya; the caller passes the time.
//!
//! The plan keeps a mirror of the operations that succeeded. It plans the difference between the
//! desired state and the mirror. So a failed operation is planned again, and a second plan of the
//! same state is empty.
//!
//! A sync has three steps:
//! - Ids and slots with enough rest become free.
//! - The plan writes everything, each thing before the things that refer to it.
//! - The plan releases everything without a reference in the kernel, and its rest begins.
//!
//! Read the files in this order: `change` (the operations), `ports` and `lists` (one service port),
//! `services`, `backends`, `frontends`, `ranges`, `vips` and `nodes` (the mirrors), `record` (the
//! execution), `adopt`, `unclaimed` and `drift` (the maps of an earlier agent), `former` and `dsr_ending` (what connections
//! by Direct Server Return need after a change), `slot_settling` and `id_reclaim` (the collector's part).

mod adopt;
mod backends;
mod change;
mod drift;
mod dsr_ending;
mod former;
mod former_table;
mod frontends;
mod id_reclaim;
mod ids;
mod lists;
pub mod maglev;
mod map_usage;
mod nodes;
mod ports;
mod ranges;
mod record;
mod services;
mod slot_allocator;
mod slot_settling;
mod small_map;
#[cfg(test)]
mod tests;
mod unclaimed;
mod vips;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

pub use adopt::Found;
pub use backends::GRACE;
pub use change::{BackendEntry, BackendId, Change, Extent, FrontendAt, Op, Phase, RangeAt};
pub use id_reclaim::RestedId;
pub use ids::REST;
pub use map_usage::MapUsage;
use proxy_common::frontend::FRONTEND_SOURCE_RANGES;
use proxy_common::selection::{BackendRef, ServiceEntry, Slot};
pub use slot_settling::SettlingRound;

use self::backends::Backends;
use self::dsr_ending::Ending;
use self::former_table::FormerTable;
use self::frontends::Frontends;
use self::nodes::Nodes;
use self::ranges::Ranges;
use self::services::Services;
use self::slot_allocator::SlotAllocator;
use self::vips::Vips;
use crate::dataplane::ebpf::settings::Dispatch;
use crate::dataplane::{SyncFailure, SyncReport};
use crate::model::{Desired, Dirty, Family, PortKey, ServiceKey};
use crate::node::Topology;

/// Carries out operations.
pub trait Kernel {
    /// Carries out `change`, or returns the reason of the failure. A failed operation has changed
    /// nothing.
    fn apply(&mut self, change: &Change) -> Result<(), String>;
}

/// The actual number of entries of each map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacities {
    /// SERVICES.
    pub services: u32,
    /// SELECTION.
    pub slots: u32,
    /// BACKENDS4.
    pub backends_v4: u32,
    /// BACKENDS6.
    pub backends_v6: u32,
    /// WAYS.
    pub ways: u32,
}

/// The plan and its mirror of the maps.
///
/// These invariants hold between two syncs:
/// - The mirrors (`services`, `backends_*`, `frontends`, `ranges`, `vips`, `nodes`) equal the
///   result of the last successful operation, or the content found in the map.
/// - Every slot is free, at rest, or in the room of exactly one service. The slice of a service is
///   inside its room.
/// - Every id is unused, at rest, or assigned. A service id rests once no frontend has it and its
///   word is zero. A backend id rests once the backend does not exist. A slot with a failed write
///   may still name such a backend; the generation tells that the reference is void.
/// - `fresh` is empty. An entry lives from the planning of a service's word until the plan has
///   stored or abandoned that word.
/// - No backend in `gone` is in a port's endpoints. Every sync plans the ports in `pending` again.
#[derive(Clone, Debug)]
pub struct Plan {
    capacities: Capacities,
    /// The destination of encapsulated packets of new connections.
    dispatch: Dispatch,
    /// The backend and service ids each port has claimed.
    ports: BTreeMap<Arc<PortKey>, PortState>,
    services: Services,
    backends_v4: Backends,
    backends_v6: Backends,
    slot_allocator: SlotAllocator,
    frontends: Frontends,
    ranges: Ranges,
    vips: Vips,
    nodes: Nodes,
    /// The ports whose connections by Direct Server Return go on without new ones.
    dsr_endings: BTreeMap<Arc<PortKey>, Ending>,
    /// The slice of the next word until the word is stored, by service id.
    fresh: BTreeMap<u32, Fresh>,
    /// Backends without a port, not yet released.
    gone: BTreeSet<BackendId>,
    /// Ports with unfinished operations.
    pending: BTreeSet<Arc<PortKey>>,
    nodes_pending: bool,
    /// Whether the plan has seen a desired state. Before that, nothing found in the maps counts as
    /// unwanted.
    started: bool,
}

#[derive(Clone, Debug, Default)]
struct PortState {
    /// Backend ids, sorted.
    endpoints: Box<[u32]>,
    services: BTreeSet<u32>,
}

/// A slice that the word does not name yet, and the room of the service after the change.
#[derive(Clone, Debug, Default)]
struct Fresh {
    slots: Vec<Slot>,
    room: Extent,
    former: Option<FormerTable>,
}

/// The outcome of a sync so far.
#[derive(Debug, Default)]
struct Outcome {
    writes: usize,
    pending: BTreeMap<Arc<PortKey>, String>,
    /// Ports with a failed operation: their other operations wait.
    blocked: BTreeSet<Arc<PortKey>>,
    /// Ports with outdated source ranges in the map: their frontends wait.
    unguarded: BTreeSet<Arc<PortKey>>,
    failures: Vec<SyncFailure>,
    nodes_failed: bool,
}

impl Plan {
    /// Sets the destination of encapsulated packets of new connections. The default is the node.
    #[must_use]
    pub fn with_dispatch(self, dispatch: Dispatch) -> Self {
        Self { dispatch, ..self }
    }

    /// Brings the kernel to `desired` for everything in `dirty` and everything pending.
    pub fn sync(
        &mut self,
        desired: &Desired,
        dirty: &Dirty,
        now: Duration,
        kernel: &mut impl Kernel,
    ) -> SyncReport {
        let mut outcome = Outcome::default();
        let mut ops = self.plan_frees(now);
        ops.extend(self.plan_former_ends());
        self.carry_out(ops, now, kernel, &mut outcome);
        let ops = self.writes(desired, dirty, now, &mut outcome);
        self.carry_out(ops, now, kernel, &mut outcome);
        let ops = self.plan_closings(desired, &outcome);
        self.carry_out(ops, now, kernel, &mut outcome);
        let ops = self.releases();
        self.carry_out(ops, now, kernel, &mut outcome);
        self.rest_released(now);
        self.sync_vips(now, kernel, &mut outcome);
        self.pending = outcome.pending.keys().cloned().collect();
        self.nodes_pending = outcome.nodes_failed;
        SyncReport { due_in: self.due_in(now), ..outcome.into_report() }
    }

    /// Brings ways and node addresses to the current network of the node. `native_devices` run XDP
    /// in the driver.
    pub fn set_topology(
        &mut self,
        topology: &Topology,
        native_devices: &BTreeSet<u32>,
        now: Duration,
        kernel: &mut impl Kernel,
    ) -> SyncReport {
        self.nodes.set_topology(topology, native_devices);
        self.vips.recheck_all();
        let mut outcome = Outcome::default();
        if self.started {
            let ops = in_order(self.nodes.writes());
            self.carry_out(ops, now, kernel, &mut outcome);
            self.nodes_pending |= outcome.nodes_failed;
        }
        self.sync_vips(now, kernel, &mut outcome);
        outcome.into_report()
    }

    /// Brings VIPS to the frontends in the map. It waits until the plan knows this node's
    /// addresses.
    fn sync_vips(&mut self, now: Duration, kernel: &mut impl Kernel, outcome: &mut Outcome) {
        if !self.nodes.knows_own_addresses() {
            return;
        }
        let ops = self.vips.changes(|address| self.nodes.is_node(address));
        self.carry_out(ops, now, kernel, outcome);
        self.vips.retain_failed(|address| self.nodes.is_node(address));
    }

    /// Plans the end of the rest: slots and names released long enough ago become free.
    fn plan_frees(&self, now: Duration) -> Vec<Op> {
        let slots = self.slot_allocator.rested(now).map(Change::ClearSlots);
        let names = self.services.reclaimable().map(Change::RemoveName);
        slots.chain(names).map(|change| Op { change, owner: None }).collect()
    }

    /// Plans all writes, in order.
    fn writes(&mut self, desired: &Desired, dirty: &Dirty, now: Duration, outcome: &mut Outcome) -> Vec<Op> {
        let first = !std::mem::replace(&mut self.started, true);
        let mut due: BTreeSet<Arc<PortKey>> = std::mem::take(&mut self.pending);
        due.extend(dirty.ports.iter().map(|key| Arc::new(key.clone())));
        let complete = !dirty.incomplete && self.release_unclaimed();
        // Only a pod can take packets as they are, so a change of the nodes concerns every port.
        if first || complete || dirty.nodes && self.dispatch == Dispatch::Pod {
            due.extend(desired.ports.keys().map(|key| Arc::new(key.clone())));
        }
        let mut ops = Vec::new();
        let mut touched = BTreeSet::new();
        if first || complete || dirty.nodes || self.nodes_pending {
            self.plan_nodes(desired, now, &mut ops, outcome);
            touched.extend(self.all_backends());
        }
        for key in &due {
            self.review_dsr(key, desired.ports.get(&**key), now);
            if !self.awaits_endpoints(key, desired) {
                self.claim_endpoints(key, desired.ports.get(&**key), now, &mut touched, outcome);
            }
        }
        touched.extend(self.ends_of_grace(now));
        let gone = touched.iter().filter(|id| !self.backends(id.family).is_in_use(id.id));
        let gone = gone.copied().collect::<Vec<_>>();
        self.gone.extend(gone);
        due.extend(self.ports_naming_gone());
        let with_hints = self.services.ended_hints(now).into_iter();
        due.extend(with_hints.filter_map(|id| self.services.get(id)?.owner.clone()));
        self.plan_backends(&touched, &mut ops);
        for key in due {
            self.plan_port(&key, desired, now, &mut ops, outcome);
        }
        ops.extend(self.frontends.unowned().map(|at| Op { change: Change::RemoveFrontend(at), owner: None }));
        in_order(ops)
    }

    /// Plans the release of everything without a reference in the kernel.
    fn releases(&self) -> Vec<Op> {
        let mut changes = Vec::new();
        for (id, state) in self.services.idle() {
            if state.entry.0 != 0 {
                changes.push(Change::Service(id, ServiceEntry::default()));
            }
            let key = |hint| proxy_common::selection::HintKey { service: id, hint };
            changes.extend(state.hints.keys().map(|hint| Change::RemoveHint(key(*hint))));
        }
        for id in &self.gone {
            changes.extend(self.backends(id.family).release(id.id).map(|entry| Change::Backend(*id, entry)));
        }
        let changes = changes.into_iter().chain(self.ranges.releases());
        let changes = changes.map(|change| Op { change, owner: None });
        changes.chain(self.nodes.releases()).collect()
    }

    /// Starts the rest of the released ids and slots.
    fn rest_released(&mut self, now: Duration) {
        let ranges = &self.ranges;
        for room in self.services.rest_empty(now, |id| !ranges.has_any(id)) {
            self.slot_allocator.rest(room, now);
        }
        for id in std::mem::take(&mut self.gone) {
            if self.backends(id.family).release(id.id).is_some() {
                self.gone.insert(id);
            } else {
                self.backends_mut(id.family).abandon(id.id, now);
            }
        }
    }

    fn plan_nodes(&mut self, desired: &Desired, now: Duration, ops: &mut Vec<Op>, outcome: &mut Outcome) {
        for target in self.nodes.assign(desired, now) {
            let room = self.capacities.ways;
            let full = format!("no room for a way to {target}: WAYS has {room} entries");
            outcome.failures.push(SyncFailure::Map(full));
            outcome.nodes_failed = true;
        }
        ops.extend(self.nodes.writes());
        self.vips.recheck_all();
        self.plan_cluster_sources(desired, ops);
    }

    fn plan_backends(&self, touched: &BTreeSet<BackendId>, ops: &mut Vec<Op>) {
        let way = |node: &str, address: SocketAddr| {
            let family = Family::of(address.ip());
            match self.nodes.way(node, family) {
                0 if self.nodes.keeps_unclaimed() => self.backends(family).written_way(address),
                way => way,
            }
        };
        for id in touched {
            let entry = self.backends(id.family).write(id.id, way);
            ops.extend(entry.map(|entry| Op { change: Change::Backend(*id, entry), owner: None }));
        }
    }

    /// Returns the address of a backend and its Services; `None` if the backend is gone.
    #[must_use]
    pub fn backend_and_services(
        &self,
        family: Family,
        backend: BackendRef,
    ) -> Option<(SocketAddr, BTreeSet<ServiceKey>)> {
        let backends = self.backends(family);
        let users = backends.users(backend.id()).map(|port| port.service.clone());
        Some((backends.address(backend)?, users.collect()))
    }

    /// Returns the numbers of existing backends in BACKENDS4 and BACKENDS6.
    #[must_use]
    pub const fn backends_in_maps(&self) -> [u32; 2] {
        [self.backends_v4.in_map(), self.backends_v6.in_map()]
    }

    const fn backends(&self, family: Family) -> &Backends {
        match family {
            Family::V4 => &self.backends_v4,
            Family::V6 => &self.backends_v6,
        }
    }

    const fn backends_mut(&mut self, family: Family) -> &mut Backends {
        match family {
            Family::V4 => &mut self.backends_v4,
            Family::V6 => &mut self.backends_v6,
        }
    }

    fn all_backends(&self) -> Vec<BackendId> {
        let of = |family| self.backends(family).all().map(move |id| BackendId { family, id });
        of(Family::V4).chain(of(Family::V6)).collect()
    }

    fn ends_of_grace(&mut self, now: Duration) -> Vec<BackendId> {
        let mut of = |family| {
            let ended = self.backends_mut(family).end_grace(now);
            ended.into_iter().map(move |id| BackendId { family, id })
        };
        of(Family::V4).chain(of(Family::V6)).collect()
    }

    /// Returns the time until a sync has work though nothing changed.
    fn due_in(&self, now: Duration) -> Option<Duration> {
        let ends = [&self.backends_v4, &self.backends_v6].map(Backends::next_grace);
        let ends = ends.into_iter().flatten().chain(self.services.next_hint_end());
        ends.min().map(|end| end.saturating_sub(now))
    }

    /// Returns the ports with a slot whose owner is gone: the slot must get another owner (rule 4
    /// of the slot).
    fn ports_naming_gone(&self) -> Vec<Arc<PortKey>> {
        let services = self.gone.iter().flat_map(|id| self.backends(id.family).named_by(id.id));
        services.filter_map(|id| self.services.get(id)?.owner.clone()).collect()
    }
}

/// Orders operations by phase and keeps their order inside a phase.
fn in_order(mut ops: Vec<Op>) -> Vec<Op> {
    ops.sort_by_key(|op| op.change.phase());
    ops
}

impl Outcome {
    /// Returns whether a change of a port waits for the next sync. The removal of a frontend never
    /// waits.
    fn defers(&self, change: &Change, port: &Arc<PortKey>) -> bool {
        let needs_ranges =
            matches!(change, Change::Frontend(_, value) if value.flags & FRONTEND_SOURCE_RANGES != 0);
        let can_wait = !matches!(change, Change::RemoveFrontend(_));
        can_wait && (self.blocked.contains(port) || needs_ranges && self.unguarded.contains(port))
    }

    /// Records a partial failure of a port: the rest of the port goes on.
    fn degraded(&mut self, port: &Arc<PortKey>, why: String) {
        self.pending.entry(Arc::clone(port)).or_insert(why);
    }

    fn into_report(self) -> SyncReport {
        SyncReport {
            writes: self.writes,
            pending: self.pending.into_iter().map(|(key, why)| ((*key).clone(), why)).collect(),
            failures: self.failures,
            due_in: None,
        }
    }
}
