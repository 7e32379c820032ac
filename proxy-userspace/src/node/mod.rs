//! This node's network as rtnetlink tells it: devices, addresses, routes, neighbours.

mod decode;
mod pattern;
mod state;
mod topology;

pub use pattern::DevicePattern;
pub use state::{DefaultRoute, Device, DeviceKind, Neighbour, NodeState, Resolution, Route, Update};
pub use topology::{AttachTarget, Hook, Link, NodeSettings, Topology, Way, topology, uplinks};
