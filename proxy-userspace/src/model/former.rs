//! Addresses of this node that a Service's status no longer names. They are served for a while: connections
//! end when their address is no longer served, and clients learn of the new addresses late.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::service::ServiceSpec;
use super::{Model, Protocol, ServiceKey};

/// The former addresses.
#[derive(Debug, Default)]
pub(super) struct Former {
    services: BTreeMap<ServiceKey, BTreeMap<IpAddr, Rest>>,
    /// The number of the next one.
    next: u64,
}

/// A port as Services compete for it.
type Port = (Protocol, u16);

/// What is left of a former address.
#[derive(Debug)]
struct Rest {
    number: u64,
    /// Ports that another Service has now.
    without: BTreeSet<Port>,
}

/// A former address of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FormerAddress {
    pub address: IpAddr,
    /// Ports that another Service has now.
    pub without: BTreeSet<Port>,
}

impl Former {
    /// Returns the former addresses of a Service.
    pub fn of(&self, key: &ServiceKey) -> Vec<FormerAddress> {
        let addresses = self.services.get(key).into_iter().flatten();
        addresses
            .map(|(address, rest)| FormerAddress { address: *address, without: rest.without.clone() })
            .collect()
    }
    pub fn is_empty(&self) -> bool {
        self.services.is_empty()
    }
    /// Returns the Services that have former addresses.
    pub fn services(&self) -> impl Iterator<Item = &ServiceKey> {
        self.services.keys()
    }
    /// Forgets a Service.
    pub fn clear(&mut self, key: &ServiceKey) {
        self.services.remove(key);
    }

    fn add(&mut self, key: &ServiceKey, address: IpAddr, without: BTreeSet<Port>) {
        let rest = Rest { number: self.next, without };
        self.services.entry(key.clone()).or_default().insert(address, rest);
        self.next += 1;
    }

    /// Keeps those of a Service that satisfy a condition. Returns whether any is gone.
    fn retain(&mut self, key: &ServiceKey, keeps: impl Fn(IpAddr, u64) -> bool) -> bool {
        let Some(addresses) = self.services.get_mut(key) else { return false };
        let before = addresses.len();
        addresses.retain(|address, rest| keeps(*address, rest.number));
        let is_less = addresses.len() < before;
        if addresses.is_empty() {
            self.services.remove(key);
        }
        is_less
    }

    /// Leaves ports at some addresses to another Service. Returns the Services that had any of them.
    fn leave(
        &mut self,
        winner: &ServiceKey,
        addresses: &BTreeSet<IpAddr>,
        ports: &BTreeSet<Port>,
    ) -> BTreeSet<ServiceKey> {
        let mut losers = BTreeSet::new();
        for (key, former) in self.services.iter_mut().filter(|(key, _)| *key != winner) {
            for (_, rest) in former.iter_mut().filter(|(address, _)| addresses.contains(*address)) {
                if !ports.is_subset(&rest.without) {
                    rest.without.extend(ports);
                    losers.insert(key.clone());
                }
            }
        }
        losers
    }
}

impl Model {
    /// Returns how many addresses of this node have left a Service's status so far.
    #[must_use]
    pub const fn former_addresses(&self) -> u64 {
        self.former.next
    }

    /// Ends the service of the first addresses that left a status, up to what
    /// [`former_addresses`](Self::former_addresses) was. The next refresh computes the effects.
    pub fn forget_former(&mut self, count: u64) {
        let keys: Vec<ServiceKey> = self.former.services.keys().cloned().collect();
        for key in keys {
            if self.former.retain(&key, |_, number| number >= count) {
                self.pending.services.insert(key);
            }
        }
    }

    /// Compares a Service's present addresses with those before.
    pub(super) fn note_former(&mut self, key: &ServiceKey, before: &BTreeSet<IpAddr>) {
        let spec = self.index.service(key).and_then(|stored| stored.spec.as_ref());
        let Some(spec) = spec.filter(|spec| spec.is_load_balancer) else {
            self.former.clear(key);
            return;
        };
        let now = ingress(spec);
        let others_ports = |address: IpAddr| {
            let others = self.index.requesters(address).filter(|other| *other != key);
            let specs = others.filter_map(|other| self.index.service(other)?.spec.as_ref());
            specs.flat_map(ports).collect::<BTreeSet<Port>>()
        };
        let gone = before.difference(&now).filter(|address| self.environment.is_own(**address));
        let served: Vec<_> = gone.map(|address| (*address, others_ports(*address))).collect();
        for (address, without) in served {
            self.former.add(key, address, without);
        }
        self.former.retain(key, |address, _| !now.contains(&address));
    }

    /// Ends the service of former addresses where a Service now requests the same port. Returns the Services
    /// that had them.
    pub(super) fn yield_former(&mut self, key: &ServiceKey) -> BTreeSet<ServiceKey> {
        if self.former.is_empty() {
            return BTreeSet::new();
        }
        let spec = self.index.service(key).and_then(|stored| stored.spec.as_ref());
        let Some(spec) = spec else { return BTreeSet::new() };
        self.former.leave(key, &ingress(spec), &ports(spec).collect())
    }
}

fn ingress(spec: &ServiceSpec) -> BTreeSet<IpAddr> {
    spec.ingress.iter().map(|(_, address)| *address).collect()
}

fn ports(spec: &ServiceSpec) -> impl Iterator<Item = Port> {
    spec.ports.iter().map(|port| (port.protocol, port.port))
}

#[cfg(test)]
#[path = "former_tests.rs"]
mod tests;
