//! The routers on the way to a Service, and the largest packet that passes, as `tracepath` finds
//! them.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;

use anyhow::{Context, Result, bail};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg};
use tokio::net::UdpSocket;
use tokio::time::timeout;

use super::mtu::{Fragments, datagram_headers, is_too_large, known_mtu, set_fragments, set_option};
use super::{ANSWER_LIMIT, datagrams};
use crate::net::Namespace;
use crate::patience::patience;

/// The most datagrams that are sent.
const PROBES: usize = 32;

/// A path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The routers that reported a used-up hop limit, in the order of the way.
    pub routers: Vec<IpAddr>,
    /// Bytes of the largest packet that passes.
    pub mtu: usize,
}

/// Sends datagrams to a backend that answers them, and returns the path.
///
/// They must not be fragmented, and are as large as the host's known path MTU. The hop limit grows
/// by one each time a router reports that it was used up.
pub fn trace_path(namespace: &Namespace, target: SocketAddr) -> Result<Trace> {
    namespace.run(async move || {
        let socket = datagrams::connect(target).await?;
        set_fragments(&socket, target, Fragments::Forbidden)?;
        report_errors(&socket, target)?;
        let mut routers = Vec::new();
        for _ in 0..PROBES {
            set_hops(&socket, target, routers.len() + 1)?;
            let mtu = known_mtu(&socket, target)?;
            match probe(&socket, mtu - datagram_headers(target.ip())).await {
                Ok(()) => return Ok(Trace { routers, mtu }),
                // The known path MTU has changed.
                Err(error) if is_too_large(&error) => {}
                Err(error) if error.kind() == io::ErrorKind::HostUnreachable => {}
                Err(error) => return Err(error).context(format!("{routers:?}")),
            }
            routers.extend(take_errors(&socket)?);
        }
        bail!("{target} is not reached by {PROBES} datagrams: {routers:?}")
    })
}

/// Sends a datagram and waits for an answer or an error. Silence is an error as well.
async fn probe(socket: &UdpSocket, bytes: usize) -> io::Result<()> {
    socket.send(&vec![0; bytes]).await?;
    let mut answer = vec![0; 65536];
    timeout(patience(ANSWER_LIMIT), socket.recv(&mut answer)).await??;
    Ok(())
}

fn report_errors(socket: &UdpSocket, target: SocketAddr) -> Result<()> {
    match target {
        SocketAddr::V4(_) => set_option(socket, libc::IPPROTO_IP, libc::IP_RECVERR, 1),
        SocketAddr::V6(_) => set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 1),
    }
}

fn set_hops(socket: &UdpSocket, target: SocketAddr, hops: usize) -> Result<()> {
    let hops = i32::try_from(hops)?;
    match target {
        SocketAddr::V4(_) => set_option(socket, libc::IPPROTO_IP, libc::IP_TTL, hops),
        SocketAddr::V6(_) => set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, hops),
    }
}

/// Empties the queue of errors. Returns the routers that reported a used-up hop limit.
fn take_errors(socket: &UdpSocket) -> Result<Vec<IpAddr>> {
    let mut routers = Vec::new();
    loop {
        let mut data = [0; 2048];
        let mut parts = [IoSliceMut::new(&mut data)];
        let mut room = nix::cmsg_space!(libc::sock_extended_err, libc::sockaddr_in6);
        let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
        let message = match recvmsg::<SockaddrStorage>(socket.as_raw_fd(), &mut parts, Some(&mut room), flags)
        {
            Ok(message) => message,
            Err(nix::errno::Errno::EAGAIN) => return Ok(routers),
            Err(error) => return Err(error).context("can't read the queue of errors"),
        };
        routers.extend(message.cmsgs()?.filter_map(|message| who_had_no_hops(&message)));
    }
}

fn who_had_no_hops(message: &ControlMessageOwned) -> Option<IpAddr> {
    let (error, from) = match *message {
        ControlMessageOwned::Ipv4RecvErr(error, from) => {
            (error, IpAddr::V4(Ipv4Addr::from(u32::from_be(from?.sin_addr.s_addr))))
        }
        ControlMessageOwned::Ipv6RecvErr(error, from) => {
            (error, IpAddr::V6(Ipv6Addr::from(from?.sin6_addr.s6_addr)))
        }
        _ => return None,
    };
    (error.ee_errno == libc::EHOSTUNREACH.unsigned_abs()).then_some(from)
}
