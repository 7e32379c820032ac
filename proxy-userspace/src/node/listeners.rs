//! Sockets of this network namespace that take packets from anybody.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr};

use crate::model::{Listener, Protocol};

/// The files of the kernel, each with its protocol.
const FILES: [(&str, Protocol); 4] =
    [("tcp", Protocol::Tcp), ("tcp6", Protocol::Tcp), ("udp", Protocol::Udp), ("udp6", Protocol::Udp)];
/// The state of a TCP socket that listens, and of a UDP socket without a peer.
const LISTENS: &str = "0A";
const NO_PEER: &str = "07";

/// Returns TCP sockets that listen, and UDP sockets without a peer. A file that can't be read has none.
#[must_use]
pub fn listeners() -> BTreeSet<Listener> {
    let mut found = BTreeSet::new();
    for (name, protocol) in FILES {
        let Ok(file) = File::open(format!("/proc/thread-self/net/{name}")) else { continue };
        let lines = BufReader::new(file).lines().map_while(Result::ok).skip(1);
        found.extend(read(lines, protocol));
    }
    found
}

/// Reads lines without the first one. The kernel tells of listening TCP sockets before all others, of which
/// there may be very many.
fn read(lines: impl Iterator<Item = String>, protocol: Protocol) -> BTreeSet<Listener> {
    let mut found = BTreeSet::new();
    for line in lines {
        let mut words = line.split_whitespace().skip(1);
        let (Some(local), Some(_), Some(state)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        match protocol {
            Protocol::Tcp if state != LISTENS => break,
            Protocol::Udp if state != NO_PEER => continue,
            _ => {}
        }
        found.extend(address(local).map(|address| Listener { protocol, address }));
    }
    found
}

/// Reads `0100007F:0016`: words of four bytes, each as a number of this machine.
fn address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let mut bytes = Vec::with_capacity(16);
    for start in (0..address.len()).step_by(8) {
        bytes.extend(u32::from_str_radix(address.get(start..start + 8)?, 16).ok()?.to_ne_bytes());
    }
    let address = match bytes.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?),
        16 => IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?).to_canonical(),
        _ => return None,
    };
    Some(SocketAddr::new(address, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};

    use super::*;

    #[test]
    fn a_socket_that_listens_is_found_and_a_connection_is_not() {
        for host in ["127.0.0.1", "[::1]"] {
            let listener = TcpListener::bind(format!("{host}:0")).unwrap();
            let address = listener.local_addr().unwrap();
            let stream = TcpStream::connect(address).unwrap();
            let free = UdpSocket::bind(format!("{host}:0")).unwrap();
            let bound = UdpSocket::bind(format!("{host}:0")).unwrap();
            bound.connect(free.local_addr().unwrap()).unwrap();
            let found = listeners();
            let has = |protocol, address| found.contains(&Listener { protocol, address });
            assert!(has(Protocol::Tcp, address));
            assert!(!has(Protocol::Tcp, stream.local_addr().unwrap()));
            assert!(has(Protocol::Udp, free.local_addr().unwrap()));
            assert!(!has(Protocol::Udp, bound.local_addr().unwrap()));
        }
    }

    #[test]
    fn an_ipv4_socket_of_ipv6_counts_as_ipv4() {
        let mapped = "0000000000000000FFFF00000100007F:0016";
        if cfg!(target_endian = "little") {
            assert_eq!(address(mapped), Some("127.0.0.1:22".parse().unwrap()));
        }
        assert_eq!(address("00000000:0016"), Some("0.0.0.0:22".parse().unwrap()));
        assert_eq!(address("nonsense"), None);
    }
}
