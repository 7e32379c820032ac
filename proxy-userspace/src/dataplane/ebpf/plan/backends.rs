//! The backends of one family: ids, generations and map entries.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use proxy_common::backend::{BACKEND_EXISTS, BACKEND_LOCAL, BACKEND_POD, BACKEND_READY, BACKEND_SERVING};
use proxy_common::hash::hint;
use proxy_common::selection::{BackendRef, HintKey};
use proxy_common::{Addr4, Addr6};

use super::change::BackendEntry;
use super::ids::IdPool;
use super::small_map::{ById, SmallMap};
use crate::dataplane::ebpf::settings::Dispatch;
use crate::model::{Endpoint, PortKey};

/// The time an endpoint goes on existing, neither ready nor serving, after it left the last
/// EndpointSlice.
///
/// An endpoint that moves to another slice is in neither for a moment. Its connections must survive
/// the move.
pub const GRACE: Duration = Duration::from_secs(3);

/// An endpoint and the destination of its encapsulated packets.
///
/// Both together are a backend: a connection keeps the destination of its first packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    /// The endpoint.
    pub address: SocketAddr,
    /// The destination: the node or the pod.
    pub dispatch: Dispatch,
}

/// The backends of one family.
///
/// All service ports with the same target share one backend. It exists while any of them has the
/// endpoint in an EndpointSlice, in any condition, and for [`GRACE`] after that.
#[derive(Clone, Debug)]
pub struct Backends {
    pool: IdPool,
    ids: BTreeMap<Target, u32>,
    entries: ById<State>,
    /// Ids found in use and not claimed by a port yet.
    unclaimed: BTreeSet<u32>,
    /// Backends without a port, by the end of their grace period.
    leaving: BTreeSet<(Duration, u32)>,
    /// The number of backends that exist in the map.
    in_map: u32,
}

#[derive(Clone, Debug)]
struct State {
    target: Target,
    generation: u8,
    /// The state of the backend in the EndpointSlices of each service port.
    views: SmallMap<Arc<PortKey>, View>,
    written: Option<BackendEntry>,
    /// The end of the grace period of a backend without a port.
    grace: Option<Duration>,
    /// Service ids with a slot that names the backend.
    named_by: SmallMap<u32, ()>,
}

/// The state of a backend in one service port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// The endpoint.
    pub endpoint: Endpoint,
    /// Whether another backend of the port has the same hint and the lower address.
    pub hint_lost: bool,
}

impl View {
    /// Returns the view of a backend that only serves its existing connections.
    pub(super) fn leaving(&self) -> Self {
        let Endpoint { ready, serving, .. } = self.endpoint;
        let endpoint = Endpoint { ready: false, serving: ready || serving, ..self.endpoint.clone() };
        Self { endpoint, ..*self }
    }
}

impl Backends {
    /// Returns an empty set for a map with `capacity` entries.
    #[must_use]
    pub const fn new(capacity: u32) -> Self {
        Self {
            pool: IdPool::new(capacity),
            ids: BTreeMap::new(),
            entries: ById::new(),
            unclaimed: BTreeSet::new(),
            leaving: BTreeSet::new(),
            in_map: 0,
        }
    }

    /// Returns the number of backends that exist in the map.
    #[must_use]
    pub const fn in_map(&self) -> u32 {
        self.in_map
    }

    /// Number of entries the map has.
    #[must_use]
    pub const fn capacity(&self) -> u32 {
        self.pool.capacity()
    }

    /// Number of ids in use.
    #[must_use]
    pub fn used(&self) -> u32 {
        self.pool.used()
    }

    /// Takes over an entry found in the map.
    pub fn adopt(&mut self, id: u32, entry: BackendEntry, now: Duration) {
        self.pool.adopt(id);
        let target = Target::of(&entry);
        if entry.flags & BACKEND_EXISTS == 0 {
            self.pool.rest(id, now);
            self.ids.entry(target).or_insert(id);
        } else {
            self.ids.insert(target, id);
            self.unclaimed.insert(id);
            self.in_map += 1;
        }
        self.entries.insert(id, State::new(target, entry.generation, Some(entry)));
    }

