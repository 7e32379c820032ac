//! The maps of the firewall.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;

use aya::maps::lpm_trie::Key;
use aya::maps::{Array, HashMap, LpmTrie, Map, MapData, MapError, PerCpuArray};
use ipnet::IpNet;
use proxy_common::policy::{
    NOT_ISOLATED, POLICY_FLAGS, POLICY_GENERATION, POLICY_LAST_EPOCH, PolicyDirection, PolicyDrop, PolicyPod,
    PolicyRule, RULE_ANY_PORT, RULE_ANY_PROTOCOL, allowed_counter, guarded_place,
};
use proxy_common::verdict::Counter;
use proxy_common::{Addr4, Addr6, Address};

use super::plan::{Op, Tables};
use crate::dataplane::ebpf::error::OpenError;
use crate::dataplane::ebpf::map::{errno, explain, open};
use crate::policy::RuleKey;

/// The names of all maps, and the size of those whose size is not the object's. A trie takes memory as its entries come.
pub(super) const MAPS: [(&str, Option<u32>); 15] = [
    ("POLICY_CONFIG", None),
    ("POLICY_PODS", None),
    (GUARDED, None),
    ("POLICY_NAMES", None),
    ("POLICY_OWNERS", None),
    (PEERS4, Some(PEERS_ENTRIES)),
    (PEERS6, Some(PEERS_ENTRIES)),
    (RULES, Some(RULES_ENTRIES)),
    ("POLICY_FLOWS4", None),
    ("POLICY_FLOWS6", None),
    ("POLICY_FRAGMENTS4", None),
    ("POLICY_FRAGMENTS6", None),
    (COUNTERS, None),
    ("POLICY_EVENTS", None),
    ("POLICY_RECORDING", None),
];
const GUARDED: &str = "POLICY_GUARDED";
const PEERS4: &str = "POLICY_PEERS4";
const PEERS6: &str = "POLICY_PEERS6";
const RULES: &str = "POLICY_RULES";
pub(super) const COUNTERS: &str = "POLICY_COUNTERS";
const PEERS_ENTRIES: u32 = 1 << 20;
const RULES_ENTRIES: u32 = 1 << 22;

/// The maps that the agent writes.
pub struct Maps {
    config: Array<MapData, u32>,
    pods: HashMap<MapData, u32, PolicyPod>,
    guarded: Array<MapData, u64>,
    peers4: LpmTrie<MapData, [u32; 1], u32>,
    peers6: LpmTrie<MapData, [u32; 4], u32>,
    rules: LpmTrie<MapData, PolicyRule, u32>,
}

impl std::fmt::Debug for Maps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Maps").finish_non_exhaustive()
    }
}

impl Maps {
    /// Opens the pinned maps.
    pub fn open(directory: &Path) -> Result<Self, OpenError> {
        Ok(Self {
            config: typed(directory, "POLICY_CONFIG")?,
            pods: typed(directory, "POLICY_PODS")?,
            guarded: typed(directory, GUARDED)?,
            peers4: typed(directory, PEERS4)?,
            peers6: typed(directory, PEERS6)?,
            rules: typed(directory, RULES)?,
        })
    }

    /// Reads what the maps hold.
    pub fn read(&self) -> Result<Tables, OpenError> {
        let failed = |map: &str| {
            let map = map.to_owned();
            move |error| OpenError::Map { map, error }
        };
        let mut tables = Tables { flags: self.word(POLICY_FLAGS)?, ..Tables::default() };
        for entry in &self.pods {
            let (device, pod) = entry.map_err(failed("POLICY_PODS"))?;
            tables.pods.insert(device, pod);
        }
        for entry in &self.peers4 {
            let (key, value) = entry.map_err(failed(PEERS4))?;
            tables.peers.extend(net(Addr4(key.data()), key.prefix_len()).map(|net| (net, value)));
        }
        for entry in &self.peers6 {
            let (key, value) = entry.map_err(failed(PEERS6))?;
            tables.peers.extend(net(Addr6(key.data()), key.prefix_len()).map(|net| (net, value)));
        }
        for key in self.rules.keys() {
            let key = key.map_err(failed(RULES))?;
            tables.rules.extend(rule_of(&key));
        }
        Ok(tables)
    }

