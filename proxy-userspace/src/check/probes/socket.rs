//! An encapsulated packet that a node without a device for it refuses by an ICMP error: the answer of the probe.
//!
//! The programs pass encapsulated packets for addresses that are no Service's to the stack, and the stack refuses them.
//! If the node has a tunnel device, it takes the outer header off, and refuses the UDP packet inside.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, MsgFlags, SockaddrStorage, getsockopt, recv, sendto, sockopt};
use proxy_common::checksum;

use super::super::running::overhead;
use super::Answer;
use super::icmp::{IN_IPV4, IN_IPV6, answer};
use crate::dataplane::Encapsulation;
use crate::dataplane::ebpf::FOU_PORT;

/// RFC 863: no program listens there.
const DISCARD: u16 = 9;
const UDP: u8 = 17;
const UDP_HEADER: u16 = 8;
const HEADER4: u16 = 20;
const HEADER6: u16 = 40;
/// An ICMP error quotes less.
const LONGEST_ERROR: usize = 2048;

/// The sockets toward one node.
#[derive(Debug)]
pub struct Tunnel {
    outer: Outer,
    /// Receives the errors about the packets inside.
    inner: UdpSocket,
    source: IpAddr,
    target: IpAddr,
    encapsulation: Encapsulation,
    inner_port: u16,
}

/// The sockets of the outer packets.
#[derive(Debug)]
enum Outer {
    /// One that sends whole packets, and one that receives all ICMP messages. A socket of the encapsulation's own
    /// protocol would take the probes of the other node.
    Ipip { packets: OwnedFd, errors: OwnedFd },
    /// One that receives the errors about its packets.
    Fou(UdpSocket),
}

impl Tunnel {
    /// Opens the sockets. IPIP takes CAP_NET_RAW.
    pub fn open(source: IpAddr, target: IpAddr, encapsulation: Encapsulation) -> io::Result<Self> {
        let connected = |port: u16| {
            let socket = UdpSocket::bind((source, 0))?;
            socket.connect((target, port))?;
            Ok::<_, io::Error>(socket)
        };
        let inner = connected(DISCARD)?;
        let icmp = if target.is_ipv4() { libc::IPPROTO_ICMP } else { libc::IPPROTO_ICMPV6 };
        let outer = match encapsulation {
            Encapsulation::Ipip => {
                Outer::Ipip { packets: raw(target, libc::IPPROTO_RAW)?, errors: raw(target, icmp)? }
            }
            Encapsulation::Fou => {
                let socket = connected(FOU_PORT)?;
                dont_fragment(socket.as_fd(), target)?;
                Outer::Fou(socket)
            }
        };
        let inner_port = inner.local_addr()?.port();
        Ok(Self { outer, inner, source, target, encapsulation, inner_port })
    }

    /// Sends a packet of so many bytes, outer header included, and waits for its answer.
    pub fn ask(&self, size: u16, patience: Duration) -> io::Result<Answer> {
        let inner = self.inner(size.saturating_sub(overhead(self.target, self.encapsulation)));
        let sent = match &self.outer {
            Outer::Fou(socket) => socket.send(&inner).map(drop),
            Outer::Ipip { packets, .. } => {
                let protocol = if self.target.is_ipv4() { IN_IPV4 } else { IN_IPV6 };
                let packet = self.packet(protocol, &inner);
                let target = SockaddrStorage::from(SocketAddr::new(self.target, 0));
                sendto(packets.as_raw_fd(), &packet, &target, MsgFlags::empty())
                    .map(drop)
                    .map_err(io::Error::from)
            }
        };
        match sent {
            Ok(()) => self.wait(Instant::now() + patience),
            // The error about the packet before this one came late.
            Err(error) => of_socket(error),
        }
    }

