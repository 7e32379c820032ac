//! The pinned maps, typed.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use aya::Pod;
use aya::maps::{Array, HashMap, IterableMap, Map, MapData, MapError, PerCpuHashMap};
use proxy_common::affinity::{Affinity, AffinityKey};
use proxy_common::backend::Backend;
use proxy_common::figures::{BackendConnections, Connections, DropKey, Handshakes};
use proxy_common::flow::{Flow, FlowKey};
use proxy_common::frontend::{Frontend, FrontendKey};
use proxy_common::hop::Device;
use proxy_common::name::ServiceName;
use proxy_common::selection::HintKey;
use proxy_common::socket::{SocketFrontend, SocketKey};
use proxy_common::verdict::{Counter, Reason};
use proxy_common::vip::VipKey;
use proxy_common::way::{PeerKey, Way};
use proxy_common::{Addr4, Addr6, Address};

use super::error::OpenError;
use super::frontend_index::FrontendIndex;
use super::map::{errno, explain, mapped, open};
use super::mapped::{Access, MappedArray};
use super::sys::{self, Cursor};
use super::trie::Trie;

/// Every map but the counters.
#[derive(Debug)]
pub struct Maps {
    /// `ServiceEntry` words by service id.
    pub services: MappedArray,
    /// `Slot` words.
    pub selection: MappedArray,
    /// `AGENT_*` words.
    pub agent: MappedArray,
    /// The IPv4 maps.
    pub of4: FamilyMaps<Addr4>,
    /// The IPv6 maps.
    pub of6: FamilyMaps<Addr6>,
    /// Ways by id.
    pub ways: Vector<Way>,
    /// The end of an MTU that a router named, and the MTU before it, by way id.
    pub narrowed: Vector<u64>,
    /// Backends on this node by service and hint.
    pub hints: Table<HintKey, u32>,
    /// Node addresses.
    pub peers: Table<PeerKey, u32>,
    /// Addresses of Services.
    pub vips: Table<VipKey, u32>,
    /// The filter in front of `vips`.
    pub address_filter: MappedArray,
    /// Ports of frontends on this node's addresses.
    pub node_ports: MappedArray,
    /// MAC addresses of uplinks, by the low bits of their interface index. Readers need none, and an earlier build of
    /// this layout has none.
    pub device_macs: Option<MappedArray>,
    /// Devices by interface index.
    pub devices: Table<u32, Device>,
    /// Names of service ids.
    pub names: Table<u32, ServiceName>,
    /// Figures of Services.
    pub figures: Figures,
    /// Whether a frontend was written since the index of frontends was filled.
    pub is_index_behind: bool,
    /// Whether a backend that serves no more was written since the last query.
    pub lost_backend: bool,
}

/// Figures of Services, by service id.
pub struct Figures {
    /// Connections by what became of them.
    pub connections: Vector<Connections>,
    /// Times to the first answer.
    pub handshakes: Vector<Handshakes>,
    /// Dropped packets by reason.
    pub drops: PerCpuHashMap<MapData, DropKey, Counter>,
}

impl fmt::Debug for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Figures").finish_non_exhaustive()
    }
}

impl Figures {
    fn open(directory: &Path) -> Result<Self, OpenError> {
        let (drops, _) = open(directory, "SERVICE_DROPS")?;
        let failed = |error| OpenError::Map { map: "SERVICE_DROPS".to_owned(), error };
        Ok(Self {
            connections: Vector::open(directory, "SERVICE_CONNECTIONS")?,
            handshakes: Vector::open(directory, "SERVICE_HANDSHAKES")?,
            drops: Map::from_map_data(drops).and_then(PerCpuHashMap::try_from).map_err(failed)?,
        })
    }

