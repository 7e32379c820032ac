//! What the announcer counts.

use std::net::IpAddr;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

/// The figures of announced addresses. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// 1 for each address that this node answers for, by device.
    pub held: Family<[(&'static str, String); 2], Gauge>,
    /// Changes, by kind: `claimed`, `yielded` or `released`.
    pub changes: Family<[(&'static str, &'static str); 1], Counter>,
}

/// A change of what this node answers for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It began to answer.
    Claimed,
    /// It left the address to another host.
    Yielded,
    /// It may no longer answer.
    Released,
}

impl Change {
    const fn name(self) -> &'static str {
        match self {
            Self::Claimed => "claimed",
            Self::Yielded => "yielded",
            Self::Released => "released",
        }
    }
}

impl Figures {
    pub(crate) fn hold(&self, address: IpAddr, device: &str) {
        self.held.get_or_create(&labels(address, device)).set(1);
    }

    pub(crate) fn release(&self, address: IpAddr, device: &str) {
        self.held.remove(&labels(address, device));
    }

    pub(crate) fn count(&self, change: Change) {
        self.changes.get_or_create(&[("change", change.name())]).inc();
    }
}

fn labels(address: IpAddr, device: &str) -> [(&'static str, String); 2] {
    [("address", address.to_string()), ("device", device.to_owned())]
}
