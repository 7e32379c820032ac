//! The look-ups of the programs, one by one, for a walk through the tables in user space.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use aya::Pod;
use aya::maps::MapError;
use ipnet::IpNet;
use nix::time::{ClockId, clock_gettime};
use proxy_common::affinity::{Affinity, AffinityKey};
use proxy_common::backend::Backend;
use proxy_common::config::{AGENT_HEARTBEAT, AGENT_NAMESPACE, PORT_GROUP, seconds};
use proxy_common::flow::{Flow, FlowKey};
use proxy_common::frontend::{Frontend, FrontendKey};
use proxy_common::hop::{Device, Hop};
use proxy_common::selection::{HintKey, ServiceEntry, Slot};
use proxy_common::vip::VipKey;
use proxy_common::way::{PeerKey, Way};
use proxy_common::{Addr4, Addr6, Address};

use super::services::ServiceText;
use super::{PinnedMaps, ReadError};
use crate::dataplane::ebpf::error::OpenError;
use crate::dataplane::ebpf::maps::{FamilyMaps, Maps, Table, Vector};
use crate::dataplane::ebpf::node_programs::{NodeConstants, constants_in, directory};

/// The tables of one family as the programs read them.
///
/// Addresses and ports are in network byte order.
pub trait Tables<A: Address> {
    /// Returns the load-time constants of the programs.
    fn constants(&self) -> &NodeConstants;
    /// Returns the second on the programs' clock.
    fn now(&self) -> u32;
    /// Returns the millisecond on the programs' clock, wrapped around.
    fn milliseconds(&self) -> u32;
    /// Returns the second of the agent's last heartbeat.
    fn heartbeat(&self) -> u32;
    /// Returns the cookie of the node's own network namespace.
    fn node_namespace(&self) -> u64;
    /// Returns a word of ADDRESS_FILTER.
    fn filter_word(&self, index: u32) -> u64;
    /// Returns a word of NODE_PORTS.
    fn node_ports_word(&self, index: u32) -> u64;
    /// Whether SERVED_PORTS has a port.
    fn has_served(&self, port: u16) -> bool;
    /// Returns the `VIP_*` bits of an address.
    fn vip(&self, key: &VipKey) -> Option<u32>;
    /// Returns the PEERS value of an address.
    fn peer(&self, key: &PeerKey) -> Option<u32>;
    /// Returns a frontend.
    fn frontend(&self, key: &FrontendKey<A>) -> Option<Frontend>;
    /// Returns all frontends at an address.
    fn frontends_at(&self, address: &A) -> Vec<(FrontendKey<A>, Frontend)>;
    /// Returns a word of SERVICES; `None` outside the array.
    fn service(&self, id: u32) -> Option<ServiceEntry>;
    /// Returns a word of SELECTION.
    fn slot(&self, index: u32) -> Slot;
    /// Returns the entry of a backend's id, whatever its generation.
    fn backend_at(&self, id: u32) -> Option<Backend<A>>;
    /// Whether a prefix of a Service, or of the cluster itself, has an address.
    fn is_inside(&self, service: u32, address: &A) -> bool;
    /// Returns the prefixes of a Service.
    fn ranges(&self, service: u32) -> Vec<IpNet>;
    /// Returns an entry of FLOWS.
    fn flow(&self, key: &FlowKey<A>) -> Option<Flow<A>>;
    /// Returns an entry of FLOWS_NEW.
    fn new_flow(&self, key: &FlowKey<A>) -> Option<Flow<A>>;
    /// Returns an entry of NODE_FLOWS.
    fn node_flow(&self, key: &FlowKey<A>) -> Option<u32>;
    /// Returns the affinity of a client.
    fn affinity(&self, key: &AffinityKey<A>) -> Option<Affinity>;
    /// Returns an entry of HINTS.
    fn hint(&self, key: &HintKey) -> Option<u32>;
    /// Returns an entry of WAYS.
    fn way(&self, id: u32) -> Option<Way>;
    /// Returns an entry of NARROWED.
    fn narrowed(&self, id: u32) -> u64;
    /// Returns an entry of HOPS.
    fn hop(&self, id: u32) -> Option<Hop<A>>;
    /// Whether DEVICES has a device.
    fn device(&self, index: u32) -> Option<Device>;
    /// Returns an entry of SNAT_FULL.
    fn snat_full(&self, index: u32) -> u64;
    /// Returns the name of a Service port, as `namespace/name:port`.
    fn label(&self, service: u32) -> Option<String>;
    /// Returns the name of a Service port's list: `Cluster` or `Local`.
    fn list(&self, service: u32) -> Option<String>;
}

