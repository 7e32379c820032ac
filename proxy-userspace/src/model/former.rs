//! Addresses of this node that a Service's status no longer names. They are served for a while: connections
//! end when their address is no longer served, and clients learn of the new addresses late.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::service::ServiceSpec;
use super::{Model, ServiceKey};

/// The former addresses.
#[derive(Debug, Default)]
pub(super) struct Former {
    /// Each with its number.
    services: BTreeMap<ServiceKey, BTreeMap<IpAddr, u64>>,
    /// The number of the next one.
    next: u64,
}

impl Former {
    /// Returns the former addresses of a Service.
    pub fn of(&self, key: &ServiceKey) -> impl Iterator<Item = IpAddr> {
        self.services.get(key).into_iter().flat_map(|addresses| addresses.keys().copied())
    }

    fn add(&mut self, key: &ServiceKey, address: IpAddr) {
        self.services.entry(key.clone()).or_default().insert(address, self.next);
        self.next += 1;
    }

    /// Keeps those of a Service that satisfy a condition. Returns whether any is gone.
    fn retain(&mut self, key: &ServiceKey, keeps: impl Fn(IpAddr, u64) -> bool) -> bool {
        let Some(addresses) = self.services.get_mut(key) else { return false };
        let before = addresses.len();
        addresses.retain(|address, number| keeps(*address, *number));
        let is_less = addresses.len() < before;
        if addresses.is_empty() {
            self.services.remove(key);
        }
        is_less
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
            self.former.retain(key, |_, _| false);
            return;
        };
        let now: BTreeSet<IpAddr> = spec.ingress.iter().map(|(_, address)| *address).collect();
        let is_wanted = |address: IpAddr| {
            let others = self.index.requesters(address).filter(|other| *other != key);
            others
                .filter_map(|other| self.index.service(other)?.spec.as_ref())
                .any(|other| shares_port(other, spec))
        };
        let gone = before - &now;
        let served =
            gone.into_iter().filter(|address| self.environment.is_own(*address) && !is_wanted(*address));
        for address in served.collect::<Vec<_>>() {
            self.former.add(key, address);
        }
        self.former.retain(key, |address, _| !now.contains(&address));
    }

    /// Ends the service of former addresses where a Service now requests the same port. Returns the Services
    /// that had them.
    pub(super) fn yield_former(&mut self, key: &ServiceKey) -> BTreeSet<ServiceKey> {
        if self.former.services.is_empty() {
            return BTreeSet::new();
        }
        let spec_of = |key| self.index.service(key).and_then(|stored| stored.spec.as_ref());
        let Some(spec) = spec_of(key) else { return BTreeSet::new() };
        let now: BTreeSet<IpAddr> = spec.ingress.iter().map(|(_, address)| *address).collect();
        let others = self.former.services.keys().filter(|other| *other != key);
        let rivals = others.filter(|other| spec_of(other).is_some_and(|other| shares_port(other, spec)));
        let rivals: Vec<ServiceKey> = rivals.cloned().collect();
        rivals
            .into_iter()
            .filter(|other| self.former.retain(other, |address, _| !now.contains(&address)))
            .collect()
    }
}

fn shares_port(one: &ServiceSpec, other: &ServiceSpec) -> bool {
    one.ports.iter().any(|a| other.ports.iter().any(|b| (a.protocol, a.port) == (b.protocol, b.port)))
}

#[cfg(test)]
#[path = "former_tests.rs"]
mod tests;
