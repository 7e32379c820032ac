//! What the demonstration does, and what has to come of it.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::capture::Trail;
use crate::topology::{Dual, Family};

/// Port of the servers in the pods.
pub(super) const TARGET_PORT: u16 = 8080;

macro_rules! example {
    ($name:literal) => {
        ($name, include_str!(concat!("../../../../manifests/examples/", $name)))
    };
}

/// Manifests by the name of their file.
pub(super) const EXAMPLES: [(&str, &str); 5] = [
    example!("nodes.yaml"),
    example!("local-load-balancer.yaml"),
    example!("cluster-node-port.yaml"),
    example!("external-ip.yaml"),
    example!("dsr-load-balancer.yaml"),
];

/// Requests to one service, and how they have to go.
pub(super) struct Walk {
    /// The Service's name.
    pub(super) service: &'static str,
    /// What it shows.
    pub(super) what: &'static str,
    /// All its endpoints.
    pub(super) all_backends: &'static [&'static str],
    /// Those that have to answer.
    pub(super) backends: &'static [&'static str],
    /// The way of every request and answer.
    pub(super) trail: Trail,
    address: Dual,
    port: u16,
}

impl Walk {
    /// Where the client sends to.
    pub(super) const fn frontend(&self, family: Family) -> SocketAddr {
        SocketAddr::new(self.address.of(family), self.port)
    }
}

pub(super) fn walks() -> Vec<Walk> {
    vec![
        Walk {
            service: "local-lb",
            what: "LoadBalancer, policy Local",
            all_backends: &["pod-1a", "pod-2a"],
            backends: &["pod-1a"],
            trail: Trail::local("node1"),
            address: vip(0x10),
            port: 80,
        },
        Walk {
            service: "node-port",
            what: "NodePort, two local pods",
            all_backends: &["pod-1a", "pod-1b"],
            backends: &["pod-1a", "pod-1b"],
            trail: Trail::local("node1"),
            address: Dual {
                v4: Ipv4Addr::new(172, 30, 0, 11),
                v6: Ipv6Addr::new(0x2001, 0xdb8, 0xa, 0, 0, 0, 0, 0x11),
            },
            port: 30020,
        },
        Walk {
            service: "external-ip",
            what: "external IP",
            all_backends: &["pod-1b"],
            backends: &["pod-1b"],
            trail: Trail::local("node1"),
            address: vip(0x20),
            port: 8000,
        },
        Walk {
            service: "dsr-lb",
            what: "LoadBalancer, DSR",
            all_backends: &["pod-2a", "pod-2b"],
            backends: &["pod-2a", "pod-2b"],
            trail: Trail::direct_return("node1", "node2"),
            address: vip(0x30),
            port: 80,
        },
    ]
}

/// The addresses whose last decimal or hexadecimal digits are those of `host`.
const fn vip(host: u8) -> Dual {
    let decimal = host / 16 * 10 + host % 16;
    let v4 = Ipv4Addr::new(203, 0, 113, decimal);
    Dual { v4, v6: Ipv6Addr::new(0x2001, 0xdb8, 0xe, 0, 0, 0, 0, host as u16) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifests_name_every_frontend() {
        for walk in walks().iter().filter(|walk| walk.service != "node-port") {
            let (_, text) = EXAMPLES
                .iter()
                .find(|(_, text)| text.contains(&format!("name: {}\n", walk.service)))
                .unwrap();
            for family in Family::ALL {
                let frontend = walk.frontend(family);
                assert!(text.contains(&format!("{}\n", frontend.ip())), "{frontend}");
                assert!(text.contains(&format!("port: {}\n", frontend.port())), "{frontend}");
            }
        }
    }
}
