//! The plan of the demonstration: its requests and their expected results.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::capture::Trail;
use crate::topology::Dual;
use crate::walk::Walk;

macro_rules! manifest {
    ($name:literal) => {
        ($name, include_str!(concat!("../../../../manifests/examples/", $name)))
    };
}

/// Manifests by the name of their file.
pub(super) const MANIFESTS: [(&str, &str); 7] = [
    manifest!("nodes.yaml"),
    manifest!("local-load-balancer.yaml"),
    manifest!("cluster-node-port.yaml"),
    manifest!("external-ip.yaml"),
    manifest!("dsr-load-balancer.yaml"),
    manifest!("snat-load-balancer.yaml"),
    manifest!("cluster-ip.yaml"),
];

/// An example Service.
pub(super) struct Example {
    /// Its subject.
    pub(super) what: &'static str,
    /// Names of all its endpoints.
    pub(super) endpoints: &'static [&'static str],
    /// Requests to it.
    pub(super) walk: Walk,
}

pub(super) fn examples() -> Vec<Example> {
    vec![
        Example {
            what: "LoadBalancer, policy Local",
            endpoints: &["pod-1a", "pod-2a"],
            walk: Walk::to("local-lb", vip(10, 0x10), 80, &["pod-1a"], Trail::local("node1")),
        },
        Example {
            what: "NodePort, two local pods",
            endpoints: &["pod-1a", "pod-1b"],
            walk: Walk::to("node-port", NODE1, 30020, &["pod-1a", "pod-1b"], Trail::local("node1")),
        },
        Example {
            what: "external IP",
            endpoints: &["pod-1b"],
            walk: Walk::to("external-ip", vip(20, 0x20), 8000, &["pod-1b"], Trail::local("node1")),
        },
        Example {
            what: "LoadBalancer, DSR",
            endpoints: &["pod-2a", "pod-2b"],
            walk: Walk::to(
                "dsr-lb",
                vip(30, 0x30),
                80,
                &["pod-2a", "pod-2b"],
                Trail::direct_return("node1", "node2"),
            ),
        },
        Example {
            what: "LoadBalancer, SNAT",
            endpoints: &["pod-2a", "pod-3a"],
            walk: Walk {
                translated_to: Some(NODE1),
                ..Walk::to("snat-lb", vip(40, 0x40), 80, &["pod-2a", "pod-3a"], Trail::local("node1"))
            },
        },
        Example {
            what: "ClusterIP, asked by pod-1a",
            endpoints: &["pod-1a", "pod-2a"],
            // No packet has the frontend's address: the socket is connected to the backend, which
            // may be the pod itself.
            walk: Walk {
                from: Some("pod-1a".to_owned()),
                ..Walk::to("cluster-ip", CLUSTER_IP, 80, &["pod-1a", "pod-2a"], Trail::default())
            },
        },
    ]
}

const NODE1: Dual =
    Dual { v4: Ipv4Addr::new(172, 30, 0, 11), v6: Ipv6Addr::new(0x2001, 0xdb8, 0xa, 0, 0, 0, 0, 0x11) };

const CLUSTER_IP: Dual =
    Dual { v4: Ipv4Addr::new(10, 96, 0, 60), v6: Ipv6Addr::new(0x2001, 0xdb8, 5, 0, 0, 0, 0, 0x60) };

const fn vip(v4: u8, v6: u16) -> Dual {
    Dual { v4: Ipv4Addr::new(203, 0, 113, v4), v6: Ipv6Addr::new(0x2001, 0xdb8, 0xe, 0, 0, 0, 0, v6) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifests_name_every_frontend() {
        for Example { walk, .. } in examples() {
            let name = format!("name: {}\n", walk.service);
            let (_, text) = MANIFESTS.iter().find(|(_, text)| text.contains(&name)).unwrap();
            let node_port = text.contains(&format!("nodePort: {}\n", walk.port));
            assert!(node_port || text.contains(&format!("port: {}\n", walk.port)), "{walk:?}");
            for address in walk.address.both() {
                let file = if node_port { MANIFESTS[0].1 } else { text };
                assert!(file.contains(&format!("{address}\n")), "{address}");
            }
        }
    }
}
