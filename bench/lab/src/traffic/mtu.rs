//! Datagrams of any size, and the path MTU that a socket learns.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;

use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;
use tokio::net::UdpSocket;
use tokio::time::timeout;

use super::{ANSWER_LIMIT, datagrams};
use crate::net::Namespace;
use crate::patience::patience;

/// Whether packets may be fragmented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fragments {
    /// The sender and, with IPv4, any router may fragment.
    Allowed,
    /// No host may fragment.
    Forbidden,
}

/// The fate of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// A backend has echoed every byte.
    Echoed,
    /// The socket got an error: the datagram is too large. The value is the largest packet.
    TooLarge(usize),
}

/// Returns the bytes of the IP and UDP headers.
#[must_use]
pub const fn datagram_headers(address: IpAddr) -> usize {
    if address.is_ipv4() { 20 + 8 } else { 40 + 8 }
}

/// Sends a datagram of `bytes` bytes once from a new socket, and waits for its fate.
pub fn send_datagram(
    namespace: &Namespace,
    target: SocketAddr,
    fragments: Fragments,
    bytes: usize,
) -> Result<Fate> {
    let fate = namespace.run(async move || {
        let socket = datagrams::connect(target).await?;
        set_fragments(&socket, target, fragments)?;
        let payload: Vec<u8> = (0..bytes).map(|index| (index * 7 % 251) as u8).collect();
        let mut answer = vec![0; 65536];
        let sent = match socket.send(&payload).await {
            Ok(_) => timeout(patience(ANSWER_LIMIT), socket.recv(&mut answer))
                .await
                .context("neither an answer nor an error came")?,
            // An earlier socket of this host has already learned the MTU.
            refused => refused,
        };
        match sent {
            Ok(length) => expect_echo(&payload, answer.get(..length).unwrap_or_default()),
            Err(error) if is_too_large(&error) => Ok(Fate::TooLarge(known_mtu(&socket, target)?)),
            Err(error) => Err(error.into()),
        }
    });
    fate.with_context(|| format!("{bytes} bytes to {target}"))
}

/// Sends a datagram that must not be fragmented, in an IP packet of `bytes` bytes. Waits for the
/// error "too large" and returns the largest packet.
pub fn path_mtu(namespace: &Namespace, target: SocketAddr, bytes: usize) -> Result<usize> {
    let payload = bytes - datagram_headers(target.ip());
    match send_datagram(namespace, target, Fragments::Forbidden, payload)? {
        Fate::TooLarge(largest) => Ok(largest),
        Fate::Echoed => bail!("the datagram was answered"),
    }
}

fn expect_echo(sent: &[u8], answer: &[u8]) -> Result<Fate> {
    let (sighting, echo) = datagrams::parse(answer).context("the answer is not a backend's")?;
    ensure!(sighting.received == sent.len(), "{} bytes of {} arrived", sighting.received, sent.len());
    ensure!(echo == sent, "other bytes than were sent came back");
    Ok(Fate::Echoed)
}

pub(super) fn is_too_large(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EMSGSIZE)
}

pub(super) fn set_fragments(socket: &UdpSocket, target: SocketAddr, fragments: Fragments) -> Result<()> {
    match (target, fragments) {
        (SocketAddr::V4(_), Fragments::Allowed) => {
            set_option(socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DONT)
        }
        (SocketAddr::V4(_), Fragments::Forbidden) => {
            set_option(socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)
        }
        // Such a socket gets the error at once, too, and sends smaller fragments from then on.
        (SocketAddr::V6(_), Fragments::Allowed) => {
            set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_WANT)
        }
        (SocketAddr::V6(_), Fragments::Forbidden) => {
            set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO)
        }
    }
}

/// Sets an integer option.
pub(super) fn set_option(socket: &UdpSocket, level: i32, option: i32, value: i32) -> Result<()> {
    let length = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the value is a whole integer and outlives the call.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), length) };
    Errno::result(result).with_context(|| format!("can't set option {option} of level {level}"))?;
    Ok(())
}

/// Returns the MTU of a connected socket's path, as far as its host knows it.
pub(super) fn known_mtu(socket: &UdpSocket, target: SocketAddr) -> Result<usize> {
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
