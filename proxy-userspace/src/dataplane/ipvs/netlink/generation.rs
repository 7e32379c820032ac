//! Queries of nftables without a process: the generation of the rules, and whether a table or chain exists.
//!
//! The kernel raises the generation with each change of any process.

use std::io;

use netlink_packet_core::{
    DecodeError, DefaultNla, Emitable, NetlinkDeserializable, NetlinkHeader, NetlinkSerializable,
};
use netlink_sys::protocols::NETLINK_NETFILTER;

use super::Channel;
use super::attribute::{self, Attributes};
use crate::model::Family;

/// `NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETGEN`.
const GET_GENERATION: u16 = 10 << 8 | 16;
/// `NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETTABLE`.
const GET_TABLE: u16 = 10 << 8 | 1;
/// `NFTA_TABLE_NAME`, with a zero at its end.
const TABLE_NAME: u16 = 1;
/// `NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETCHAIN`.
const GET_CHAIN: u16 = 10 << 8 | 4;
/// `NFTA_CHAIN_TABLE`, with a zero at its end.
const CHAIN_TABLE: u16 = 1;
/// `NFTA_CHAIN_NAME`, with a zero at its end.
const CHAIN_NAME: u16 = 3;
/// `NFPROTO_INET`.
const INET: u8 = 1;
/// `NFTA_GEN_ID`, in network byte order.
const ID: u16 = 1;
/// The length of `struct nfgenmsg` in bytes. It begins with the family.
const HEADER: usize = 4;

/// A socket for queries of nftables.
#[derive(Debug)]
pub struct Generation {
    channel: Channel,
}

/// A request or an answer: its type, and the bytes after the netlink header.
#[derive(Debug)]
struct Message {
    kind: u16,
    bytes: Vec<u8>,
}

impl Generation {
    /// Opens the socket. Fails if the kernel has no nftables.
    pub fn open() -> io::Result<Self> {
        Ok(Self { channel: Channel::open(NETLINK_NETFILTER)? })
    }

    /// Returns the generation. A different number means a change since the last read.
    pub fn read(&mut self) -> io::Result<u32> {
        let answer = self.channel.get(Message { kind: GET_GENERATION, bytes: vec![0; HEADER] })?;
        let id = answer.and_then(|answer| {
            let attributes = Attributes::parse(answer.bytes.get(HEADER..)?).ok()?;
            attributes.u32(ID).map(u32::from_be)
        });
        id.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
    }

    /// Whether the table `inet name` exists.
    pub fn has_table(&mut self, name: &str) -> io::Result<bool> {
        self.has(GET_TABLE, INET, &[attribute::text(TABLE_NAME, name)])
    }

    /// Whether the table `ip name` or `ip6 name` exists.
    pub fn has_ip_table(&mut self, family: Family, name: &str) -> io::Result<bool> {
        self.has(GET_TABLE, number(family), &[attribute::text(TABLE_NAME, name)])
    }

    /// Whether a table of `ip` or `ip6` has a chain.
    pub fn has_ip_chain(&mut self, family: Family, table: &str, chain: &str) -> io::Result<bool> {
        let names = [attribute::text(CHAIN_TABLE, table), attribute::text(CHAIN_NAME, chain)];
        self.has(GET_CHAIN, number(family), &names)
    }

    fn has(&mut self, kind: u16, family: u8, names: &[DefaultNla]) -> io::Result<bool> {
        let mut bytes = vec![0; HEADER + names.buffer_len()];
        let (header, attributes) = bytes.split_at_mut(HEADER);
        header.copy_from_slice(&[family, 0, 0, 0]);
        names.emit(attributes);
        match self.channel.get(Message { kind, bytes }) {
            Ok(answer) => Ok(answer.is_some()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// `NFPROTO_IPV4` or `NFPROTO_IPV6`.
const fn number(family: Family) -> u8 {
    match family {
        Family::V4 => 2,
        Family::V6 => 10,
    }
}

impl NetlinkSerializable for Message {
    fn message_type(&self) -> u16 {
        self.kind
    }

    fn buffer_len(&self) -> usize {
        self.bytes.len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        buffer.copy_from_slice(&self.bytes);
    }
}

impl NetlinkDeserializable for Message {
    type Error = DecodeError;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, DecodeError> {
        Ok(Self { kind: header.message_type, bytes: payload.to_vec() })
    }
}
