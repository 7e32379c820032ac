//! The messages of IPVS, as in `linux/ip_vs.h`.
//!
//! Addresses and ports are in network byte order, all other values in host byte order.

use std::net::{IpAddr, SocketAddr};

use netlink_packet_core::{
    DecodeError, DefaultNla, Emitable, NlasIterator, Parseable, ParseableParametrized,
};
use netlink_packet_generic::{GenlFamily, GenlHeader};

use crate::dataplane::ipvs::Timeouts;
use crate::dataplane::ipvs::state::{Connections, Scheduling, Server, Traffic, Virtual};
use crate::dataplane::netlink::attribute::{self, Attributes};
use crate::model::{Family, Protocol};

const VERSION: u8 = 1;

const ATTRIBUTE_SERVICE: u16 = 1;
const ATTRIBUTE_DEST: u16 = 2;
const TIMEOUT_TCP: u16 = 4;
const TIMEOUT_TCP_FIN: u16 = 5;
const TIMEOUT_UDP: u16 = 6;

const SERVICE_AF: u16 = 1;
const SERVICE_PROTOCOL: u16 = 2;
const SERVICE_ADDRESS: u16 = 3;
const SERVICE_PORT: u16 = 4;
const SERVICE_FWMARK: u16 = 5;
const SERVICE_SCHEDULER: u16 = 6;
const SERVICE_FLAGS: u16 = 7;
const SERVICE_TIMEOUT: u16 = 8;
const SERVICE_NETMASK: u16 = 9;
/// `IPVS_SVC_ATTR_STATS64`, since kernel 4.1.
const SERVICE_STATS: u16 = 12;

const DEST_ADDRESS: u16 = 1;
const DEST_PORT: u16 = 2;
const DEST_METHOD: u16 = 3;
const DEST_WEIGHT: u16 = 4;
const DEST_UPPER_THRESHOLD: u16 = 5;
const DEST_LOWER_THRESHOLD: u16 = 6;
const DEST_ACTIVE: u16 = 7;
const DEST_INACTIVE: u16 = 8;
const DEST_AF: u16 = 11;

const STATS_PACKETS_IN: u16 = 2;
const STATS_BYTES_IN: u16 = 4;

/// `IP_VS_SVC_F_HASHED`, which only the kernel sets.
const HASHED: u32 = 2;
/// `IP_VS_CONN_F_FWD_MASK`.
const METHOD_MASK: u32 = 7;

/// The values of `IPVS_CMD_*` that the agent uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    NewService = 1,
    SetService = 2,
    DeleteService = 3,
    GetService = 4,
    NewServer = 5,
    SetServer = 6,
    DeleteServer = 7,
    GetServer = 8,
    SetConfig = 12,
}

/// A message of the family `IPVS`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// `IPVS_CMD_*`.
    command: u8,
    attributes: Vec<DefaultNla>,
}

impl Message {
    /// Returns a message without a service.
    pub fn new(command: Command) -> Self {
        Self { command: command as u8, attributes: Vec::new() }
    }

    /// Returns a message that sets the time-outs other than 0.
    pub fn timeouts(timeouts: Timeouts) -> Self {
        let all =
            [(TIMEOUT_TCP, timeouts.tcp), (TIMEOUT_TCP_FIN, timeouts.tcp_fin), (TIMEOUT_UDP, timeouts.udp)];
        let given = all.into_iter().filter(|(_, seconds)| *seconds > 0);
        let attributes = given.map(|(kind, seconds)| attribute::u32(kind, seconds)).collect();
        Self { command: Command::SetConfig as u8, attributes }
    }

    /// Returns a message with the key of a service.
    pub fn of(command: Command, service: &Virtual) -> Self {
        let service = attribute::nested(ATTRIBUTE_SERVICE, &identify(service));
        Self { command: command as u8, attributes: vec![service] }
    }

    /// Returns a message with all properties of a service.
    pub fn describe(command: Command, service: &Virtual, scheduling: &Scheduling) -> Self {
        let mut attributes = identify(service);
        let flags = [scheduling.flags, u32::MAX].map(u32::to_ne_bytes).concat();
        attributes.extend([
            attribute::text(SERVICE_SCHEDULER, &scheduling.scheduler),
            DefaultNla::new(SERVICE_FLAGS, flags),
            attribute::u32(SERVICE_TIMEOUT, scheduling.timeout),
            attribute::u32(SERVICE_NETMASK, scheduling.netmask),
        ]);
        Self { command: command as u8, attributes: vec![attribute::nested(ATTRIBUTE_SERVICE, &attributes)] }
    }

    /// Adds the key of a server of the service.
    pub fn server(mut self, address: SocketAddr) -> Self {
        self.attributes.push(attribute::nested(ATTRIBUTE_DEST, &identify_server(address)));
        self
    }

    /// Adds all properties of a server of the service.
    pub fn described_server(mut self, address: SocketAddr, server: Server) -> Self {
        let mut attributes = identify_server(address);
        attributes.extend([
            attribute::u32(DEST_METHOD, server.method),
            attribute::u32(DEST_WEIGHT, server.weight),
            attribute::u32(DEST_UPPER_THRESHOLD, 0),
            attribute::u32(DEST_LOWER_THRESHOLD, 0),
        ]);
        self.attributes.push(attribute::nested(ATTRIBUTE_DEST, &attributes));
        self
    }

