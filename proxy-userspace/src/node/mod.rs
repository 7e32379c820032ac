//! This node's network from rtnetlink: devices, addresses, routes, neighbours.

mod conntrack;
mod decode;
pub mod ethtool;
mod host;
mod listeners;
mod look;
mod monitor;
mod neighbours;
mod own_routes;
mod pattern;
mod pod_devices;
mod pod_tunnels;
mod ports;
mod prepare;
mod query;
mod remarks;
mod state;
mod sysctl;
mod topology;

use std::io;

use nix::net::if_::if_indextoname;

pub use conntrack::{Conntrack, apply as apply_conntrack, set_up as set_up_conntrack};
pub use host::Host;
pub use listeners::listeners;
pub use look::{LinkState, Look, MarkRule, look};
pub use monitor::follow;
pub use neighbours::release_for;
pub use own_routes::{
    OwnRoute, OwnRoutes, PodRoutes, RouteSettings, Tunnels, Via, remove_own_routes, withdraw_own_routes,
};
pub use pattern::DevicePattern;
pub use pod_devices::{FarEnd, PodDevices};
pub use pod_tunnels::{PodTunnel, TunnelEnds};
pub use ports::{Ports, first_and_last};
pub use prepare::prepare;
pub use remarks::overlooked;
pub use state::{DefaultRoute, Device, DeviceKind, Neighbour, NodeState, Resolution, Route, Update};
pub use sysctl::Sysctls;
pub use topology::{
    AttachTarget, Hook, Link, NodeSettings, TUNNELS, Topology, Way, XdpUse, topology, uplinks,
};

/// Returns the name of a device in this network namespace; `None` if none has that index.
#[must_use]
pub fn device_name(index: u32) -> Option<String> {
    // nix 0.31 returns an empty name for a device that does not exist.
    let name = if_indextoname(index).ok()?.into_string().ok()?;
    (!name.is_empty()).then_some(name)
}

/// Returns a MAC address as text.
#[must_use]
pub fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// The reasons why the node's network can't be followed.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The rtnetlink socket can't be opened.
    #[error("rtnetlink: {0}")]
    Open(io::Error),
    /// A request failed.
    #[error("rtnetlink: {0}")]
    Request(#[from] rtnetlink::Error),
    /// The kernel closed the socket.
    #[error("rtnetlink: the socket was closed")]
    Closed,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_has_a_name_where_it_is_there() {
        assert_eq!(device_name(1).as_deref(), Some("lo"));
        assert_eq!(device_name(0x7fff_ffff), None);
    }
}