    /// Treats backends found in the map and not claimed by a port as unwanted.
    pub fn release_unclaimed(&mut self) {
        self.unclaimed.clear();
    }

    /// Returns the way of an endpoint in the map; 0 = none.
    #[must_use]
    pub fn written_way(&self, address: SocketAddr) -> u32 {
        let written = |dispatch| {
            let state = self.entries.get(self.id(Target { address, dispatch })?);
            state.and_then(|state| state.written).filter(|written| written.address == address)
        };
        let ways = Dispatch::ALL.into_iter().filter_map(written).map(|written| written.way);
        ways.max().unwrap_or(0)
    }

    /// Returns the id of an endpoint, or a new id; `None` if all ids are in use or rest.
    ///
    /// An endpoint that returns while its id rests gets its id and generation back. It only moved
    /// between two EndpointSlices, and its connections live on. A later endpoint with the same
    /// address is a new one: it must not inherit the flows and affinities.
    pub fn claim(&mut self, target: Target, now: Duration) -> Option<u32> {
        if let Some(id) = self.ids.get(&target).copied() {
            if self.pool.rested(id, now).is_some()
                && let Some(state) = self.entries.get_mut(id)
            {
                state.generation = (state.generation + 1) % BackendRef::GENERATIONS;
            }
            self.pool.resume(id);
            return Some(id);
        }
        let id = self.pool.allocate(now, |_| true)?;
        let (mut generation, mut written) = (0, None);
        if let Some(former) = self.entries.remove(id) {
            if self.ids.get(&former.target) == Some(&id) {
                self.ids.remove(&former.target);
            }
            generation = (former.generation + 1) % BackendRef::GENERATIONS;
            written = former.written;
        }
        self.ids.insert(target, id);
        self.entries.insert(id, State::new(target, generation, written));
        Some(id)
    }

    /// Returns the id of the endpoint with the other destination, while connections may use it.
    #[must_use]
    pub fn former(&self, target: Target) -> Option<u32> {
        let dispatch = match target.dispatch {
            Dispatch::Node => Dispatch::Pod,
            Dispatch::Pod => Dispatch::Node,
        };
        let id = self.id(Target { dispatch, ..target })?;
        self.entries.get(id).is_some_and(State::is_in_map).then_some(id)
    }

    /// Sets the state of a backend in a port; `None` = the port no longer has the backend.
    ///
    /// The grace period of a backend in the map begins when the last port loses it.
    pub fn set_view(&mut self, id: u32, port: &Arc<PortKey>, view: Option<View>, now: Duration) {
        let Some(state) = self.entries.get_mut(id) else { return };
        if let Some(view) = view {
            self.unclaimed.remove(&id);
            state.views.insert(Arc::clone(port), view);
            if let Some(end) = state.grace.take() {
                self.leaving.remove(&(end, id));
            }
        } else if state.views.remove(port) && state.views.is_empty() && state.is_in_map() {
            state.grace = Some(now + GRACE);
            self.leaving.insert((now + GRACE, id));
        }
    }

    /// Ends the grace periods that are over and returns the backend ids.
    pub fn end_grace(&mut self, now: Duration) -> Vec<u32> {
        let lasting = self.leaving.split_off(&(now, u32::MAX));
        let ended = std::mem::replace(&mut self.leaving, lasting);
        for (_, id) in &ended {
            if let Some(state) = self.entries.get_mut(*id) {
                state.grace = None;
            }
        }
        ended.into_iter().map(|(_, id)| id).collect()
    }

    /// Returns the end of the next grace period.
    #[must_use]
    pub fn next_grace(&self) -> Option<Duration> {
        self.leaving.first().map(|(end, _)| *end)
    }

    /// Returns the id of an endpoint.
    #[must_use]
    pub fn id(&self, target: Target) -> Option<u32> {
        self.ids.get(&target).copied()
    }