    /// Returns the service in a message; `None` for an unknown protocol.
    pub fn service(&self) -> Result<Option<(Virtual, Scheduling)>, DecodeError> {
        let bytes = attribute::inner(&self.attributes, ATTRIBUTE_SERVICE).unwrap_or_default();
        let attributes = Attributes::parse(&bytes)?;
        let family =
            attributes.u16(SERVICE_AF).and_then(family_of).ok_or("the family of a service is missing")?;
        let service = if let Some(mark) = attributes.u32(SERVICE_FWMARK) {
            Virtual::Mark { family, mark }
        } else {
            let Some(protocol) = attributes.u16(SERVICE_PROTOCOL).and_then(Protocol::of_number) else {
                return Ok(None);
            };
            let address = attributes.address(SERVICE_ADDRESS, family);
            let address = address
                .zip(attributes.port(SERVICE_PORT))
                .ok_or("the address or the port of a service is missing")?;
            Virtual::Address { protocol, address: address.into() }
        };
        let flags = attributes.u32(SERVICE_FLAGS).ok_or("the flags of a service are missing")?;
        let scheduling = Scheduling {
            scheduler: attributes.text(SERVICE_SCHEDULER).ok_or("the scheduler of a service is missing")?,
            flags: flags & !HASHED,
            timeout: attributes.u32(SERVICE_TIMEOUT).ok_or("the time-out of a service is missing")?,
            netmask: attributes.u32(SERVICE_NETMASK).ok_or("the netmask of a service is missing")?,
        };
        Ok(Some((service, scheduling)))
    }

    /// Returns the traffic of clients to the service in a message.
    pub fn traffic(&self) -> Result<Traffic, DecodeError> {
        let bytes = attribute::inner(&self.attributes, ATTRIBUTE_SERVICE).unwrap_or_default();
        let stats = Attributes::parse(&bytes)?.inside(SERVICE_STATS)?;
        let number = |kind| stats.u64(kind).unwrap_or_default();
        Ok(Traffic { packets: number(STATS_PACKETS_IN), bytes: number(STATS_BYTES_IN) })
    }

    /// Returns the server in a message. `family` is the family of its service.
    pub fn told_server(&self, family: Family) -> Result<(SocketAddr, Server, Connections), DecodeError> {
        let bytes = attribute::inner(&self.attributes, ATTRIBUTE_DEST).unwrap_or_default();
        let attributes = Attributes::parse(&bytes)?;
        let family = attributes.u16(DEST_AF).and_then(family_of).unwrap_or(family);
        let address = attributes.address(DEST_ADDRESS, family).zip(attributes.port(DEST_PORT));
        let address: (IpAddr, u16) = address.ok_or("the address or the port of a server is missing")?;
        let number = |kind| attributes.u32(kind).unwrap_or_default();
        let server = Server { weight: number(DEST_WEIGHT), method: number(DEST_METHOD) & METHOD_MASK };
        let connections = Connections { active: number(DEST_ACTIVE), inactive: number(DEST_INACTIVE) };
        Ok((address.into(), server, connections))
    }
}

fn identify(service: &Virtual) -> Vec<DefaultNla> {
    let family = attribute::u16(SERVICE_AF, number_of(service.family()));
    match service {
        Virtual::Mark { mark, .. } => vec![family, attribute::u32(SERVICE_FWMARK, *mark)],
        Virtual::Address { protocol, address } => vec![
            family,
            attribute::u16(SERVICE_PROTOCOL, protocol.number().into()),
            attribute::address(SERVICE_ADDRESS, address.ip()),
            attribute::port(SERVICE_PORT, address.port()),
        ],
    }
}

fn identify_server(address: SocketAddr) -> Vec<DefaultNla> {
    vec![
        attribute::address(DEST_ADDRESS, address.ip()),
        attribute::port(DEST_PORT, address.port()),
        attribute::u16(DEST_AF, number_of(Family::of(address.ip()))),
    ]
}

/// Returns the value of `AF_*`.
const fn number_of(family: Family) -> u16 {
    match family {
        Family::V4 => libc::AF_INET as u16,
        Family::V6 => libc::AF_INET6 as u16,
    }
}

fn family_of(number: u16) -> Option<Family> {
    [Family::V4, Family::V6].into_iter().find(|family| number_of(*family) == number)
}

impl GenlFamily for Message {
    fn family_name() -> &'static str {
        "IPVS"
    }

    fn command(&self) -> u8 {
        self.command
    }

    fn version(&self) -> u8 {
        VERSION
    }
}

impl Emitable for Message {
    fn buffer_len(&self) -> usize {
        self.attributes.as_slice().buffer_len()
    }

    fn emit(&self, buffer: &mut [u8]) {
        self.attributes.as_slice().emit(buffer);
    }
}

impl ParseableParametrized<[u8], GenlHeader> for Message {
    fn parse_with_param(bytes: &[u8], header: GenlHeader) -> Result<Self, DecodeError> {
        let attributes = NlasIterator::new(bytes).map(|nla| DefaultNla::parse(&nla?));
        Ok(Self { command: header.cmd, attributes: attributes.collect::<Result<_, _>>()? })
    }
}

#[cfg(test)]
#[path = "message_tests.rs"]
mod tests;
