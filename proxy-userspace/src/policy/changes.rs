//! What has changed in an index since its tables were computed.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use super::object::NamespacedName;
use super::pod::PodSpec;

/// Changes that are followed one by one. A computation of everything takes as long as about this many of them.
const MOST: usize = 1_000;

/// What has changed: some pods, or more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Anything may have changed.
    is_whole: bool,
    /// The pods that are there or were there.
    pods: BTreeSet<Arc<NamespacedName>>,
    /// The addresses that they have or had.
    addresses: BTreeSet<IpAddr>,
}

impl Changes {
    /// Returns the change of everything.
    #[must_use]
    pub fn whole() -> Self {
        Self { is_whole: true, ..Self::default() }
    }

    /// Adds later changes.
    pub fn add(&mut self, later: Self) {
        self.pods.extend(later.pods);
        self.addresses.extend(later.addresses);
        if later.is_whole || self.addresses.len() > MOST || self.pods.len() > MOST {
            self.set_whole();
        }
    }

    /// Returns the pods and the addresses; `None` if more has changed.
    pub(super) fn parts(&self) -> Option<(&BTreeSet<Arc<NamespacedName>>, &BTreeSet<IpAddr>)> {
        (!self.is_whole).then_some((&self.pods, &self.addresses))
    }

    pub(super) fn set_whole(&mut self) {
        *self = Self::whole();
    }

    pub(super) fn add_pod(&mut self, name: &Arc<NamespacedName>, pod: &PodSpec) {
        if self.is_whole {
            return;
        }
        self.pods.insert(name.clone());
        self.addresses.extend(&pod.addresses);
        if self.addresses.len() > MOST || self.pods.len() > MOST {
            self.set_whole();
        }
    }
}
