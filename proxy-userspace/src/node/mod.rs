//! This node's network as rtnetlink tells it: devices, addresses, routes, neighbours.

mod decode;
mod monitor;
mod neighbours;
mod query;
mod state;
mod sysctl;
mod topology;

use std::io;

pub use monitor::follow;
pub use neighbours::release_for;
pub use state::{DefaultRoute, Device, DeviceKind, Neighbour, NodeState, Resolution, Route, Update};
pub use sysctl::Sysctls;
pub use topology::{
    AttachTarget, Hook, Link, NodeSettings, TUNNELS, Topology, Way, XdpUse, topology, uplinks,
};

/// Why the node's network can't be followed.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The rtnetlink socket can't be opened.
    #[error("rtnetlink: {0}")]
    Open(io::Error),
    /// A request failed.
    #[error("rtnetlink: {0}")]
    Request(#[from] rtnetlink::Error),
    /// The socket was closed underneath.
    #[error("rtnetlink: the socket was closed")]
    Closed,
}
