//! Connected sockets of a network namespace: a list by sock_diag(7), and the destruction of UDP
//! sockets.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use nix::sys::socket::SockProtocol;

use super::netlink::{NLM_F_ACK, NLMSG_ERROR, Netlink, error};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const SOCK_DESTROY: u16 = 21;
const IPPROTO_TCP: u8 = 6;
const IPPROTO_UDP: u8 = 17;
/// A connected UDP socket has TCP's state ESTABLISHED.
const CONNECTED: u32 = 1 << 1;
/// All TCP states but CLOSE and LISTEN.
const OPEN: u32 = 0xfff & !(1 << 7 | 1 << 10);

/// `struct inet_diag_sockid`.
const IDENTITY: usize = 48;
/// The bytes before the identity in `struct inet_diag_msg`.
const BEFORE_IDENTITY: usize = 4;

/// A connected socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connected {
    family: u8,
    identity: [u8; IDENTITY],
}

impl Connected {
    /// Returns its local address; IPv4 as IPv4, whatever the socket's family.
    #[must_use]
    pub fn local(&self) -> Option<SocketAddr> {
        self.end(0, 4)
    }

    /// Returns its peer's address, in the same form.
    #[must_use]
    pub fn peer(&self) -> Option<SocketAddr> {
        self.end(2, 20)
    }

    fn end(&self, port: usize, address: usize) -> Option<SocketAddr> {
        let port = u16::from_be_bytes(self.part(port)?);
        let address = if i32::from(self.family) == libc::AF_INET {
            IpAddr::V4(Ipv4Addr::from(self.part::<4>(address)?))
        } else {
            IpAddr::V6(Ipv6Addr::from(self.part::<16>(address)?)).to_canonical()
        };
        Some(SocketAddr::new(address, port))
    }

    /// Returns its cookie, the low word first.
    #[must_use]
    pub fn cookie(&self) -> Option<[u32; 2]> {
        Some([u32::from_ne_bytes(self.part(40)?), u32::from_ne_bytes(self.part(44)?)])
    }

    fn part<const N: usize>(&self, from: usize) -> Option<[u8; N]> {
        self.identity.get(from..from + N)?.try_into().ok()
    }
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
        self.list(IPPROTO_UDP, CONNECTED)
    }

    /// Returns all TCP sockets with an open or recently closed connection.
    pub fn connections(&self) -> io::Result<Vec<Connected>> {
        self.list(IPPROTO_TCP, OPEN)
    }

    fn list(&self, protocol: u8, states: u32) -> io::Result<Vec<Connected>> {
        let mut found = Vec::new();
        for family in [libc::AF_INET, libc::AF_INET6] {
            let any = Connected { family: u8::try_from(family).unwrap_or(0), identity: [0; IDENTITY] };
            let request = request(protocol, states, &any);
            self.netlink.dump(SOCK_DIAG_BY_FAMILY, &request, |body| found.extend(parse(body)))?;
        }
        Ok(found)
    }

    /// Destroys a socket: a waiting or later system call on it fails with ECONNABORTED. A missing
    /// socket is no error.
    pub fn destroy(&self, socket: &Connected) -> io::Result<()> {
        self.send(SOCK_DESTROY, NLM_F_ACK, socket)?;
        let outcome = self.netlink.receive(|kind, body| (kind == NLMSG_ERROR).then(|| error(body)));
        match outcome {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            outcome => outcome,
        }
    }

    fn send(&self, kind: u16, flags: u16, socket: &Connected) -> io::Result<()> {
        self.netlink.send(kind, flags, &request(IPPROTO_UDP, CONNECTED, socket))
    }
}

/// `struct inet_diag_req_v2`.
fn request(protocol: u8, states: u32, socket: &Connected) -> Vec<u8> {
    let mut request = vec![socket.family, protocol, 0, 0];
    request.extend(states.to_ne_bytes());
    request.extend(socket.identity);
    request
}

fn parse(body: &[u8]) -> Option<Connected> {
    let identity = body.get(BEFORE_IDENTITY..BEFORE_IDENTITY + IDENTITY)?.try_into().ok()?;
    Some(Connected { family: *body.first()?, identity })
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
                assert_eq!(found.iter().filter(|one| one.peer() == Some(server)).count(), 2, "{found:?}");
                let found = found.into_iter().find(|one| one.cookie() == Some(wanted)).unwrap();
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
