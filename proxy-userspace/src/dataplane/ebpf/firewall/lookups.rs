//! The look-ups of the firewall's programs, one by one, for a walk through its tables in user space.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::IpAddr;

use aya::maps::lpm_trie::Key;
use aya::maps::{Array, HashMap, LpmTrie, MapData, MapError};
use proxy_common::policy::{
    POLICY_FLAGS, POLICY_GENERATION, POLICY_OPEN_UNKNOWN, PolicyDirection, PolicyFlow, PolicyFlowKey,
    PolicyName, PolicyPod, PolicyRule, RULE_EXACT,
};
use proxy_common::{Addr4, Addr6, Address};

use super::links::attached;
use super::maps::{addresses_of, typed};
use super::names::PodNames;
use super::owners::OwnersReader;
use super::read::PinnedFirewall;
use super::side::Side;
use crate::dataplane::ebpf::error::OpenError;
use crate::dataplane::ebpf::map::errno;
use crate::dataplane::ebpf::read::{ReadError, monotonic_seconds};
use crate::node::device_name;

/// The firewall's tables of one family as its programs read them. Addresses and ports are in network byte order.
pub trait PolicyTables<A: Address> {
    /// Returns the second on the programs' clock.
    fn now(&self) -> u32;
    /// Returns the number of the present tables.
    fn generation(&self) -> u32;
    /// Whether devices whose pod is not known are open: the cluster has no policy.
    fn is_open_to_unknown(&self) -> bool;
    /// Returns the pod behind a device.
    fn pod(&self, device: u32) -> Option<PolicyPod>;
    /// Returns the value of POLICY_PEERS4/6 for an address; 0 without an entry.
    fn peer(&self, address: &A) -> u32;
    /// Whether POLICY_RULES has a prefix of a rule.
    fn has_rule(&self, rule: &PolicyRule) -> bool;
    /// Returns an entry of POLICY_FLOWS4/6.
    fn flow(&self, key: &PolicyFlowKey<A>) -> Option<PolicyFlow>;
    /// Returns the names of the pod behind a device.
    fn names(&self, device: u32) -> Option<PodNames>;
    /// Returns the device of the pod of this node with an address.
    fn device_of(&self, address: IpAddr) -> Option<u32>;
    /// Returns the pod of any node with an address, as `namespace/name`.
    fn owner(&self, address: IpAddr) -> Option<String>;
}

/// The pinned maps that a walk reads, and the devices that have programs.
pub struct PolicyLookups {
    config: Array<MapData, u32>,
    pods: HashMap<MapData, u32, PolicyPod>,
    names: HashMap<MapData, u32, PolicyName>,
    owners: OwnersReader,
    rules: LpmTrie<MapData, PolicyRule, u32>,
    peers4: LpmTrie<MapData, [u32; 1], u32>,
    peers6: LpmTrie<MapData, [u32; 4], u32>,
    flows4: HashMap<MapData, PolicyFlowKey<Addr4>, PolicyFlow>,
    flows6: HashMap<MapData, PolicyFlowKey<Addr6>, PolicyFlow>,
    attached: BTreeSet<(Side, u32)>,
    failure: RefCell<Option<OpenError>>,
}

impl std::fmt::Debug for PolicyLookups {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PolicyLookups").finish_non_exhaustive()
    }
}

impl PinnedFirewall {
    /// Opens the tables for look-ups.
    pub fn lookups(&self) -> Result<PolicyLookups, ReadError> {
        self.open_lookups().map_err(|error| self.explain(error))
    }

    fn open_lookups(&self) -> Result<PolicyLookups, OpenError> {
        let maps = self.maps();
        Ok(PolicyLookups {
            config: typed(&maps, "POLICY_CONFIG")?,
            pods: typed(&maps, "POLICY_PODS")?,
            names: typed(&maps, "POLICY_NAMES")?,
            owners: OwnersReader::open(&maps)?,
            rules: typed(&maps, "POLICY_RULES")?,
            peers4: typed(&maps, "POLICY_PEERS4")?,
            peers6: typed(&maps, "POLICY_PEERS6")?,
            flows4: typed(&maps, "POLICY_FLOWS4")?,
            flows6: typed(&maps, "POLICY_FLOWS6")?,
            attached: attached(&self.links())?.into_iter().collect(),
            failure: RefCell::new(None),
        })
    }
}

