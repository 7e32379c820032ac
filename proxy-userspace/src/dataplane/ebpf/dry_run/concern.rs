//! The entries that a frame concerns.

use proxy_common::affinity::AffinityKey;
use proxy_common::flow::FlowKey;
use proxy_common::{Addr4, Addr6};

/// The entries of the maps of one family, by key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys<A> {
    /// Entries of FLOWS and FLOWS_NEW.
    pub flows: Vec<FlowKey<A>>,
    /// Entries of NODE_FLOWS.
    pub node_flows: Vec<FlowKey<A>>,
    /// Entries of AFFINITY.
    pub affinities: Vec<AffinityKey<A>>,
    /// Entries of HOPS, by backend id.
    pub hops: Vec<u32>,
    /// Entries of WAYS and NARROWED.
    pub ways: Vec<u32>,
    /// Ports in SERVED_PORTS, network byte order.
    pub ports: Vec<u16>,
    /// Entries of SNAT_FULL.
    pub snat_full: Vec<u32>,
}

impl<A> Default for Keys<A> {
    fn default() -> Self {
        Self {
            flows: Vec::new(),
            node_flows: Vec::new(),
            affinities: Vec::new(),
            hops: Vec::new(),
            ways: Vec::new(),
            ports: Vec::new(),
            snat_full: Vec::new(),
        }
    }
}

/// The entries that a frame concerns, of both families.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Concern {
    /// The IPv4 maps.
    pub v4: Keys<Addr4>,
    /// The IPv6 maps.
    pub v6: Keys<Addr6>,
}

impl From<Keys<Addr4>> for Concern {
    fn from(v4: Keys<Addr4>) -> Self {
        Self { v4, v6: Keys::default() }
    }
}

impl From<Keys<Addr6>> for Concern {
    fn from(v6: Keys<Addr6>) -> Self {
        Self { v4: Keys::default(), v6 }
    }
}
