//! The objects in parsed form, and the Services that a change concerns.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;

use super::names::Names;
use super::node::{NodeSpec, WhichNode, read_node};
use super::problem::Notes;
use super::service::{ServiceSpec, read_service};
use super::slice::{SliceSpec, read_slice};
use super::{ModelSettings, ObjectKey, ServiceKey};

/// A parsed object, with the problems in it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Stored<Spec> {
    pub spec: Spec,
    pub notes: Notes,
}

/// A Service. Without a spec it exists, but another proxy serves it, or none does.
pub(super) type StoredService = Stored<Option<ServiceSpec>>;

/// The difference between a Service, or its absence, and the former one of the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Difference {
    /// It is the same.
    None,
    /// It is new, or another version.
    Changed,
    /// The former Service is gone. A present one only has the same name.
    Gone,
}

/// A Service with the hash of its uid: the uid itself is never shown.
#[derive(Debug)]
struct Incarnation {
    uid: u64,
    service: StoredService,
}

/// The slices of one Service, by name. Boxed: most have one, and a tree's leaf has room for eleven.
pub(super) type SlicesOf = BTreeMap<String, Box<Stored<SliceSpec>>>;

/// The objects, by the keys of their look-ups.
#[derive(Debug, Default)]
pub(super) struct Index {
    services: BTreeMap<ServiceKey, Incarnation>,
    /// The slices by Service, then by their own name.
    slices: BTreeMap<ServiceKey, SlicesOf>,
    /// Slices without the name of a Service.
    strays: BTreeMap<ObjectKey, Notes>,
    /// The Service of each slice.
    homes: BTreeMap<ObjectKey, ServiceKey>,
    nodes: BTreeMap<String, Stored<NodeSpec>>,
    /// The Services that request an external address.
    wanted: BTreeMap<IpAddr, BTreeSet<ServiceKey>>,
    /// The names of nodes and zones.
    names: Names,
    no_slices: SlicesOf,
}

impl Index {
    pub fn service(&self, key: &ServiceKey) -> Option<&StoredService> {
        self.services.get(key).map(|incarnation| &incarnation.service)
    }
    pub fn services(&self) -> impl Iterator<Item = &ServiceKey> {
        self.services.keys()
    }
    pub fn slices_of(&self, key: &ServiceKey) -> &SlicesOf {
        self.slices.get(key).unwrap_or(&self.no_slices)
    }
    /// Returns a slice with the Service that it names.
    pub fn slice(&self, key: &ObjectKey) -> Option<(&ServiceKey, &SliceSpec)> {
        let service = self.homes.get(key)?;
        Some((service, &self.slices.get(service)?.get(&key.name)?.spec))
    }
    pub fn stray(&self, key: &ObjectKey) -> Option<&Notes> {
        self.strays.get(key)
    }
    pub fn node(&self, name: &str) -> Option<&Stored<NodeSpec>> {
        self.nodes.get(name)
    }
    pub fn requesters(&self, address: IpAddr) -> impl Iterator<Item = &ServiceKey> {
        self.wanted.get(&address).into_iter().flatten()
    }

    /// Stores a Service, or removes it.
    pub fn set_service(
        &mut self,
        key: &ServiceKey,
        service: Option<(&Service, Notes)>,
        settings: &ModelSettings,
    ) -> Difference {
        let hasher = BuildHasherDefault::<DefaultHasher>::default();
        let new = service.map(|(service, mut notes)| {
            let spec = read_service(service, settings, &mut notes);
            Incarnation { uid: hasher.hash_one(&service.metadata.uid), service: Stored { spec, notes } }
        });
        let old = self.services.get(key);
        let difference = match (old, &new) {
            (None, None) => return Difference::None,
            (None, Some(_)) => Difference::Changed,
            (Some(old), Some(new)) if old.uid == new.uid && old.service == new.service => {
                return Difference::None;
            }
            (Some(old), Some(new)) if old.uid == new.uid => Difference::Changed,
            (Some(_), _) => Difference::Gone,
        };
        if let Some(old) = self.services.remove(key) {
            for address in addresses(&old.service) {
                if let Some(wanting) = self.wanted.get_mut(&address) {
                    wanting.remove(key);
                    if wanting.is_empty() {
                        self.wanted.remove(&address);
                    }
                }
            }
        }
        if let Some(new) = new {
            for address in addresses(&new.service) {
                self.wanted.entry(address).or_default().insert(key.clone());
            }
            self.services.insert(key.clone(), new);
        }
        difference
    }
    /// Stores a slice, or removes it. Returns the Services that may change by this.
    pub fn set_slice(
        &mut self,
        key: &ObjectKey,
        slice: Option<(&EndpointSlice, Notes)>,
    ) -> BTreeSet<ServiceKey> {
        let new = slice.map(|(slice, mut notes)| {
            let spec = read_slice(slice, &key.namespace, &mut self.names, &mut notes);
            Stored { spec, notes }
        });
        let old_home = self.homes.get(key).cloned();
        let new_home = new.as_ref().and_then(|new| new.spec.service.clone());
        self.strays.remove(key);
        if old_home.is_some() && old_home == new_home {
            let old = old_home.as_ref().and_then(|home| self.slices.get(home)?.get(&key.name));
            if old.map(AsRef::as_ref) == new.as_ref() {
                return BTreeSet::new();
            }
        }
        if let Some(home) = &old_home
            && let Some(slices) = self.slices.get_mut(home)
        {
            slices.remove(&key.name);
            if slices.is_empty() {
                self.slices.remove(home);
            }
            self.homes.remove(key);
        }
        match (new, &new_home) {
            (Some(new), Some(home)) => {
                self.homes.insert(key.clone(), home.clone());
                self.slices.entry(home.clone()).or_default().insert(key.name.clone(), Box::new(new));
            }
            (Some(stray), None) => {
                self.strays.insert(key.clone(), stray.notes);
            }
            (None, _) => {}
        }
        [old_home, new_home].into_iter().flatten().collect()
    }
    /// Stores a Node, or removes it. Returns the former one.
    pub fn set_node(
        &mut self,
        name: &str,
        which: WhichNode,
        node: Option<(&Node, Notes)>,
    ) -> Option<Stored<NodeSpec>> {
        match node {
            None => self.nodes.remove(name),
            Some((node, mut notes)) => {
                let spec = read_node(node, which, &mut notes);
                self.nodes.insert(name.to_owned(), Stored { spec, notes })
            }
        }
    }
}

/// Returns an empty collection of problems for an object that is about to be read.
pub(super) fn notes(key: &ObjectKey, file: Option<&Arc<Path>>) -> Notes {
    Notes::on(key.clone(), file.cloned())
}

fn addresses(service: &StoredService) -> impl Iterator<Item = IpAddr> {
    let spec = service.spec.iter();
    spec.flat_map(|spec| spec.external_ips.iter().chain(&spec.ingress)).map(|(_, address)| *address)
}
