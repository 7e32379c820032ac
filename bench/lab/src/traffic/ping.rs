//! Echo requests, as `ping` sends them.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result};
use tokio::net::UdpSocket;
use tokio::time::timeout;

use super::ANSWER_LIMIT;
use super::raw::{IPV4_HEADER, raw_socket};
use crate::frame::internet_checksum;
use crate::net::Namespace;
use crate::topology::Family;

/// Sends an echo request with this payload from `namespace`, and waits for an echo of exactly these
/// bytes.
pub fn ping(namespace: &Namespace, target: IpAddr, payload: &[u8]) -> Result<()> {
    let payload = payload.to_vec();
    namespace.run(async move || {
        let family = Family::of(target);
        let (protocol, request, reply) = match family {
            Family::V4 => (libc::IPPROTO_ICMP, 8, 0),
            Family::V6 => (libc::IPPROTO_ICMPV6, 128, 129),
        };
        let socket = raw_socket(family, protocol)?;
        socket.send_to(&message(request, &payload), SocketAddr::new(target, 0)).await?;
        let expected = message(reply, &payload);
        timeout(ANSWER_LIMIT, answer(&socket, family, target, &expected))
            .await
            .with_context(|| format!("{target} does not answer"))?
    })
}

/// Waits for a message. The kernel has verified its checksum.
async fn answer(socket: &UdpSocket, family: Family, from: IpAddr, expected: &[u8]) -> Result<()> {
    let header = if family == Family::V4 { IPV4_HEADER } else { 0 };
    let mut buffer = vec![0; 65536];
    loop {
        let (length, source) = socket.recv_from(&mut buffer).await?;
        let message = buffer.get(header..length).unwrap_or_default();
        let is_same = |range: std::ops::RangeFrom<usize>| message.get(range.clone()) == expected.get(range);
        if source.ip() == from && message.first() == expected.first() && is_same(4..) {
            return Ok(());
        }
    }
}

/// Returns an echo request or its echo. The kernel computes the checksum of a raw IPv6 socket.
fn message(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut message = [&[kind, 0, 0, 0, 0x4d, 0x52, 0, 1], payload].concat();
    let checksum = internet_checksum(&[&message]).to_be_bytes();
    if let Some(field) = message.get_mut(2..4) {
        field.copy_from_slice(&checksum);
    }
    message
}
