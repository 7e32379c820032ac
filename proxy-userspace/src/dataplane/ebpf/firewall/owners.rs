//! The pods of all nodes by their addresses, for people: POLICY_OWNERS.
//!
//! No program reads it. Commands read it while no agent runs.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;

use aya::maps::{HashMap, MapData, MapError};
use proxy_common::addr::{mapped, unmapped};
use proxy_common::policy::{POLICY_OWNER_BYTES, POLICY_OWNERS_ENTRIES, PolicyOwner};
use tracing::{debug, warn};

use super::maps::{gone, typed};
use crate::dataplane::ebpf::error::OpenError;
use crate::dataplane::ebpf::map::{errno, explain};
use crate::dataplane::ebpf::now;
use crate::policy::{Compiled, Index, NamespacedName, Step};

const OWNERS: &str = "POLICY_OWNERS";

type OwnersMap = HashMap<MapData, [u32; 4], PolicyOwner>;

/// The pod that has an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerView {
    /// `namespace/name`.
    pub name: String,
    /// Monotonic nanoseconds since when the pod is known to have it.
    pub since: u64,
}

/// The map, as the agent writes it.
pub struct Owners {
    map: OwnersMap,
    /// What the map holds.
    held: BTreeMap<IpAddr, String>,
    /// Whether the map holds all that it should, so that a step is enough.
    is_whole: bool,
    /// The failure that was told last.
    told: Option<String>,
}

impl std::fmt::Debug for Owners {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Owners").field("addresses", &self.held.len()).finish_non_exhaustive()
    }
}

impl Owners {
    /// Opens the pinned map. If it can't be read, all names are written anew.
    pub fn open(directory: &Path) -> Result<Self, OpenError> {
        let map: OwnersMap = typed(directory, OWNERS)?;
        let name = |owner: PolicyOwner| owner.text().unwrap_or_default().to_owned();
        let entries = map.iter().map(|entry| entry.map(|(key, owner)| (unmapped(key), name(owner))));
        let held = entries.collect::<Result<_, _>>().unwrap_or_else(|error| {
            debug!(%error, map = OWNERS, "reading failed");
            BTreeMap::new()
        });
        Ok(Self { map, held, is_whole: false, told: None })
    }

    /// Writes the pods of all addresses, or of those that a step has changed. Returns the number of writes.
    ///
    /// The firewall works without names, so a failure is told and no more.
    pub fn write(&mut self, index: &Index, tables: &Compiled, step: Option<&Step>) -> usize {
        let changes = match step.filter(|_| self.is_whole) {
            Some(step) => changes_of_step(&self.held, index, step),
            None => changes(&self.held, index, &own_addresses(tables)),
        };
        let (writes, outcome) = self.carry_out(changes);
        // What is left out of a full map comes with the next of all addresses.
        self.is_whole = outcome.as_ref().err().is_none_or(|failure| failure.is_full);
        let failure = outcome.err().map(|failure| failure.text);
        if let Some(text) = failure.as_ref().filter(|text| self.told.as_ref() != Some(text)) {
            warn!(failure = text, "dropped packets show some pods by their addresses");
        }
        // A step tries few addresses, so its success proves no room.
        if failure.is_some() || step.is_none() {
            self.told = failure;
        }
        writes
    }

    fn carry_out(&mut self, changes: Vec<Change>) -> (usize, Result<(), Failure>) {
        let mut writes = 0;
        // Those that go make room.
        let (over, new): (Vec<_>, Vec<_>) = changes.into_iter().partition(|(_, name)| name.is_none());
        for (address, _) in over {
            if let Err(text) = gone(OWNERS, self.map.remove(&mapped(address))) {
                return (writes, Err(Failure { text, is_full: false }));
            }
            self.held.remove(&address);
            writes += 1;
        }
        for (address, name) in new.into_iter().filter_map(|(address, name)| Some((address, name?))) {
            let mut owner = PolicyOwner::new(&name).unwrap_or_default();
            owner.since = u64::try_from(now().as_nanos()).unwrap_or(u64::MAX);
            if let Err(error) = self.map.insert(mapped(address), owner, 0) {
                let text = explain(OWNERS, POLICY_OWNERS_ENTRIES, &error);
                return (writes, Err(Failure { text, is_full: errno(&error) == Some(libc::E2BIG) }));
            }
            self.held.insert(address, name);
            writes += 1;
        }
        (writes, Ok(()))
    }
}

/// Why a name could not be written.
struct Failure {
    text: String,
    is_full: bool,
}

/// An address, and the name of its pod. Without a name its entry goes.
type Change = (IpAddr, Option<String>);

/// Returns the entries that differ. The node's own addresses are those of no pod.
///
/// A change of a policy comes here, and changes nothing. So what is as it was costs a look-up, and no copy.
fn changes(held: &BTreeMap<IpAddr, String>, index: &Index, own: &BTreeSet<IpAddr>) -> Vec<Change> {
    let is_over = |address: &&IpAddr| index.owner(**address).is_none() || own.contains(*address);
    let gone = held.keys().filter(is_over).map(|address| (*address, None));
    let is_new = |(address, pod): &(IpAddr, &NamespacedName)| {
        !held.get(address).is_some_and(|name| is_of(name, pod)) && !own.contains(address)
    };
    gone.chain(index.owners().filter(is_new).map(|(address, pod)| (address, Some(text(pod))))).collect()
}

/// Returns the entries that differ among those that a step has changed, which are none of the node's own.
fn changes_of_step(held: &BTreeMap<IpAddr, String>, index: &Index, step: &Step) -> Vec<Change> {
    let owners = step.addresses.iter().map(|address| (*address, index.owner(*address).map(text)));
    owners.filter(|(address, name)| held.get(address) != name.as_ref()).collect()
}

