//! Services, EndpointSlices and Nodes in; frontends and backends out. Pure: no I/O, no clock, no aya.

mod desired;
mod object;
mod problem;
mod settings;

use std::collections::BTreeSet;
use std::net::IpAddr;

pub use desired::{
    Algorithm, Desired, Dirty, Endpoint, EndpointAddress, Family, Forwarding, Frontend, FrontendKind, List,
    PortKey, Protocol, Scope, ServiceKey, ServicePort,
};
pub use object::{Change, Kind, Object, ObjectKey};
pub use problem::{Problem, Severity};
pub use settings::{
    DEFAULT_MAGLEV_SIZE, MAGLEV_SIZES, MaglevSizeError, ModelSettings, NodePortAddresses, check_maglev_size,
};

/// The desired state of this node, kept up to date change by change.
#[derive(Debug)]
pub struct Model {
    desired: Desired,
}

impl Model {
    /// A model that has been told of no object yet.
    #[must_use]
    pub fn new(settings: ModelSettings) -> Self {
        Self { desired: Desired { node_name: settings.node_name, ..Desired::default() } }
    }
    /// Takes a change; what it means is worked out by the next [`refresh`](Self::refresh).
    pub fn apply(&mut self, _change: Change) {}
    /// Takes the addresses that are on devices of this node, loopback and link-local left out.
    pub fn set_node_addresses(&mut self, _addresses: BTreeSet<IpAddr>) {}
    /// Computes what the changes since the last call concern, and says what became different.
    pub fn refresh(&mut self) -> Dirty {
        Dirty::default()
    }
    /// The desired state as of the last [`refresh`](Self::refresh).
    #[must_use]
    pub fn desired(&self) -> &Desired {
        &self.desired
    }
    /// Everything that is wrong as of the last [`refresh`](Self::refresh).
    pub fn problems(&self) -> impl Iterator<Item = &Problem> {
        std::iter::empty()
    }
    /// What has become wrong since the last call, sorted: each problem comes out once, until it has been
    /// away in between.
    pub fn take_problems(&mut self) -> Vec<Problem> {
        Vec::new()
    }
}
