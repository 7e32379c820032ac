//! The endpoints of one family: ids, generations, and what is written of each.

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

/// How long an endpoint goes on existing, neither ready nor serving, after it left the last EndpointSlice. One
/// that moves to another slice is in neither for a moment, and its connections must not notice.
pub const GRACE: Duration = Duration::from_secs(3);

/// An endpoint, and to whom what is encapsulated for it is addressed. Both together are a backend: a connection that was begun
/// one way goes on that way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    /// The endpoint.
    pub address: SocketAddr,
    /// To whom.
    pub dispatch: Dispatch,
}

/// A backend is shared by all service ports that have its target; it exists as long as any of them
/// has it in an EndpointSlice, in any condition, and for [`GRACE`] after that.
#[derive(Clone, Debug)]
pub struct Backends {
    pool: IdPool,
    ids: BTreeMap<Target, u32>,
    entries: ById<State>,
    /// Ids that were found in use and that no port has claimed so far.
    unclaimed: BTreeSet<u32>,
    /// Backends that no port has, by the end of their grace.
    leaving: BTreeSet<(Duration, u32)>,
    /// How many exist in the map.
    in_map: u32,
}

#[derive(Clone, Debug)]
struct State {
    target: Target,
    generation: u8,
    /// What each service port's EndpointSlices say of it.
    views: SmallMap<Arc<PortKey>, View>,
    written: Option<BackendEntry>,
    /// Until when it exists though no port has it.
    grace: Option<Duration>,
    /// Service ids with a slot that names it.
    named_by: SmallMap<u32, ()>,
}

/// What one service port says of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// The endpoint.
    pub endpoint: Endpoint,
    /// Another backend of the port has the same hint, and the lower address.
    pub hint_lost: bool,
}

impl View {
    /// The same of a backend that only serves what it has.
    pub(super) fn leaving(&self) -> Self {
        let Endpoint { ready, serving, .. } = self.endpoint;
        let endpoint = Endpoint { ready: false, serving: ready || serving, ..self.endpoint.clone() };
        Self { endpoint, ..*self }
    }
}

impl Backends {
    /// No backends, and a map of this many entries.
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

    /// How many exist in the map.
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

    /// What was found and no port has claimed is wanted by none.
    pub fn release_unclaimed(&mut self) {
        self.unclaimed.clear();
    }

    /// The way in the map to an endpoint; 0 = none.
    #[must_use]
    pub fn written_way(&self, address: SocketAddr) -> u32 {
        let written = |dispatch| {
            let state = self.entries.get(self.id(Target { address, dispatch })?);
            state.and_then(|state| state.written).filter(|written| written.address == address)
        };
        let ways = Dispatch::ALL.into_iter().filter_map(written).map(|written| written.way);
        ways.max().unwrap_or(0)
    }

    /// The id of an endpoint, a new one if it has none; `None` if all are in use or rest.
    ///
    /// An endpoint that returns while its id rests gets it back with its generation: it was only moved between two
    /// EndpointSlices, and its connections live on. One that returns later is another one with the same address: the
    /// flows and affinities of the former must not be its own.
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

    /// The id that an endpoint has for the other way to address it, while connections may have begun that way.
    #[must_use]
    pub fn former(&self, target: Target) -> Option<u32> {
        let dispatch = match target.dispatch {
            Dispatch::Node => Dispatch::Pod,
            Dispatch::Pod => Dispatch::Node,
        };
        let id = self.id(Target { dispatch, ..target })?;
        self.entries.get(id).is_some_and(State::is_in_map).then_some(id)
    }

    /// Says what a port knows of a backend; `None` = the port has it no more. If no other port has it either and
    /// it is in the map, its grace begins.
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

    /// Ends the grace of those whose time has come, and names them.
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

    /// When the next grace ends.
    #[must_use]
    pub fn next_grace(&self) -> Option<Duration> {
        self.leaving.first().map(|(end, _)| *end)
    }

    /// The id of an endpoint, if it has one.
    #[must_use]
    pub fn id(&self, target: Target) -> Option<u32> {
        self.ids.get(&target).copied()
    }

    /// The reference to an endpoint that some port has.
    #[must_use]
    pub fn reference(&self, target: Target) -> Option<BackendRef> {
        let id = self.id(target)?;
        let state = self.entries.get(id).filter(|state| !state.views.is_empty())?;
        Some(BackendRef::new(id, state.generation))
    }

    /// Whether a reference names an endpoint that exists.
    #[must_use]
    pub fn exists(&self, reference: BackendRef) -> bool {
        let names = |state: &State| state.generation == reference.generation();
        self.entries.get(reference.id()).is_some_and(names) && self.is_in_use(reference.id())
    }

