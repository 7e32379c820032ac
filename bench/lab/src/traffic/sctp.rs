//! SCTP sockets of the one-to-one style (RFC 6458, section 4). Once made, they are used as those of
//! TCP.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use anyhow::{Context, Result};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockProtocol, SockType, SockaddrStorage, bind, listen, socket as open,
};
use std::os::fd::AsRawFd;

/// Returns a socket with one address. Without one, it would tell its peer all addresses of the
/// machine, and those would be used, too.
pub(super) fn socket(at: SocketAddr) -> Result<OwnedFd> {
    let family = if at.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket =
        open(family, SockType::Stream, flags, SockProtocol::Sctp).context("can't open an SCTP socket")?;
    bind(socket.as_raw_fd(), &SockaddrStorage::from(at)).with_context(|| format!("can't bind {at}"))?;
    Ok(socket)
}

/// Returns a socket that waits for associations.
pub(super) fn listener(at: SocketAddr) -> Result<std::net::TcpListener> {
    let socket = socket(at)?;
    listen(&socket, Backlog::MAXCONN).with_context(|| format!("can't listen on {at}"))?;
    Ok(socket.into())
}
