//! What a socket learns of the largest packet its path takes.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use tokio::net::UdpSocket;
use tokio::time::timeout;

use super::ANSWER_LIMIT;
use crate::net::Namespace;

/// Bytes of the IP and UDP headers.
const fn headers(address: IpAddr) -> usize {
    if address.is_ipv4() { 20 + 8 } else { 40 + 8 }
}

/// Sends a datagram that must not be fragmented, in an IP packet of `bytes` bytes, waits until the socket is told that it is too
/// large, and says how large a packet may be.
pub fn path_mtu(namespace: &Namespace, target: SocketAddr, bytes: usize) -> Result<usize> {
    namespace.run(async move || {
        let any = if target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpSocket::bind(any).await?;
        socket.connect(target).await?;
        never_fragment(&socket, target)?;
        match socket.send(&vec![0; bytes - headers(target.ip())]).await {
            // Another socket of this host was told before.
            Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => return known_mtu(&socket, target),
            sent => sent?,
        };
        let mut buffer = vec![0; 65536];
        let told = timeout(ANSWER_LIMIT, socket.recv(&mut buffer)).await.context("nobody says a word")?;
        match told {
            Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => known_mtu(&socket, target),
            Err(error) => Err(error.into()),
            Ok(_) => bail!("it was answered"),
        }
    })
}

fn never_fragment(socket: &UdpSocket, target: SocketAddr) -> Result<()> {
    let (level, option, value) = if target.is_ipv4() {
        (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)
    } else {
        (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO)
    };
    let length = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the value is a whole integer and outlives the call.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), length) };
    Errno::result(result).context("can't forbid fragments")?;
    Ok(())
}

fn known_mtu(socket: &UdpSocket, target: SocketAddr) -> Result<usize> {
    let (level, option) = if target.is_ipv4() {
        (libc::IPPROTO_IP, libc::IP_MTU)
    } else {
        (libc::IPPROTO_IPV6, libc::IPV6_MTU)
    };
    let mut value: libc::c_int = 0;
    let mut length = size_of_val(&value) as libc::socklen_t;
    // SAFETY: value and length are whole and outlive the call.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, option, (&raw mut value).cast(), &raw mut length)
    };
    Errno::result(result).context("can't read the path's MTU")?;
    Ok(usize::try_from(value)?)
}
