//! Queries of nftables without a process: the generation of the rules, and whether a table or chain exists.
//!
//! The kernel raises the generation with each change of any process.

use std::io;

use netlink_packet_core::DefaultNla;
use netlink_sys::protocols::NETLINK_NETFILTER;

use super::Channel;
use super::attribute;
use super::nfnetlink::{GET_CHAIN, Message, NFTABLES};
use super::nftables::INET;
use crate::model::Family;

/// `NFT_MSG_GETGEN`.
const GET_GENERATION: u16 = NFTABLES | 0x10;
/// `NFT_MSG_GETTABLE`.
const GET_TABLE: u16 = NFTABLES | 1;
/// `NFTA_TABLE_NAME`, with a zero at its end.
const TABLE_NAME: u16 = 1;
/// `NFTA_CHAIN_TABLE`, with a zero at its end.
const CHAIN_TABLE: u16 = 1;
/// `NFTA_CHAIN_NAME`, with a zero at its end.
const CHAIN_NAME: u16 = 3;
/// `NFTA_GEN_ID`, in network byte order.
const ID: u16 = 1;

/// A socket for queries of nftables.
#[derive(Debug)]
pub struct Generation {
    channel: Channel,
}

impl Generation {
    /// Opens the socket. Fails if the kernel has no nftables.
    pub fn open() -> io::Result<Self> {
        Ok(Self { channel: Channel::open(NETLINK_NETFILTER)? })
    }

    /// Returns the generation. A different number means a change since the last read.
    pub fn read(&mut self) -> io::Result<u32> {
        let answer = self.channel.get(Message::new(GET_GENERATION, 0, &[]))?;
        let id = answer.and_then(|answer| answer.attributes().ok()?.be32(ID));
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
        match self.channel.get(Message::new(kind, family, names)) {
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
