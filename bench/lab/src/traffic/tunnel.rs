//! IP packets in IP packets, sent by a raw socket.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result};
use tokio::net::UdpSocket;
use tokio::time::timeout;

use super::ANSWER_LIMIT;
use super::raw::{IPV4_HEADER, raw_socket};
use crate::net::{Namespace, Task};
use crate::topology::Family;

/// Sends `inner`, an IP packet, from `namespace` to `target` inside a packet of the same family.
pub fn send_encapsulated(namespace: &Namespace, target: IpAddr, inner: &[u8]) -> Result<()> {
    let inner = inner.to_vec();
    namespace.run(async move || {
        let socket = tunnel_socket(Family::of(target))?;
        socket
            .send_to(&inner, SocketAddr::new(target, 0))
            .await
            .context("can't send an encapsulated packet")?;
        Ok(())
    })
}

/// Waits, as a task, for an encapsulated packet that reaches the stack of `namespace`. The result
/// is the inner packet.
pub fn receive_encapsulated(namespace: &Namespace, family: Family) -> Result<Task<Vec<u8>>> {
    let socket = namespace.run(async move || Ok(tunnel_socket(family)?.into_std()?))?;
    Ok(namespace.spawn(async move || {
        let socket = UdpSocket::from_std(socket)?;
        let mut buffer = vec![0; 65536];
        let (length, _) = timeout(ANSWER_LIMIT, socket.recv_from(&mut buffer))
            .await
            .context("no encapsulated packet reached the stack")??;
        buffer.truncate(length);
        Ok(match family {
            Family::V4 => buffer.split_off(IPV4_HEADER.min(length)),
            Family::V6 => buffer,
        })
    }))
}

/// Returns a socket for protocol 4 over IPv4, or 41 over IPv6.
fn tunnel_socket(family: Family) -> Result<UdpSocket> {
    raw_socket(
        family,
        match family {
            Family::V4 => libc::IPPROTO_IPIP,
            Family::V6 => libc::IPPROTO_IPV6,
        },
    )
}