    /// Whether a reference names an endpoint that exists, or that would be the same one if it came back by now.
    #[must_use]
    pub fn may_live(&self, reference: BackendRef, now: Duration) -> bool {
        let id = reference.id();
        let names = |state: &State| state.generation == reference.generation();
        self.entries.get(id).is_some_and(names) && self.pool.rested(id, now).is_none()
    }

    /// Whether a backend exists, or may: it was found in use and is not claimed so far.
    #[must_use]
    pub fn is_in_use(&self, id: u32) -> bool {
        self.unclaimed.contains(&id) || self.entries.get(id).is_some_and(State::exists)
    }

    /// The service ports that have a backend.
    pub fn users(&self, id: u32) -> impl Iterator<Item = &Arc<PortKey>> {
        self.entries.get(id).into_iter().flat_map(|state| state.views.keys())
    }

    /// The address of an endpoint that exists.
    #[must_use]
    pub fn address(&self, reference: BackendRef) -> Option<SocketAddr> {
        if !self.exists(reference) {
            return None;
        }
        self.entries.get(reference.id()).map(|state| state.target.address)
    }

    /// The service ids with a slot that names a backend.
    pub fn named_by(&self, id: u32) -> impl Iterator<Item = u32> {
        self.entries.get(id).into_iter().flat_map(|state| state.named_by.keys().copied())
    }

    /// Records that slots of a service began or ceased to name a backend.
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

    /// What must be written for a backend that exists; `None` if that is in the map already.
    pub fn write(&self, id: u32, way: impl Fn(&str, SocketAddr) -> u32) -> Option<BackendEntry> {
        let state = self.entries.get(id).filter(|state| state.exists())?;
        let entry = state.wanted(way);
        (state.written != Some(entry)).then_some(entry)
    }

    /// What must be written for a backend that exists no more; `None` if that is in the map already.
    #[must_use]
    pub fn release(&self, id: u32) -> Option<BackendEntry> {
        let state = self.entries.get(id).filter(|state| !state.exists())?;
        let written = state.written.filter(|written| written.flags & BACKEND_EXISTS != 0)?;
        Some(BackendEntry { flags: written.flags & BACKEND_POD, ..written })
    }

    /// Records that an entry was written; one without `BACKEND_EXISTS` begins to rest.
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

    /// Lets the id of a backend that nobody has rest, if it was claimed but never written.
    pub fn abandon(&mut self, id: u32, now: Duration) {
        let is_idle = |state: &State| !state.exists() && !state.is_in_map();
        if self.entries.get(id).is_some_and(is_idle) && !self.pool.is_resting(id) {
            self.pool.rest(id, now);
        }
    }

    /// What is in the map.
    pub fn written_entries(&self) -> impl Iterator<Item = (u32, BackendEntry)> {
        self.entries.iter().filter_map(|(id, state)| Some((id, state.written?)))
    }

    /// All ids that were ever given out.
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
    /// At least one does.
    Yes,
    /// None does any more.
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

    /// Where ports differ, one that says ready, serving or local is believed, and the first that names a node.
    /// One that no port has stays as it was written, but is neither ready nor serving.
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

    /// The hint is one per backend, a clash one per service: a backend that loses in any of its services has
    /// none at all, since in that service the hint would name another one. Every node sees the same
    /// EndpointSlices and so comes to the same answer. Without a hint its node falls back to flow entry and slot.
    fn hint(&self) -> u32 {
        if self.views.values().any(|view| view.hint_lost) { 0 } else { hint_of(self.target.address) }
    }
}

/// The hint that names an endpoint to its node.
#[must_use]
pub fn hint_of(address: SocketAddr) -> u32 {
    let port = address.port().to_be();
    u32::from(match address.ip() {
        IpAddr::V4(ip) => hint(&Addr4::from(ip), port),
        IpAddr::V6(ip) => hint(&Addr6::from(ip), port),
    })
}

/// What names a pod of this node to directors that know its address only.
#[must_use]
pub fn pod_hint_of(address: IpAddr) -> u32 {
    match address {
        IpAddr::V4(ip) => HintKey::pod(0, &Addr4::from(ip)).hint,
        IpAddr::V6(ip) => HintKey::pod(0, &Addr6::from(ip)).hint,
    }
}

/// Which of a port's endpoints lose their hint to a lower address of the same port.
pub fn hint_losers<'a>(endpoints: impl Iterator<Item = &'a SocketAddr>) -> BTreeSet<SocketAddr> {
    let mut taken = BTreeSet::new();
    endpoints.filter(|address| !taken.insert(hint_of(**address))).copied().collect()
}