    /// Returns the last epoch that was given.
    pub fn last_epoch(&self) -> Result<u32, OpenError> {
        self.word(POLICY_LAST_EPOCH)
    }

    /// Stores the last epoch that was given.
    pub fn set_last_epoch(&mut self, epoch: u32) -> Result<(), String> {
        self.set_word(POLICY_LAST_EPOCH, epoch)
    }

    /// Carries out a change.
    pub fn apply(&mut self, op: Op) -> Result<(), String> {
        match op {
            Op::Rule(key) => self.rules.insert(&rule_key(&key), 1, 0).map_err(|error| full(RULES, &error)),
            Op::NoRule(key) => gone(RULES, self.rules.remove(&rule_key(&key))),
            Op::Peer(IpNet::V4(net), value) => {
                let written = self.peers4.insert(&key4(net), value, 0);
                written.map_err(|error| full(PEERS4, &error))
            }
            Op::Peer(IpNet::V6(net), value) => {
                let written = self.peers6.insert(&key6(net), value, 0);
                written.map_err(|error| full(PEERS6, &error))
            }
            Op::NoPeer(IpNet::V4(net)) => gone(PEERS4, self.peers4.remove(&key4(net))),
            Op::NoPeer(IpNet::V6(net)) => gone(PEERS6, self.peers6.remove(&key6(net))),
            Op::Pod(device, pod) => {
                self.hint(device, pod.ingress != NOT_ISOLATED || pod.egress != NOT_ISOLATED)?;
                self.pods.insert(device, pod, 0).map_err(|error| full("POLICY_PODS", &error))
            }
            Op::NoPod(device) => gone("POLICY_PODS", self.pods.remove(&device)),
            Op::Flags(flags) => self.set_word(POLICY_FLAGS, flags),
            Op::Generation => {
                let generation = self.word(POLICY_GENERATION).map_err(|error| error.to_string())?;
                self.set_word(POLICY_GENERATION, generation.wrapping_add(1))
            }
        }
    }

    /// Says whether policies isolate the pod of a device. Another device may share the bit.
    fn hint(&mut self, device: u32, is_isolated: bool) -> Result<(), String> {
        let (word, bit) = guarded_place(device);
        let failed = |error: MapError| format!("{GUARDED}: {error}");
        let bits = self.guarded.get(&word, 0).map_err(failed)?;
        let bits = if is_isolated { bits | bit } else { bits & !bit };
        self.guarded.set(word, bits, 0).map_err(failed)
    }

    fn word(&self, index: u32) -> Result<u32, OpenError> {
        let failed = |error| OpenError::Map { map: "POLICY_CONFIG".to_owned(), error };
        self.config.get(&index, 0).map_err(failed)
    }

    fn set_word(&mut self, index: u32, word: u32) -> Result<(), String> {
        self.config.set(index, word, 0).map_err(|error| format!("POLICY_CONFIG: {error}"))
    }
}

/// Packets that the firewall judged, by direction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Judged {
    /// New connections, and packets that belong to none, that were allowed.
    pub allowed: BTreeMap<PolicyDirection, Counter>,
    /// Packets that were dropped.
    pub dropped: BTreeMap<(PolicyDirection, PolicyDrop), Counter>,
}

/// Reads the counters.
pub fn read_counters(directory: &Path) -> Result<Judged, OpenError> {
    let counters: PerCpuArray<MapData, Counter> = typed(directory, COUNTERS)?;
    let sum = |index: u32| -> Result<Counter, OpenError> {
        let values =
            counters.get(&index, 0).map_err(|error| OpenError::Map { map: COUNTERS.to_owned(), error })?;
        let add = |sum: Counter, one: &Counter| Counter {
            packets: sum.packets + one.packets,
            bytes: sum.bytes + one.bytes,
        };
        Ok(values.iter().fold(Counter::default(), add))
    };
    let mut judged = Judged::default();
    for direction in PolicyDirection::ALL {
        judged.allowed.insert(direction, sum(allowed_counter(direction))?);
        for reason in PolicyDrop::ALL {
            judged.dropped.insert((direction, reason), sum(reason.counter(direction))?);
        }
    }
    Ok(judged)
}