    /// Forgets the figures of a Service whose id is free for another one.
    pub fn forget(&mut self, service: u32) -> Result<(), String> {
        self.connections.set(service, &Connections::default())?;
        self.handshakes.set(service, &Handshakes::default())?;
        for reason in Reason::ALL {
            match self.drops.remove(&DropKey { service, reason: *reason as u32 }) {
                Err(error) if errno(&error) != Some(libc::ENOENT) => {
                    return Err(format!("SERVICE_DROPS: {error}"));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// The maps of one family.
#[derive(Debug)]
pub struct FamilyMaps<A: Address> {
    /// Frontends.
    pub frontends: Table<FrontendKey<A>, Frontend>,
    /// Copies of frontends.
    pub frontend_index: FrontendIndex<A>,
    /// Endpoints by id.
    pub backends: Vector<Backend<A>>,
    /// Connections of endpoints, by id.
    pub backend_connections: Vector<BackendConnections>,
    /// Connections.
    pub flows: Table<FlowKey<A>, Flow<A>>,
    /// Connections that the client has not confirmed.
    pub flows_new: Table<FlowKey<A>, Flow<A>>,
    /// The node's own connections at ports of frontends.
    pub node_flows: Table<FlowKey<A>, u32>,
    /// Allowed sources of each frontend, and the sources inside the cluster.
    pub source_ranges: Trie<A>,
    /// The last backend of each client, for session affinity.
    pub affinity: Table<AffinityKey<A>, Affinity>,
    /// The frontends of UDP sockets, by socket and backend.
    pub sockets: Table<SocketKey<A>, SocketFrontend<A>>,
}

impl Maps {
    /// Opens the maps pinned in a directory.
    pub fn open(directory: &Path, access: Access) -> Result<Self, OpenError> {
        Ok(Self {
            services: mapped(directory, "SERVICES", access)?,
            selection: mapped(directory, "SELECTION", access)?,
            agent: mapped(directory, "AGENT", access)?,
            of4: FamilyMaps {
                frontends: Table::open(directory, "FRONTENDS4")?,
                frontend_index: FrontendIndex::open(directory, "FRONTEND_INDEX4", access)?,
                backends: Vector::open(directory, "BACKENDS4")?,
                backend_connections: Vector::open(directory, "BACKEND_CONNECTIONS4")?,
                flows: Table::open(directory, "FLOWS4")?,
                flows_new: Table::open(directory, "FLOWS_NEW4")?,
                node_flows: Table::open(directory, "NODE_FLOWS4")?,
                source_ranges: Trie::open(directory, "SOURCE_RANGES4")?,
                affinity: Table::open(directory, "AFFINITY4")?,
                sockets: Table::open(directory, "SOCK_REV4")?,
            },
            of6: FamilyMaps {
                frontends: Table::open(directory, "FRONTENDS6")?,
                frontend_index: FrontendIndex::open(directory, "FRONTEND_INDEX6", access)?,
                backends: Vector::open(directory, "BACKENDS6")?,
                backend_connections: Vector::open(directory, "BACKEND_CONNECTIONS6")?,
                flows: Table::open(directory, "FLOWS6")?,
                flows_new: Table::open(directory, "FLOWS_NEW6")?,
                node_flows: Table::open(directory, "NODE_FLOWS6")?,
                source_ranges: Trie::open(directory, "SOURCE_RANGES6")?,
                affinity: Table::open(directory, "AFFINITY6")?,
                sockets: Table::open(directory, "SOCK_REV6")?,
            },
            ways: Vector::open(directory, "WAYS")?,
            narrowed: Vector::open(directory, "NARROWED")?,
            hints: Table::open(directory, "HINTS")?,
            peers: Table::open(directory, "PEERS")?,
            vips: Table::open(directory, "VIPS")?,
            address_filter: mapped(directory, "ADDRESS_FILTER", access)?,
            node_ports: mapped(directory, "NODE_PORTS", access)?,
            device_macs: match access {
                Access::Write => Some(mapped(directory, "DEVICE_MACS", access)?),
                Access::Read => None,
            },
            devices: Table::open(directory, "DEVICES")?,
            names: Table::open(directory, "NAMES")?,
            figures: Figures::open(directory)?,
            is_index_behind: true,
            lost_backend: false,
        })
    }
}

/// A hash map.
pub struct Table<K: Pod, V: Pod> {
    name: &'static str,
    entries: u32,
    map: HashMap<MapData, K, V>,
}

impl<K: Pod, V: Pod> Table<K, V> {
    /// Opens a pinned hash map.
    pub fn open(directory: &Path, name: &'static str) -> Result<Self, OpenError> {
        let failed = |error| OpenError::Map { map: name.to_owned(), error };
        let (map, info) = open(directory, name)?;
        let map = Map::from_map_data(map).and_then(HashMap::try_from).map_err(failed)?;
        Ok(Self { name, entries: info.max_entries(), map })
    }

    /// Name of the map.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Entries it has room for.
    #[must_use]
    pub const fn entries(&self) -> u32 {
        self.entries
    }

    /// Returns the value of a key.
    pub fn get(&self, key: &K) -> Result<Option<V>, MapError> {
        match self.map.get(key, 0) {
            Ok(value) => Ok(Some(value)),
            Err(MapError::KeyNotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes an entry.
    pub fn insert(&mut self, key: &K, value: &V) -> Result<(), String> {
        self.map.insert(key, value, 0).map_err(|error| self.explain(&error))
    }

    /// Writes an entry in the place of one with the same key. Fails if there is none.
    pub fn replace(&mut self, key: &K, value: &V) -> Result<(), String> {
        /// `linux/bpf.h`: only an entry that is there.
        const BPF_EXIST: u64 = 2;
        self.map.insert(key, value, BPF_EXIST).map_err(|error| self.explain(&error))
    }

    /// Removes an entry if it is there.
    pub fn remove(&mut self, key: &K) -> Result<(), String> {
        match self.map.remove(key) {
            Err(error) if errno(&error) != Some(libc::ENOENT) => Err(self.explain(&error)),
            _ => Ok(()),
        }
    }

    fn explain(&self, error: &MapError) -> String {
        explain(self.name, self.entries, error)
    }

    /// Calls `visit` for the entries until it returns false. Entries that are added or removed during the
    /// walk may be missed or seen twice.
    pub fn for_each(&self, mut visit: impl FnMut(K, V) -> bool) -> Result<(), OpenError>
    where
        K: Default,
        V: Default,
    {
        let mut batch = Batch::new();
        let mut cursor = None;
        loop {
            let (entries, next) = self.batch(cursor, &mut batch)?;
            for (key, value) in entries {
                if !visit(key, value) {
                    return Ok(());
                }
            }
            if next.is_none() {
                return Ok(());
            }
            cursor = next;
        }
    }

    /// Returns all entries.
    pub fn all(&self) -> Result<Vec<(K, V)>, OpenError>
    where
        K: Default,
        V: Default,
    {
        let mut all = Vec::new();
        self.for_each(|key, value| {
            all.push((key, value));
            true
        })?;
        Ok(all)
    }

    /// Reads a batch of entries from `cursor` or the start on. Returns the next cursor, `None` at the end.
    pub fn batch<'a>(
        &self,
        cursor: Option<Cursor>,
        batch: &'a mut Batch<K, V>,
    ) -> Result<(impl Iterator<Item = (K, V)> + use<'a, K, V>, Option<Cursor>), OpenError> {
        let (count, next) = sys::lookup_batch(self.fd(), cursor, &mut batch.keys, &mut batch.values)
            .map_err(|error| OpenError::MapIo { map: self.name, error })?;
        Ok((batch.keys.iter().copied().zip(batch.values.iter().copied()).take(count), next))
    }

    /// Reads the entries of some buckets, and estimates the number of all from them. The map must be one of type
    /// `hash`, whose buckets are a power of two. `seed` chooses the first bucket.
    pub fn sample<'a>(
        &self,
        seed: u32,
        batch: &'a mut Batch<K, V>,
    ) -> Result<(impl Iterator<Item = (K, V)> + use<'a, K, V>, u64), OpenError> {
        let buckets = self.entries.max(1).checked_next_power_of_two().unwrap_or(1 << 31);
        // Not in the last eighth, which may be few.
        let from = seed % (buckets - buckets / 8).max(1);
        let (count, next) =
            sys::lookup_batch(self.fd(), Some(Cursor::at(from)), &mut batch.keys, &mut batch.values)
                .map_err(|error| OpenError::MapIo { map: self.name, error })?;
        let visited = next.map_or(buckets, Cursor::bucket).saturating_sub(from).max(1);
        let all = count as u64 * u64::from(buckets) / u64::from(visited);
        Ok((batch.keys.iter().copied().zip(batch.values.iter().copied()).take(count), all))
    }

    /// Returns the number of entries, counted one by one.
    pub fn count(&self) -> Result<usize, OpenError>
    where
        K: Default,
        V: Default,
    {
        let mut count = 0;
        self.for_each(|_, _| {
            count += 1;
            true
        })?;
        Ok(count)
    }

    /// The map itself.
    pub fn data(&self) -> &MapData {
        self.map.map()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.data().fd().as_fd()
    }
}

/// A buffer for entries of a map.
#[derive(Debug)]
pub struct Batch<K, V> {
    keys: Vec<K>,
    values: Vec<V>,
}

impl<K: Clone + Default, V: Clone + Default> Batch<K, V> {
    /// The largest number of entries that a system call returns. A bucket of a hash map must fit.
    pub const ENTRIES: usize = 1024;

    /// Returns an empty batch.
    #[must_use]
    pub fn new() -> Self {
        Self { keys: vec![K::default(); Self::ENTRIES], values: vec![V::default(); Self::ENTRIES] }
    }
}

/// An array map.
pub struct Vector<V: Pod> {
    name: &'static str,
    map: Array<MapData, V>,
}

impl<V: Pod> Vector<V> {
    /// Opens a pinned array.
    pub fn open(directory: &Path, name: &'static str) -> Result<Self, OpenError> {
        let failed = |error| OpenError::Map { map: name.to_owned(), error };
        let (map, _) = open(directory, name)?;
        let map = Map::from_map_data(map).and_then(Array::try_from).map_err(failed)?;
        Ok(Self { name, map })
    }

    /// Name of the map.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the number of entries.
    #[must_use]
    pub fn entries(&self) -> u32 {
        self.map.len()
    }

    /// Returns an entry; `None` outside the array.
    #[must_use]
    pub fn get(&self, index: u32) -> Option<V> {
        self.map.get(&index, 0).ok()
    }

    /// Writes an entry.
    pub fn set(&mut self, index: u32, value: &V) -> Result<(), String> {
        self.map.set(index, value, 0).map_err(|error| format!("{}: {error}", self.name))
    }

    /// Returns all entries with their indexes.
    pub fn all(&self) -> Result<Vec<(u32, V)>, OpenError>
    where
        V: Default,
    {
        let mut batch: Batch<u32, V> = Batch::new();
        let mut all = Vec::new();
        let mut cursor: Option<Cursor> = None;
        loop {
            let fd = self.map.map().fd().as_fd();
            let (count, next) = sys::lookup_batch(fd, cursor, &mut batch.keys, &mut batch.values)
                .map_err(|error| OpenError::MapIo { map: self.name, error })?;
            all.extend(batch.keys.iter().copied().zip(batch.values.iter().copied()).take(count));
            if next.is_none() {
                return Ok(all);
            }
            cursor = next;
        }
    }
}

impl<K: Pod, V: Pod> fmt::Debug for Table<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("name", &self.name).finish_non_exhaustive()
    }
}

impl<V: Pod> fmt::Debug for Vector<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vector").field("name", &self.name).finish_non_exhaustive()
    }
}
