//! Connected sockets of a network namespace: a list by sock_diag(7), and the destruction of UDP
//! sockets.

use std::io;
use std::net::{IpAddr, SocketAddr};

use netlink_packet_core::{Emitable, Parseable};
use netlink_packet_sock_diag::inet::{ExtensionFlags, InetRequest, InetResponseHeader, SocketId, StateFlags};
use netlink_packet_sock_diag::{
    AF_INET, AF_INET6, IPPROTO_TCP, IPPROTO_UDP, SOCK_DESTROY, SOCK_DIAG_BY_FAMILY,
};
use nix::sys::socket::SockProtocol;

use super::netlink::{NLM_F_ACK, NLMSG_ERROR, Netlink, error};

/// A connected socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connected {
    family: u8,
    id: SocketId,
}

impl Connected {
    /// Returns its local address; IPv4 as IPv4, whatever the socket's family.
    #[must_use]
    pub fn local(&self) -> SocketAddr {
        end(self.id.source_address, self.id.source_port)
    }

    /// Returns its peer's address, in the same form.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        end(self.id.destination_address, self.id.destination_port)
    }

    /// Returns its cookie, the low word first.
    #[must_use]
    pub const fn cookie(&self) -> [u32; 2] {
        let [low0, low1, low2, low3, high0, high1, high2, high3] = self.id.cookie;
        [u32::from_ne_bytes([low0, low1, low2, low3]), u32::from_ne_bytes([high0, high1, high2, high3])]
    }

    fn parse(body: &[u8]) -> Option<Self> {
        let InetResponseHeader { family, socket_id, .. } = InetResponseHeader::parse(body).ok()?;
        Some(Self { family, id: socket_id })
    }
}

fn end(address: IpAddr, port: u16) -> SocketAddr {
    SocketAddr::new(address.to_canonical(), port)
}

/// A client of sock_diag in the network namespace of its creation.
#[derive(Debug)]
pub struct Diag {
    netlink: Netlink,
}

impl Diag {
    /// Opens it in this thread's network namespace.
    pub fn open() -> io::Result<Self> {
        Netlink::open(SockProtocol::NetlinkSockDiag).map(|netlink| Self { netlink })
    }

    /// Returns all connected UDP sockets.
    pub fn connected(&self) -> io::Result<Vec<Connected>> {
        // A connected UDP socket has TCP's state ESTABLISHED.
        self.list(IPPROTO_UDP, &StateFlags::ESTABLISHED)
    }

    /// Returns all TCP sockets with an open or recently closed connection.
    pub fn connections(&self) -> io::Result<Vec<Connected>> {
        self.list(IPPROTO_TCP, &StateFlags::all().difference(StateFlags::CLOSE | StateFlags::LISTEN))
    }

    fn list(&self, protocol: u8, states: &StateFlags) -> io::Result<Vec<Connected>> {
        let mut found = Vec::new();
        for (family, any) in [(AF_INET, SocketId::new_v4()), (AF_INET6, SocketId::new_v6())] {
            let request = request(protocol, states.clone(), family, any);
            self.netlink.dump(SOCK_DIAG_BY_FAMILY, &request, |body| found.extend(Connected::parse(body)))?;
        }
        Ok(found)
    }

    /// Destroys a UDP socket: a waiting or later system call on it fails with ECONNABORTED. A missing
    /// socket is no error.
    pub fn destroy(&self, socket: &Connected) -> io::Result<()> {
        let Connected { family, id } = socket.clone();
        self.netlink.send(
            SOCK_DESTROY,
            NLM_F_ACK,
            &request(IPPROTO_UDP, StateFlags::ESTABLISHED, family, id),
        )?;
        let outcome = self.netlink.receive(|kind, body| (kind == NLMSG_ERROR).then(|| error(body)));
        match outcome {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            outcome => outcome,
        }
    }
}

/// `struct inet_diag_req_v2`.
fn request(protocol: u8, states: StateFlags, family: u8, socket_id: SocketId) -> Vec<u8> {
    let request = InetRequest { family, protocol, extensions: ExtensionFlags::empty(), states, socket_id };
    let mut bytes = vec![0; request.buffer_len()];
    request.emit(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::{AsFd, AsRawFd};
    use std::thread;

    use nix::sched::{CloneFlags, unshare};

    use super::*;
    use crate::dataplane::ebpf::sys;

    fn loopback_up() {
        let (name, up) = (std::ffi::CString::new("lo").unwrap(), libc::IFF_UP);
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        // SAFETY: a request of the size the kernel reads, made of zeros, a name that fits, and flags.
        unsafe {
            let mut request: libc::ifreq = std::mem::zeroed();
            std::ptr::copy_nonoverlapping(name.as_ptr(), request.ifr_name.as_mut_ptr(), 3);
            request.ifr_ifru.ifru_flags = i16::try_from(up).unwrap();
            assert_eq!(libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request), 0);
        }
    }

    #[test]
    fn one_connected_socket_is_found_by_peer_and_cookie_and_destroyed_and_no_other() {
        let in_namespace = || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            loopback_up();
            let server: SocketAddr = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            let mapped = SocketAddr::new("::ffff:127.0.0.1".parse().unwrap(), server.port());
            for (local, target) in [("127.0.0.1:0", server), ("[::]:0", mapped)] {
                let [doomed, other] = [(); 2].map(|()| UdpSocket::bind(local).unwrap());
                doomed.connect(target).unwrap();
                other.connect(target).unwrap();
                let diag = Diag::open().unwrap();
                let wanted = getcookie(&doomed);
                let found: Vec<Connected> = diag.connected().unwrap();
                assert_eq!(found.iter().filter(|one| one.peer() == server).count(), 2, "{found:?}");
                let found = found.into_iter().find(|one| one.cookie() == wanted).unwrap();
                diag.destroy(&found).unwrap();
                assert!(doomed.peer_addr().is_err() && other.peer_addr().is_ok());
                let error = doomed.recv(&mut [0; 1]).unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
                diag.destroy(&found).unwrap();
            }
        };
        thread::spawn(in_namespace).join().unwrap();
    }

    fn getcookie(socket: &UdpSocket) -> [u32; 2] {
        const SO_COOKIE: libc::c_int = 57;
        proxy_common::socket::cookie_words(sys::socket_word(socket.as_fd(), SO_COOKIE).unwrap())
    }
}