    fn wait(&self, end: Instant) -> io::Result<Answer> {
        let first = match &self.outer {
            Outer::Ipip { errors, .. } => errors.as_fd(),
            Outer::Fou(socket) => socket.as_fd(),
        };
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let mut sockets =
                [first, self.inner.as_fd()].map(|socket| PollFd::new(socket, PollFlags::POLLIN));
            if poll(&mut sockets, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX))? == 0 {
                return Ok(Answer::Silent);
            }
            for socket in [first, self.inner.as_fd()] {
                match getsockopt(&socket, sockopt::SocketError)? {
                    0 => {}
                    code => return of_socket(io::Error::from_raw_os_error(code)),
                }
            }
            if let Outer::Ipip { errors, .. } = &self.outer {
                let mut message = [0; LONGEST_ERROR];
                let length = match recv(errors.as_raw_fd(), &mut message, MsgFlags::MSG_DONTWAIT) {
                    Err(nix::Error::EAGAIN) => continue,
                    length => length?,
                };
                if let Some(answer) = answer(message.get(..length).unwrap_or_default(), self.target) {
                    return Ok(answer);
                }
            }
        }
    }

    /// Returns the inner packet of so many bytes: UDP to the port that nobody listens on, and zeros.
    fn inner(&self, size: u16) -> Vec<u8> {
        let header = if self.source.is_ipv4() { HEADER4 } else { HEADER6 };
        let length = size.saturating_sub(header).max(UDP_HEADER);
        let head: Vec<u8> =
            [self.inner_port, DISCARD, length].into_iter().flat_map(u16::to_be_bytes).collect();
        // The pseudo-header of RFC 8200, section 8.1; IPv4's has the same sum. All data is zero.
        let [high, low] = length.to_be_bytes();
        let sum = sum(&[self.addresses(), vec![high, low, 0, UDP], head.clone()].concat());
        let mut udp: Vec<u8> = head.into_iter().chain(sum).collect();
        udp.resize(usize::from(length), 0);
        self.packet(UDP, &udp)
    }

    /// Returns a packet from here to the node, which may not be fragmented.
    fn packet(&self, protocol: u8, payload: &[u8]) -> Vec<u8> {
        let length = u16::try_from(payload.len()).unwrap_or(u16::MAX);
        let mut packet = if self.source.is_ipv4() {
            let [high, low] = length.saturating_add(HEADER4).to_be_bytes();
            let head = [0x45, 0, high, low, 0, 0, 0x40, 0, 64, protocol, 0, 0];
            let [first, second] = sum(&[head.to_vec(), self.addresses()].concat());
            [0x45, 0, high, low, 0, 0, 0x40, 0, 64, protocol, first, second].to_vec()
        } else {
            let [high, low] = length.to_be_bytes();
            vec![0x60, 0, 0, 0, high, low, protocol, 64]
        };
        packet.extend(self.addresses());
        packet.extend(payload);
        packet
    }

    fn addresses(&self) -> Vec<u8> {
        let octets = |address| match address {
            IpAddr::V4(address) => std::net::Ipv4Addr::octets(&address).to_vec(),
            IpAddr::V6(address) => std::net::Ipv6Addr::octets(&address).to_vec(),
        };
        [octets(self.source), octets(self.target)].concat()
    }
}

/// Returns the answer that an error of a socket is.
fn of_socket(error: io::Error) -> io::Result<Answer> {
    match error.raw_os_error() {
        Some(libc::ECONNREFUSED | libc::ENOPROTOOPT | libc::EPROTO) => Ok(Answer::Arrived),
        Some(libc::EMSGSIZE) => Ok(Answer::TooBig),
        _ => Err(error),
    }
}

/// Returns the checksum of bytes, an even number, with zero in place of it.
fn sum(bytes: &[u8]) -> [u8; 2] {
    let words = bytes.chunks_exact(2).filter_map(|pair| Some(u16::from_ne_bytes(pair.try_into().ok()?)));
    checksum::over(words).to_ne_bytes()
}

/// Returns a raw socket of a protocol.
fn raw(target: IpAddr, protocol: libc::c_int) -> io::Result<OwnedFd> {
    let family = if target.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    // SAFETY: socket(2) takes numbers alone.
    let socket = unsafe { libc::socket(family as i32, libc::SOCK_RAW | libc::SOCK_CLOEXEC, protocol) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for this call, and no other owner exists.
    Ok(unsafe { OwnedFd::from_raw_fd(socket) })
}

/// Sets "don't fragment". IPv4 packets are sent although an earlier answer said that they are too big.
fn dont_fragment(socket: BorrowedFd<'_>, target: IpAddr) -> io::Result<()> {
    let (level, name, value) = if target.is_ipv4() {
        (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)
    } else {
        (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO)
    };
    let length = libc::socklen_t::try_from(size_of::<libc::c_int>()).unwrap_or(0);
    let value: libc::c_int = value;
    // SAFETY: the option's value is the int that `length` says, and lives until the call returns.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tunnel(address: &str, encapsulation: Encapsulation) -> Tunnel {
        let address = address.parse().unwrap();
        Tunnel::open(address, address, encapsulation).unwrap()
    }

    #[test]
    fn a_packet_has_the_size_that_is_asked_for() {
        let v4 = tunnel("127.0.0.1", Encapsulation::Fou).inner(100);
        assert_eq!((v4.len(), v4[9], v4[3]), (100, UDP, 100));
        assert_eq!(sum(&v4[..20]), [0, 0], "the checksum holds");
        let v6 = tunnel("::1", Encapsulation::Fou).inner(100);
        assert_eq!((v6.len(), v6[6], v6[5]), (100, UDP, 60));
        let covered = [&v6[8..40], &[0, 60, 0, UDP], &v6[40..]].concat();
        assert_eq!(sum(&covered), [0, 0], "the checksum of UDP holds");
    }

    #[test]
    fn this_machine_refuses_its_own_packets() {
        for (address, encapsulation) in
            ["127.0.0.1", "::1"].into_iter().flat_map(|address| Encapsulation::ALL.map(|one| (address, one)))
        {
            let answer = tunnel(address, encapsulation).ask(1400, Duration::from_secs(20)).unwrap();
            assert_eq!(answer, Answer::Arrived, "{address} {encapsulation:?}");
        }
    }
}
