//! A packet of which some facts are not known, as rules see it.

use std::net::{IpAddr, SocketAddr};

/// Bytes, of which some are unknown.
pub type Bytes = Vec<Option<u8>>;

/// The length of the headers that rules look at, in bytes. What is behind is unknown.
const NETWORK4: usize = 20;
const NETWORK6: usize = 40;
const TRANSPORT: usize = 20;

/// A state of connection tracking: `NF_CT_STATE_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// It belongs to no connection that the kernel knows.
    Invalid = 1,
    /// It belongs to one with packets in both directions.
    Established = 2,
    /// It begins one.
    New = 8,
}

/// A packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Source, if it is known.
    pub source: Option<SocketAddr>,
    /// Destination, if it is known.
    pub destination: Option<SocketAddr>,
    /// IPPROTO_*.
    pub protocol: u8,
    /// The packet is of IPv6.
    pub is_v6: bool,
    /// The device that it came in by, if that is known.
    pub input: Option<String>,
    /// The device that it leaves by, if that is known.
    pub output: Option<String>,
    /// The firewall mark, if it is known.
    pub mark: Option<u32>,
    /// Its state in connection tracking.
    pub state: State,
}

impl Packet {
    /// Returns the bytes of the network header.
    pub fn network(&self) -> Bytes {
        let mut bytes = vec![None; if self.is_v6 { NETWORK6 } else { NETWORK4 }];
        let (protocol, source, destination) = if self.is_v6 { (6, 8, 24) } else { (9, 12, 16) };
        put(&mut bytes, 0, &[if self.is_v6 { 0x60 } else { 0x45 }]);
        put(&mut bytes, protocol, &[self.protocol]);
        put(&mut bytes, source, &octets(self.source));
        put(&mut bytes, destination, &octets(self.destination));
        bytes
    }

    /// Returns the bytes of the transport header.
    pub fn transport(&self) -> Bytes {
        let mut bytes = vec![None; TRANSPORT];
        for (offset, address) in [(0, self.source), (2, self.destination)] {
            let port = address.map(|address| address.port().to_be_bytes().to_vec());
            put(&mut bytes, offset, &port.unwrap_or_default());
        }
        bytes
    }
}

fn octets(address: Option<SocketAddr>) -> Vec<u8> {
    match address.map(|address| address.ip()) {
        Some(IpAddr::V4(address)) => address.octets().to_vec(),
        Some(IpAddr::V6(address)) => address.octets().to_vec(),
        None => Vec::new(),
    }
}

/// Writes known bytes.
pub fn put(bytes: &mut Bytes, offset: usize, known: &[u8]) {
    for (target, byte) in bytes.iter_mut().skip(offset).zip(known) {
        *target = Some(*byte);
    }
}
