//! From the desired state to operations on the maps. Pure: no I/O, no clock, no aya; time is passed in.
//!
//! The plan keeps a mirror of what it has seen succeed. An operation is the difference between what is desired
//! and that mirror, so a failed one comes again by itself, and planning twice yields nothing. A sync has three
//! steps: what has rested becomes free; everything is written, each thing before what refers to it; then what
//! nothing in the kernel refers to any more is released and begins to rest.

mod adopt;
mod backends;
mod change;
mod drift;
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
pub use lists::with_spare_room;
pub use map_usage::MapUsage;
use proxy_common::frontend::FRONTEND_SOURCE_RANGES;
use proxy_common::selection::{BackendRef, ServiceEntry, Slot};
pub use slot_settling::SettlingRound;

use self::backends::Backends;
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

/// What carries operations out.
pub trait Kernel {
    /// Does it, or says why not. An operation that fails has changed nothing.
    fn apply(&mut self, change: &Change) -> Result<(), String>;
}

/// Entries each map really has.
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
/// Between two syncs this holds:
/// - What the mirrors (`services`, `backends_*`, `frontends`, `ranges`, `vips`, `nodes`) call written is what the last operation that
///   succeeded left in the map, or what was found there.
/// - Every slot is free, at rest, or in the room of exactly one service; a service's slice is inside its room.
/// - Every id is unused, at rest, or somebody's. A service rests once no frontend has it and its word is zero, a
///   backend once it does not exist. A slot that could not be written may still name such a backend; its
///   generation tells that it means nobody.
/// - `fresh` is empty: it lives from planning a service's word until that word is stored or given up.
/// - What is in `gone` is in no port's endpoints; a port in `pending` is planned again by every sync.
#[derive(Clone, Debug)]
pub struct Plan {
    capacities: Capacities,
    /// To whom what new connections send is addressed once encapsulated.
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
    /// By service id: what a service's next word names, while that word is not stored yet.
    fresh: BTreeMap<u32, Fresh>,
    /// Backends no port has any more, still to be released.
    gone: BTreeSet<BackendId>,
    /// Ports with something left to do.
    pending: BTreeSet<Arc<PortKey>>,
    nodes_pending: bool,
    /// Whether a desired state was seen. Before, nothing that was found is taken to be unwanted.
    started: bool,
}

#[derive(Clone, Debug, Default)]
struct PortState {
    /// Ids of backends, sorted.
    endpoints: Box<[u32]>,
    services: BTreeSet<u32>,
}

/// A slice on its way, and the slots that are the service's own then.
#[derive(Clone, Debug, Default)]
struct Fresh {
    slots: Vec<Slot>,
    room: Extent,
}

/// What became of a sync so far.
#[derive(Debug, Default)]
struct Outcome {
    writes: usize,
    pending: BTreeMap<Arc<PortKey>, String>,
    /// Ports one of whose operations failed: the rest waits.
    blocked: BTreeSet<Arc<PortKey>>,
    /// Ports whose source ranges are not what they shall be: their frontends wait.
    unguarded: BTreeSet<Arc<PortKey>>,
    failures: Vec<SyncFailure>,
    nodes_failed: bool,
}

impl Plan {
    /// Says to whom what new connections send is addressed once encapsulated; by default to nodes.
    #[must_use]
    pub fn with_dispatch(self, dispatch: Dispatch) -> Self {
        Self { dispatch, ..self }
    }

    /// Brings the kernel to `desired` for all that `dirty` names and all that is pending.
    pub fn sync(
        &mut self,
        desired: &Desired,
        dirty: &Dirty,
        now: Duration,
        kernel: &mut impl Kernel,
    ) -> SyncReport {
        let mut outcome = Outcome::default();
        let ops = self.plan_frees(now);
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

    /// Brings ways and node addresses to what the node's network is now. `native_devices` run XDP in the
    /// driver.
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

    /// Brings VIPS to what the frontends in the map ask for, once it is known which addresses are this node's.
    fn sync_vips(&mut self, now: Duration, kernel: &mut impl Kernel, outcome: &mut Outcome) {
        if !self.nodes.knows_own_addresses() {
            return;
        }
        let ops = self.vips.changes(|address| self.nodes.is_node(address));
        self.carry_out(ops, now, kernel, outcome);
        self.vips.retain_failed(|address| self.nodes.is_node(address));
    }

    /// What was released long enough ago becomes free.
    fn plan_frees(&self, now: Duration) -> Vec<Op> {
        let slots = self.slot_allocator.rested(now).map(Change::ClearSlots);
        let names = self.services.reclaimable().map(Change::RemoveName);
        slots.chain(names).map(|change| Op { change, owner: None }).collect()
    }

    /// What must be written, in order.
    fn writes(&mut self, desired: &Desired, dirty: &Dirty, now: Duration, outcome: &mut Outcome) -> Vec<Op> {
        let first = !std::mem::replace(&mut self.started, true);
        let mut due: BTreeSet<Arc<PortKey>> = std::mem::take(&mut self.pending);
        due.extend(dirty.ports.iter().map(|key| Arc::new(key.clone())));
        let complete = !dirty.incomplete && self.release_unclaimed();
        // Which of the endpoints are nodes decides who can take packets as they are.
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

    /// What nothing in the kernel refers to any more.
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

    /// What was released begins to rest.
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

    /// The address of a backend, and the Services that have it; `None` if it is gone.
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

    /// How many backends exist in BACKENDS4 and BACKENDS6.
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

    /// How long it is until a sync has something to do though nothing changed.
    fn due_in(&self, now: Duration) -> Option<Duration> {
        let ends = [&self.backends_v4, &self.backends_v6].map(Backends::next_grace);
        let ends = ends.into_iter().flatten().chain(self.services.next_hint_end());
        ends.min().map(|end| end.saturating_sub(now))
    }

    /// Ports with a slot whose owner is gone: it must get another (rule 4 of the slot).
    fn ports_naming_gone(&self) -> Vec<Arc<PortKey>> {
        let services = self.gone.iter().flat_map(|id| self.backends(id.family).named_by(id.id));
        services.filter_map(|id| self.services.get(id)?.owner.clone()).collect()
    }
}

/// Orders operations by phase; inside a phase they stay as they are.
fn in_order(mut ops: Vec<Op>) -> Vec<Op> {
    ops.sort_by_key(|op| op.change.phase());
    ops
}

impl Outcome {
    /// Whether a change of a port is left for the next sync. What shall be served no more never is.
    fn defers(&self, change: &Change, port: &Arc<PortKey>) -> bool {
        let needs_ranges =
            matches!(change, Change::Frontend(_, value) if value.flags & FRONTEND_SOURCE_RANGES != 0);
        let can_wait = !matches!(change, Change::RemoveFrontend(_));
        can_wait && (self.blocked.contains(port) || needs_ranges && self.unguarded.contains(port))
    }

    /// Something of a port could not be done; the rest of it can.
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
