//! Sockets for whole IP packets of a protocol.

use std::os::fd::{FromRawFd, OwnedFd};

use anyhow::{Context, Result};
use tokio::net::UdpSocket;

use crate::topology::Family;

/// Bytes of the IPv4 header. A raw IPv4 socket shows it, an IPv6 one does not.
pub const IPV4_HEADER: usize = 20;

/// Returns a socket for an IP protocol. The standard library's UDP type stands for any socket that
/// sends to and receives from addresses.
pub fn raw_socket(family: Family, protocol: i32) -> Result<UdpSocket> {
    let domain = match family {
        Family::V4 => libc::AF_INET,
        Family::V6 => libc::AF_INET6,
    };
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no pointers are passed.
    let fd = nix::errno::Errno::result(unsafe { libc::socket(domain, kind, protocol) });
    let fd = fd.context("can't open a raw socket")?;
    // SAFETY: the call above returned the descriptor, and it has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    Ok(UdpSocket::from_std(socket.into())?)
}