fn own_addresses(tables: &Compiled) -> BTreeSet<IpAddr> {
    tables.peers.iter().filter(|(_, peer)| peer.is_own_node).map(|(net, _)| net.addr()).collect()
}

/// Whether a text is that of a pod.
fn is_of(name: &str, pod: &NamespacedName) -> bool {
    let rest = name.strip_prefix(&pod.namespace).and_then(|rest| rest.strip_prefix('/'));
    // One that is too long is not whole.
    rest == Some(&pod.name) || name == text(pod)
}

/// Returns the text of a pod.
fn text(pod: &NamespacedName) -> String {
    let mut text = format!("{}/{}", pod.namespace, pod.name);
    text.truncate(text.floor_char_boundary(POLICY_OWNER_BYTES));
    text
}

/// The map, as commands read it.
pub(super) struct OwnersReader(Option<OwnersMap>);

impl OwnersReader {
    /// Opens the pinned map. An agent of an earlier build has made none, and then no address has a pod.
    pub fn open(directory: &Path) -> Result<Self, OpenError> {
        let exists = directory.join(OWNERS).exists();
        Ok(Self(exists.then(|| typed(directory, OWNERS)).transpose()?))
    }

    /// Returns the pod that has an address.
    pub fn find(&self, address: IpAddr) -> Result<Option<OwnerView>, OpenError> {
        let Some(map) = &self.0 else { return Ok(None) };
        match map.get(&mapped(address), 0) {
            Ok(owner) => Ok(OwnerView::of(&owner)),
            Err(MapError::KeyNotFound) => Ok(None),
            Err(error) if errno(&error) == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(OpenError::Map { map: OWNERS.to_owned(), error }),
        }
    }
}

impl OwnerView {
    fn of(owner: &PolicyOwner) -> Option<Self> {
        let name = owner.text().filter(|name| !name.is_empty())?;
        Some(Self { name: name.to_owned(), since: owner.since })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::policy::{self, Object};

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// Returns a cluster of these pods, each with its addresses.
    fn index(pods: &[(&str, &[&str])]) -> Index {
        let mut index = Index::default();
        for (name, addresses) in pods {
            let addresses: Vec<_> = addresses.iter().map(|ip| json!({"ip": ip})).collect();
            let (namespace, name) = name.split_once('/').unwrap();
            let pod = json!({"metadata": {"namespace": namespace, "name": name},
                "spec": {"containers": []}, "status": {"podIPs": addresses}});
            let object = Object::Pod(serde_json::from_value(pod).unwrap());
            index.apply(policy::Change::Upsert { object, file: None });
        }
        index
    }

    fn held() -> BTreeMap<IpAddr, String> {
        let held =
            [("10.1.0.1", "shop/web"), ("10.1.0.2", "shop/api"), ("fd00::1", "shop/web"), ("fd00::9", "a/b")];
        held.map(|(ip, name)| (address(ip), name.to_owned())).into()
    }

    #[test]
    fn only_addresses_with_another_pod_are_written() {
        let name = |text: &str| Some(text.to_owned());
        let long = format!("a/{}", "x".repeat(253));
        let index = index(&[
            ("shop/web", &["10.1.0.1"]),
            ("data/db", &["10.1.0.2", "fd00::2"]),
            ("a/both", &["10.1.0.7", "fd00::9"]),
            ("b/both", &["10.1.0.7"]),
            ("shop/own", &["172.16.0.1"]),
            (&long, &["10.1.0.8"]),
        ]);
        let mut held = held();
        let own = [address("172.16.0.1")].into();
        let mut all = changes(&held, &index, &own);
        all.sort();
        let expected = [
            (address("10.1.0.2"), name("data/db")),
            (address("10.1.0.8"), name(&long[..176])),
            (address("fd00::1"), None),
            (address("fd00::2"), name("data/db")),
            (address("fd00::9"), name("a/both")),
        ];
        assert_eq!(all, expected);
        let addresses = ["10.1.0.1", "10.1.0.2", "10.1.0.7", "10.1.0.8", "fd00::1", "fd00::2", "fd00::9"];
        let step = Step { addresses: addresses.map(address).into(), ..Step::default() };
        assert_eq!(changes_of_step(&held, &index, &step), expected);
        for (address, name) in expected {
            match name {
                Some(name) => drop(held.insert(address, name)),
                None => drop(held.remove(&address)),
            }
        }
        assert_eq!(changes(&held, &index, &own), []);
        assert_eq!(changes_of_step(&held, &index, &step), []);
        // The node gets an address that a pod had.
        let own = [address("10.1.0.1")].into();
        assert!(changes(&held, &index, &own).contains(&(address("10.1.0.1"), None)));
    }

    #[test]
    fn a_name_survives_the_round_trip_and_one_that_is_too_long_is_cut() {
        let pod = |name: &str| text(&NamespacedName::new("shop", name));
        let read = |text: &str| {
            let owner = PolicyOwner { since: 7, ..PolicyOwner::new(text).unwrap() };
            OwnerView::of(&owner)
        };
        for (name, shown) in [("web-0".to_owned(), 10), ("x".repeat(253), 176), ("ü".repeat(200), 175)] {
            let pod = pod(&name);
            let owner = read(&pod).unwrap();
            assert_eq!((owner.name.len(), owner.since), (shown, 7));
            assert!(owner.name == pod && format!("shop/{name}").starts_with(&pod));
        }
        assert_eq!(OwnerView::of(&PolicyOwner::default()), None);
    }
}