/// The pinned maps that the walk reads beside those that are always opened, and the names.
pub struct Lookups<'a> {
    maps: &'a PinnedMaps,
    constants: NodeConstants,
    names: BTreeMap<u32, ServiceText>,
    hops4: Vector<Hop<Addr4>>,
    hops6: Vector<Hop<Addr6>>,
    snat_full: Vector<u64>,
    served_ports: Vector<[u8; PORT_GROUP as usize]>,
    failure: RefCell<Option<OpenError>>,
}

impl std::fmt::Debug for Lookups<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lookups").finish_non_exhaustive()
    }
}

impl PinnedMaps {
    /// Opens the tables for look-ups. `None` without programs: no agent has served by eBPF here.
    pub fn lookups(&self) -> Result<Option<Lookups<'_>>, ReadError> {
        let Some(programs) = directory(&self.layout)? else { return Ok(None) };
        let maps = self.layout.maps();
        Ok(Some(Lookups {
            constants: constants_in(&programs)?,
            names: self.names()?,
            hops4: Vector::open(&maps, "HOPS4")?,
            hops6: Vector::open(&maps, "HOPS6")?,
            snat_full: Vector::open(&maps, "SNAT_FULL")?,
            served_ports: Vector::open(&maps, "SERVED_PORTS")?,
            failure: RefCell::default(),
            maps: self,
        }))
    }
}

impl Lookups<'_> {
    /// Returns the IPv4 tables.
    #[must_use]
    pub fn v4(&self) -> FamilyTables<'_, Addr4> {
        FamilyTables { all: self, family: &self.maps.maps.of4, hops: &self.hops4 }
    }

    /// Returns the IPv6 tables.
    #[must_use]
    pub fn v6(&self) -> FamilyTables<'_, Addr6> {
        FamilyTables { all: self, family: &self.maps.maps.of6, hops: &self.hops6 }
    }

    /// Returns the first failure of a look-up since the last call. The look-up found nothing.
    pub fn take_failure(&self) -> Result<(), ReadError> {
        self.failure.borrow_mut().take().map_or(Ok(()), |error| Err(error.into()))
    }

    fn maps(&self) -> &Maps {
        &self.maps.maps
    }

    fn found<K: Pod, V: Pod>(&self, table: &Table<K, V>, key: &K) -> Option<V> {
        let failed = |error: MapError| OpenError::Map { map: table.name().to_owned(), error };
        self.checked(table.get(key).map_err(failed)).flatten()
    }

    fn checked<T>(&self, result: Result<T, OpenError>) -> Option<T> {
        result.map_err(|error| self.failure.borrow_mut().get_or_insert(error).to_string()).ok()
    }
}

/// The tables of one family.
pub struct FamilyTables<'a, A: Address> {
    all: &'a Lookups<'a>,
    family: &'a FamilyMaps<A>,
    hops: &'a Vector<Hop<A>>,
}

impl<A: Address> std::fmt::Debug for FamilyTables<'_, A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FamilyTables").finish_non_exhaustive()
    }
}

/// Returns the time on the programs' clock.
fn programs_clock() -> Duration {
    clock_gettime(ClockId::CLOCK_MONOTONIC_COARSE).map_or(Duration::ZERO, Duration::from)
}