impl PolicyLookups {
    /// Returns the IPv4 tables.
    #[must_use]
    pub const fn v4(&self) -> PolicyFamily<'_, Addr4> {
        PolicyFamily { all: self, flows: &self.flows4 }
    }

    /// Returns the IPv6 tables.
    #[must_use]
    pub const fn v6(&self) -> PolicyFamily<'_, Addr6> {
        PolicyFamily { all: self, flows: &self.flows6 }
    }

    /// Returns the name of a device; its index if it is gone.
    #[must_use]
    pub fn device_name(device: u32) -> String {
        device_name(device).unwrap_or_else(|| format!("device {device}"))
    }

    /// Returns the name of the program of a direction.
    #[must_use]
    pub const fn program(direction: PolicyDirection) -> &'static str {
        Side::of(direction).program()
    }

    /// Whether a device has the program of a direction.
    #[must_use]
    pub fn is_guarded(&self, device: u32, direction: PolicyDirection) -> bool {
        self.attached.contains(&(Side::of(direction), device))
    }

    /// Returns the devices with programs whose pod is not known.
    pub fn unknown_devices(&self) -> Result<BTreeSet<u32>, ReadError> {
        let devices = self.attached.iter().map(|(_, device)| *device);
        let unknown = devices.filter(|device| self.pod(*device).is_none()).collect();
        self.take_failure()?;
        Ok(unknown)
    }

    /// Returns the first failure of a look-up since the last call. The look-up found nothing.
    pub fn take_failure(&self) -> Result<(), ReadError> {
        self.failure.borrow_mut().take().map_or(Ok(()), |error| Err(error.into()))
    }

    fn pod(&self, device: u32) -> Option<PolicyPod> {
        self.found("POLICY_PODS", self.pods.get(&device, 0))
    }

    fn peer(&self, address: IpAddr) -> u32 {
        let value = match address {
            IpAddr::V4(address) => self.peers4.get(&Key::new(32, Addr4::from(address).0), 0),
            IpAddr::V6(address) => self.peers6.get(&Key::new(128, Addr6::from(address).0), 0),
        };
        self.found("POLICY_PEERS", value).unwrap_or(0)
    }

    fn config(&self, word: u32) -> u32 {
        self.found("POLICY_CONFIG", self.config.get(&word, 0)).unwrap_or(0)
    }

    fn found<T>(&self, map: &str, result: Result<T, MapError>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(MapError::KeyNotFound) => None,
            Err(error) if errno(&error) == Some(libc::ENOENT) => None,
            Err(error) => {
                self.failure.borrow_mut().get_or_insert(OpenError::Map { map: map.to_owned(), error });
                None
            }
        }
    }
}

/// The tables of one family.
pub struct PolicyFamily<'a, A: Address> {
    all: &'a PolicyLookups,
    flows: &'a HashMap<MapData, PolicyFlowKey<A>, PolicyFlow>,
}

impl<A: Address> std::fmt::Debug for PolicyFamily<'_, A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PolicyFamily").finish_non_exhaustive()
    }
}

impl<A: Address> PolicyTables<A> for PolicyFamily<'_, A>
where
    PolicyFlowKey<A>: aya::Pod,
{
    fn now(&self) -> u32 {
        monotonic_seconds()
    }

    fn generation(&self) -> u32 {
        self.all.config(POLICY_GENERATION)
    }

    fn is_open_to_unknown(&self) -> bool {
        self.all.config(POLICY_FLAGS) & POLICY_OPEN_UNKNOWN != 0
    }

    fn pod(&self, device: u32) -> Option<PolicyPod> {
        self.all.pod(device)
    }

    fn peer(&self, address: &A) -> u32 {
        self.all.peer(address.to_ip())
    }

    fn has_rule(&self, rule: &PolicyRule) -> bool {
        self.all.found("POLICY_RULES", self.all.rules.get(&Key::new(RULE_EXACT, *rule), 0)).is_some()
    }

    fn flow(&self, key: &PolicyFlowKey<A>) -> Option<PolicyFlow> {
        self.all.found("POLICY_FLOWS", self.flows.get(key, 0))
    }

    fn names(&self, device: u32) -> Option<PodNames> {
        PodNames::decode(&self.all.found("POLICY_NAMES", self.all.names.get(&device, 0))?)
    }

    fn device_of(&self, address: IpAddr) -> Option<u32> {
        // An entry that goes while the map is read may hide others; the caller asks again where the engines differ.
        let mut pods = self.all.pods.iter().filter_map(|entry| self.all.found("POLICY_PODS", entry));
        pods.find(|(_, pod)| addresses_of(pod).any(|own| own == address)).map(|(device, _)| device)
    }

    fn owner(&self, address: IpAddr) -> Option<String> {
        match self.all.owners.find(address) {
            Ok(owner) => owner.map(|owner| owner.name),
            Err(error) => {
                self.all.failure.borrow_mut().get_or_insert(error);
                None
            }
        }
    }
}