    /// Returns the reference to an endpoint of any port.
    #[must_use]
    pub fn reference(&self, target: Target) -> Option<BackendRef> {
        let id = self.id(target)?;
        let state = self.entries.get(id).filter(|state| !state.views.is_empty())?;
        Some(BackendRef::new(id, state.generation))
    }

    /// Returns whether a reference names an existing endpoint.
    #[must_use]
    pub fn exists(&self, reference: BackendRef) -> bool {
        let names = |state: &State| state.generation == reference.generation();
        self.entries.get(reference.id()).is_some_and(names) && self.is_in_use(reference.id())
    }

    /// Returns whether a reference names an existing endpoint, or one that would still get its id
    /// and generation back.
    #[must_use]
    pub fn may_live(&self, reference: BackendRef, now: Duration) -> bool {
        let id = reference.id();
        let names = |state: &State| state.generation == reference.generation();
        self.entries.get(id).is_some_and(names) && self.pool.rested(id, now).is_none()
    }

    /// Returns whether a backend exists. An unclaimed backend found in the map counts.
    #[must_use]
    pub fn is_in_use(&self, id: u32) -> bool {
        self.unclaimed.contains(&id) || self.entries.get(id).is_some_and(State::exists)
    }

    /// Returns the service ports of a backend.
    pub fn users(&self, id: u32) -> impl Iterator<Item = &Arc<PortKey>> {
        self.entries.get(id).into_iter().flat_map(|state| state.views.keys())
    }

    /// Returns the address of an existing endpoint.
    #[must_use]
    pub fn address(&self, reference: BackendRef) -> Option<SocketAddr> {
        if !self.exists(reference) {
            return None;
        }
        self.entries.get(reference.id()).map(|state| state.target.address)
    }

    /// Returns the service ids with a slot that names the backend.
    pub fn named_by(&self, id: u32) -> impl Iterator<Item = u32> {
        self.entries.get(id).into_iter().flat_map(|state| state.named_by.keys().copied())
    }

    /// Records whether slots of a service name a backend.
    pub fn set_named(&mut self, id: u32, service: u32, named: Named) {
        if let Some(state) = self.entries.get_mut(id) {
            match named {
                Named::Yes => state.named_by.insert(service, ()),
                Named::No => {
                    state.named_by.remove(&service);
                }
            }
        }
    }

    /// Returns the entry to write for an existing backend; `None` if the map has it.
    pub fn write(&self, id: u32, way: impl Fn(&str, SocketAddr) -> u32) -> Option<BackendEntry> {
        let state = self.entries.get(id).filter(|state| state.exists())?;
        let entry = state.wanted(way);
        (state.written != Some(entry)).then_some(entry)
    }

    /// Returns the entry to write for a backend that no longer exists; `None` if the map has it.
    #[must_use]
    pub fn release(&self, id: u32) -> Option<BackendEntry> {
        let state = self.entries.get(id).filter(|state| !state.exists())?;
        let written = state.written.filter(|written| written.flags & BACKEND_EXISTS != 0)?;
        Some(BackendEntry { flags: written.flags & BACKEND_POD, ..written })
    }

    /// Records a written entry. The rest of an id begins with an entry without `BACKEND_EXISTS`.
    pub fn written(&mut self, id: u32, entry: BackendEntry, now: Duration) {
        if let Some(state) = self.entries.get_mut(id) {
            let was_there = u32::from(state.is_in_map());
            state.written = Some(entry);
            self.in_map = self.in_map + u32::from(state.is_in_map()) - was_there;
        }
        if entry.flags & BACKEND_EXISTS == 0 {
            self.pool.rest(id, now);
        }
    }

    /// Starts the rest of an id that was claimed but never written.
    pub fn abandon(&mut self, id: u32, now: Duration) {
        let is_idle = |state: &State| !state.exists() && !state.is_in_map();
        if self.entries.get(id).is_some_and(is_idle) && !self.pool.is_resting(id) {
            self.pool.rest(id, now);
        }
    }

    /// Returns the entries in the map.
    pub fn written_entries(&self) -> impl Iterator<Item = (u32, BackendEntry)> {
        self.entries.iter().filter_map(|(id, state)| Some((id, state.written?)))
    }