/// Opens a pinned map.
pub(super) fn typed<T: TryFrom<Map, Error = MapError>>(
    directory: &Path,
    name: &'static str,
) -> Result<T, OpenError> {
    let (map, _) = open(directory, name)?;
    let map = Map::from_map_data(map).and_then(T::try_from);
    map.map_err(|error| OpenError::Map { map: name.to_owned(), error })
}

fn full(name: &str, error: &MapError) -> String {
    let entries = match name {
        RULES => RULES_ENTRIES,
        PEERS4 | PEERS6 => PEERS_ENTRIES,
        _ => proxy_common::policy::POLICY_PODS_ENTRIES,
    };
    explain(name, entries, error)
}

/// An entry that is gone already is no failure.
pub(super) fn gone(name: &str, result: Result<(), MapError>) -> Result<(), String> {
    match result {
        Err(MapError::KeyNotFound) => Ok(()),
        Err(error) if errno(&error) == Some(libc::ENOENT) => Ok(()),
        result => result.map_err(|error| format!("{name}: {error}")),
    }
}

fn key4(net: ipnet::Ipv4Net) -> Key<[u32; 1]> {
    Key::new(net.prefix_len().into(), Addr4::from(net.network()).0)
}

fn key6(net: ipnet::Ipv6Net) -> Key<[u32; 4]> {
    Key::new(net.prefix_len().into(), Addr6::from(net.network()).0)
}

fn net<A: Address>(address: A, length: u32) -> Option<IpNet> {
    IpNet::new(address.to_ip(), u8::try_from(length).ok()?).ok()
}

/// The bits of [`RuleKey`] are those of the map, except for eight unused ones in front of the port.
const UNUSED_BITS: u32 = RULE_ANY_PORT - RuleKey::ANY_PORT as u32;
const _: () = assert!(RULE_ANY_PROTOCOL == RuleKey::ANY_PROTOCOL as u32);

fn rule_key(key: &RuleKey) -> Key<PolicyRule> {
    let length = u32::from(key.length);
    let unused = if length > RULE_ANY_PROTOCOL { UNUSED_BITS } else { 0 };
    let rule = PolicyRule {
        profile: key.profile.to_be(),
        class: key.class.to_be(),
        protocol: key.protocol,
        reserved: 0,
        port: key.port.to_be(),
    };
    Key::new(length + unused, rule)
}

/// The inverse of [`rule_key`]. A key that this agent would not write is none: no program finds it by a packet of its own.
fn rule_of(key: &Key<PolicyRule>) -> Option<RuleKey> {
    let (length, rule) = (key.prefix_len(), key.data());
    let unused = if length > RULE_ANY_PROTOCOL { UNUSED_BITS } else { 0 };
    Some(RuleKey {
        profile: u32::from_be(rule.profile),
        class: u32::from_be(rule.class),
        protocol: rule.protocol,
        port: u16::from_be(rule.port),
        length: u8::try_from(length.checked_sub(unused)?).ok()?,
    })
}

/// Returns a pod's addresses as they stand in POLICY_PODS.
pub fn addresses_of(pod: &PolicyPod) -> impl Iterator<Item = std::net::IpAddr> {
    let (v4, v6) = (Addr4(pod.address4).to_ip(), Addr6(pod.address6).to_ip());
    [v4, v6]
        .into_iter()
        .filter(|address| *address != Ipv4Addr::UNSPECIFIED && *address != Ipv6Addr::UNSPECIFIED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_rules_survive_the_round_trip_with_the_prefix_that_the_programs_look_up() {
        for (length, bits) in [(64, 64), (72, 80), (80, 88), (88, 96)] {
            let key = RuleKey { profile: 7, class: 9, protocol: 6, port: 0x1f90, length };
            let written = rule_key(&key);
            assert_eq!((written.prefix_len(), { written.data() }.port), (bits, 0x1f90_u16.to_be()));
            assert_eq!(rule_of(&written), Some(key));
        }
    }
}
