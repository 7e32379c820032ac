//! This node's network as rtnetlink tells it: devices, addresses, routes, neighbours.

mod topology;

pub use topology::{AttachTarget, Hook, Link, Topology, Way};