    /// Returns all ids ever allocated.
    pub fn all(&self) -> impl Iterator<Item = u32> {
        self.entries.iter().map(|(id, _)| id)
    }
}

impl Target {
    fn of(entry: &BackendEntry) -> Self {
        let dispatch = if entry.flags & BACKEND_POD != 0 { Dispatch::Pod } else { Dispatch::Node };
        Self { address: entry.address, dispatch }
    }
}

/// Whether slots name a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    /// At least one slot does.
    Yes,
    /// No slot does.
    No,
}

impl State {
    const fn new(target: Target, generation: u8, written: Option<BackendEntry>) -> Self {
        Self { target, generation, views: SmallMap::None, written, grace: None, named_by: SmallMap::None }
    }

    fn exists(&self) -> bool {
        !self.views.is_empty() || self.grace.is_some()
    }

    fn is_in_map(&self) -> bool {
        self.written.is_some_and(|entry| entry.flags & BACKEND_EXISTS != 0)
    }

    /// Returns the wanted entry.
    ///
    /// Ports may differ: one port is enough for ready, serving or local, and the first port with a
    /// node wins. A backend without a port keeps its entry, but is neither ready nor serving.
    fn wanted(&self, way: impl Fn(&str, SocketAddr) -> u32) -> BackendEntry {
        if let Some(written) = self.written.filter(|_| self.views.is_empty()) {
            return BackendEntry { flags: written.flags & !(BACKEND_READY | BACKEND_SERVING), ..written };
        }
        let any = |flag: u8, test: fn(&Endpoint) -> bool| {
            if self.views.values().any(|view| test(&view.endpoint)) { flag } else { 0 }
        };
        let local = any(BACKEND_LOCAL, |endpoint| endpoint.local);
        let node = self.views.values().find_map(|view| view.endpoint.node.as_deref());
        let address = self.target.address;
        BackendEntry {
            address,
            generation: self.generation,
            flags: BACKEND_EXISTS
                | local
                | if self.target.dispatch == Dispatch::Pod { BACKEND_POD } else { 0 }
                | any(BACKEND_READY, |endpoint| endpoint.ready)
                | any(BACKEND_SERVING, |endpoint| endpoint.ready || endpoint.serving),
            way: if local == 0 { node.map_or(0, |node| way(node, address)) } else { 0 },
            hint: self.hint(),
        }
    }

    /// Returns the hint of the backend; 0 = none.
    ///
    /// A backend has one hint, but hints clash per service. A backend that loses the hint in any
    /// service has none at all, because the hint would name another backend there. All nodes see
    /// the same EndpointSlices and agree. Without a hint the backend's node uses the flow entry and
    /// the slot.
    fn hint(&self) -> u32 {
        if self.views.values().any(|view| view.hint_lost) { 0 } else { hint_of(self.target.address) }
    }
}

/// Returns the hint that names an endpoint to its node.
#[must_use]
pub fn hint_of(address: SocketAddr) -> u32 {
    let port = address.port().to_be();
    u32::from(match address.ip() {
        IpAddr::V4(ip) => hint(&Addr4::from(ip), port),
        IpAddr::V6(ip) => hint(&Addr6::from(ip), port),
    })
}

/// Returns the hint of a pod on this node for directors that know only the pod's address.
#[must_use]
pub fn pod_hint_of(address: IpAddr) -> u32 {
    match address {
        IpAddr::V4(ip) => HintKey::pod(0, &Addr4::from(ip)).hint,
        IpAddr::V6(ip) => HintKey::pod(0, &Addr6::from(ip)).hint,
    }
}

/// Returns the endpoints of a port that lose their hint to a lower address of the same port.
pub fn hint_losers<'a>(endpoints: impl Iterator<Item = &'a SocketAddr>) -> BTreeSet<SocketAddr> {
    let mut taken = BTreeSet::new();
    endpoints.filter(|address| !taken.insert(hint_of(**address))).copied().collect()
}
