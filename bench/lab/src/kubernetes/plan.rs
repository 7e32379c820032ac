//! Names and addresses: pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// The machine of the control plane. It is also the router between the nodes and the outside.
pub(super) const CONTROL: &str = "control";
/// The client outside the cluster.
pub(super) const OUTSIDE: &str = "outside";
/// The port of the API server.
pub(super) const API_PORT: u16 = 6443;
/// A second address of the control plane: the API server's in docs/install.md, whose commands a test runs.
pub(super) const API_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 10));
/// The ranges of pods, of both families, as `--cluster-cidr` takes them.
pub(super) const PODS: &str = "10.244.0.0/16,fd00:244::/48";
/// The ranges of ClusterIPs.
pub(super) const SERVICES: &str = "10.96.0.0/16,fd00:96::/112";
/// The ClusterIP of the DNS server, which kubelets write into the pods' resolv.conf.
pub(super) const DNS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 96, 0, 10));
/// The first ClusterIPs, which the Service `kubernetes` gets.
pub(super) const FIRST_SERVICES: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 96, 0, 1)), IpAddr::V6(Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, 1))];

/// The names and addresses of a cluster.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The cluster's name.
    pub name: String,
    /// The number of nodes.
    pub nodes: u8,
}

impl Plan {
    /// Returns the beginning of the names of all namespaces.
    #[must_use]
    pub fn prefix(name: &str) -> String {
        format!("millrace-{name}-")
    }

    /// Returns the network namespace of a machine.
    #[must_use]
    pub fn namespace(&self, machine: &str) -> String {
        format!("{}{machine}", Self::prefix(&self.name))
    }

    /// Returns the names of the nodes.
    #[must_use]
    pub fn node_names(&self) -> Vec<String> {
        (1..=self.nodes).map(node_name).collect()
    }

    /// Returns the addresses of node `number`, which counts from 1.
    #[must_use]
    pub const fn node(number: u8) -> [IpAddr; 2] {
        on_fabric(10 + number)
    }

    /// Returns the addresses of the control plane.
    #[must_use]
    pub const fn control() -> [IpAddr; 2] {
        on_fabric(1)
    }

    /// Returns the addresses of the client outside.
    #[must_use]
    pub const fn outside() -> [IpAddr; 2] {
        beyond_router(2)
    }

    /// Returns the router's addresses toward the client outside.
    #[must_use]
    pub const fn router() -> [IpAddr; 2] {
        beyond_router(1)
    }

    /// Returns the ranges of node `number`'s pods.
    #[must_use]
    pub fn pods(number: u8) -> [IpNet; 2] {
        [
            net(IpAddr::V4(Ipv4Addr::new(10, 244, number, 0)), 24),
            net(IpAddr::V6(Ipv6Addr::new(0xfd00, 0x244, 0, number as u16, 0, 0, 0, 0)), 64),
        ]
    }

    /// Returns the ranges of load balancer addresses, which the router sends to the first node.
    #[must_use]
    pub fn load_balancers() -> [IpNet; 2] {
        [
            net(IpAddr::V4(Ipv4Addr::new(198, 51, 100, 0)), 24),
            net(IpAddr::V6(Ipv6Addr::new(0xfd00, 0x100, 0, 0, 0, 0, 0, 0)), 64),
        ]
    }
}

/// Returns the name of node `number`, which counts from 1.
pub(super) fn node_name(number: u8) -> String {
    format!("node-{number}")
}

/// Returns the addresses with the lengths of their network's prefixes.
pub(super) fn with_prefix(addresses: [IpAddr; 2]) -> [IpNet; 2] {
    addresses.map(|address| net(address, if address.is_ipv4() { 24 } else { 64 }))
}

const fn on_fabric(host: u8) -> [IpAddr; 2] {
    [
        IpAddr::V4(Ipv4Addr::new(172, 30, 0, host)),
        IpAddr::V6(Ipv6Addr::new(0xfd00, 0x30, 0, 0, 0, 0, 0, host as u16)),
    ]
}

const fn beyond_router(host: u8) -> [IpAddr; 2] {
    [
        IpAddr::V4(Ipv4Addr::new(172, 30, 1, host)),
        IpAddr::V6(Ipv6Addr::new(0xfd00, 0x31, 0, 0, 0, 0, 0, host as u16)),
    ]
}

pub(super) fn net(address: IpAddr, length: u8) -> IpNet {
    match address {
        IpAddr::V4(address) => IpNet::V4(Ipv4Net::new_assert(address, length)),
        IpAddr::V6(address) => IpNet::V6(Ipv6Net::new_assert(address, length)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_have_addresses_and_pods_of_their_own() {
        let plan = Plan { name: "test".to_owned(), nodes: 3 };
        assert_eq!(plan.node_names(), ["node-1", "node-2", "node-3"]);
        assert_eq!(plan.namespace("node-2"), "millrace-test-node-2");
        assert_eq!(Plan::node(2).map(|address| address.to_string()), ["172.30.0.12", "fd00:30::c"]);
        assert_eq!(Plan::pods(2).map(|range| range.to_string()), ["10.244.2.0/24", "fd00:244:0:2::/64"]);
    }

    #[test]
    fn pods_are_within_the_range_of_all_pods() {
        let ranges: Vec<IpNet> = PODS.split(',').map(|range| range.parse().unwrap()).collect();
        for (range, pods) in ranges.iter().zip(Plan::pods(9)) {
            assert!(range.contains(&pods));
        }
    }
}
