//! Ports of the node that are NodePorts.

use std::io::ErrorKind;
use std::net::SocketAddr;

use anyhow::Result;
use millrace_lab::net::Namespace;
use millrace_lab::topology::Family;

use super::{Path, node, pod};
use crate::fixture::shared;

#[test]
fn node_ports_are_refused_to_sockets_of_the_node_only() -> Result<()> {
    let cluster = shared();
    let service = cluster.service("reserved", 222, &["pod-1b"])?.node_ports(32220);
    Path::Sockets.apply(&cluster, &service, &[1])?;
    for local in ["0.0.0.0:32220", "[::]:32220", "127.0.0.1:32220", "[::ffff:0.0.0.0]:32220"] {
        assert_eq!(bind(node(&cluster, 1)?, local.parse()?)?, [Some(ErrorKind::AddrInUse); 2], "{local}");
        assert_eq!(bind(pod(&cluster, "pod-1a")?, local.parse()?)?, [None; 2], "{local}");
    }
    assert_eq!(bind(node(&cluster, 1)?, "0.0.0.0:32221".parse()?)?, [None; 2]);
    assert_eq!(bind(node(&cluster, 1)?, "0.0.0.0:0".parse()?)?, [None; 2]);
    Ok(())
}

/// A socket at `::` takes IPv4's port, too, even if IPv6 has no such NodePort.
#[test]
fn a_node_port_of_one_family_is_refused_to_dual_stack_sockets() -> Result<()> {
    let cluster = shared();
    let of = |name: &str, number: u8, family: Family| {
        Ok::<_, anyhow::Error>(cluster.service(name, number, &["pod-1b"])?.single_stack(family))
    };
    let v4 = of("reserved-v4", 225, Family::V4)?.node_ports(32250);
    let v6 = of("reserved-v6", 226, Family::V6)?.node_ports(32260);
    Path::Sockets.apply(&cluster, &v4, &[1])?;
    Path::Sockets.apply(&cluster, &v6, &[1])?;
    for local in ["[::]:32250", "0.0.0.0:32250", "[::]:32260"] {
        assert_eq!(bind(node(&cluster, 1)?, local.parse()?)?, [Some(ErrorKind::AddrInUse); 2], "{local}");
        assert_eq!(bind(pod(&cluster, "pod-1a")?, local.parse()?)?, [None; 2], "{local}");
    }
    for local in ["[::1]:32250", "0.0.0.0:32260"] {
        assert_eq!(bind(node(&cluster, 1)?, local.parse()?)?, [None; 2], "{local}");
    }
    Ok(())
}

/// Returns the result of a bind over TCP and UDP.
pub fn bind(from: &Namespace, local: SocketAddr) -> Result<[Option<ErrorKind>; 2]> {
    from.run(async move || {
        let tcp = std::net::TcpListener::bind(local).err().map(|error| error.kind());
        let udp = std::net::UdpSocket::bind(local).err().map(|error| error.kind());
        Ok([tcp, udp])
    })
}