impl<A: Address> Tables<A> for FamilyTables<'_, A> {
    fn constants(&self) -> &NodeConstants {
        &self.all.constants
    }
    fn now(&self) -> u32 {
        seconds(u64::try_from(programs_clock().as_nanos()).unwrap_or(u64::MAX))
    }
    fn milliseconds(&self) -> u32 {
        programs_clock().as_millis() as u32
    }
    fn heartbeat(&self) -> u32 {
        (self.all.maps().agent.load(AGENT_HEARTBEAT) & u64::from(u32::MAX)) as u32
    }
    fn node_namespace(&self) -> u64 {
        self.all.maps().agent.load(AGENT_NAMESPACE)
    }
    fn filter_word(&self, index: u32) -> u64 {
        self.all.maps().address_filter.load(index)
    }
    fn node_ports_word(&self, index: u32) -> u64 {
        self.all.maps().node_ports.load(index)
    }
    fn has_served(&self, port: u16) -> bool {
        let (group, member) = (u32::from(port) / PORT_GROUP, usize::from(port) % PORT_GROUP as usize);
        let ports = self.all.served_ports.get(group).unwrap_or([0; PORT_GROUP as usize]);
        ports.get(member).is_some_and(|served| *served != 0)
    }
    fn vip(&self, key: &VipKey) -> Option<u32> {
        self.all.found(&self.all.maps().vips, key)
    }
    fn peer(&self, key: &PeerKey) -> Option<u32> {
        self.all.found(&self.all.maps().peers, key)
    }
    fn frontend(&self, key: &FrontendKey<A>) -> Option<Frontend> {
        self.all.found(&self.family.frontends, key)
    }
    fn frontends_at(&self, address: &A) -> Vec<(FrontendKey<A>, Frontend)> {
        let mut found = Vec::new();
        let read = self.family.frontends.for_each(|key, frontend| {
            if key.address == *address {
                found.push((key, frontend));
            }
            true
        });
        self.all.checked(read);
        found
    }
    fn service(&self, id: u32) -> Option<ServiceEntry> {
        let services = &self.all.maps().services;
        (id < services.len()).then(|| ServiceEntry(services.load(id)))
    }
    fn slot(&self, index: u32) -> Slot {
        Slot(self.all.maps().selection.load(index))
    }
    fn backend_at(&self, id: u32) -> Option<Backend<A>> {
        self.family.backends.get(id)
    }
    fn is_inside(&self, service: u32, address: &A) -> bool {
        self.all.checked(self.family.source_ranges.has(service, *address)).unwrap_or(false)
    }
    fn ranges(&self, service: u32) -> Vec<IpNet> {
        let ranges = self.all.checked(self.family.source_ranges.all()).unwrap_or_default();
        let mut nets: Vec<IpNet> =
            ranges.into_iter().filter(|range| range.service == service).map(|range| range.net).collect();
        nets.sort_unstable();
        nets
    }
    fn flow(&self, key: &FlowKey<A>) -> Option<Flow<A>> {
        self.all.found(&self.family.flows, key)
    }
    fn new_flow(&self, key: &FlowKey<A>) -> Option<Flow<A>> {
        self.all.found(&self.family.flows_new, key)
    }
    fn node_flow(&self, key: &FlowKey<A>) -> Option<u32> {
        self.all.found(&self.family.node_flows, key)
    }
    fn affinity(&self, key: &AffinityKey<A>) -> Option<Affinity> {
        self.all.found(&self.family.affinity, key)
    }
    fn hint(&self, key: &HintKey) -> Option<u32> {
        self.all.found(&self.all.maps().hints, key)
    }
    fn way(&self, id: u32) -> Option<Way> {
        self.all.maps().ways.get(id)
    }
    fn narrowed(&self, id: u32) -> u64 {
        self.all.maps().narrowed.get(id).unwrap_or(0)
    }
    fn hop(&self, id: u32) -> Option<Hop<A>> {
        self.hops.get(id)
    }
    fn device(&self, index: u32) -> Option<Device> {
        self.all.found(&self.all.maps().devices, &index)
    }
    fn snat_full(&self, index: u32) -> u64 {
        self.all.snat_full.get(index).unwrap_or(0)
    }
    fn label(&self, service: u32) -> Option<String> {
        self.all.names.get(&service).map(ServiceText::label)
    }
    fn list(&self, service: u32) -> Option<String> {
        self.all.names.get(&service).map(|text| text.list.clone())
    }
}
