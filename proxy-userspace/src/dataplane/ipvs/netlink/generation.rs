//! How often nftables' rules have changed, whoever changed them.

use std::io;

use netlink_packet_core::{DecodeError, NetlinkDeserializable, NetlinkHeader, NetlinkSerializable};
use netlink_sys::protocols::NETLINK_NETFILTER;

use super::Channel;
use super::attribute::Attributes;

/// `NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETGEN`.
const GET: u16 = 10 << 8 | 16;
/// `NFTA_GEN_ID`, in network byte order.
const ID: u16 = 1;
/// `struct nfgenmsg`: of no family, version 0.
const HEADER: [u8; 4] = [0; 4];

/// Asks for nftables' generation.
#[derive(Debug)]
pub struct Generation {
    channel: Channel,
}

/// Question and answer.
#[derive(Debug)]
struct Message(Vec<u8>);

impl Generation {
    /// Fails where the kernel has no nftables.
    pub fn open() -> io::Result<Self> {
        Ok(Self { channel: Channel::open(NETLINK_NETFILTER)? })
    }

    /// Another number than the last one: something changed in between.
    pub fn read(&mut self) -> io::Result<u32> {
        let answer = self.channel.get(Message(Vec::new()))?;
        let id = answer.and_then(|answer| {
            let attributes = Attributes::parse(answer.0.get(HEADER.len()..)?).ok()?;
            attributes.u32(ID).map(u32::from_be)
        });
        id.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
    }
}

impl NetlinkSerializable for Message {
    fn message_type(&self) -> u16 {
        GET
    }

    fn buffer_len(&self) -> usize {
        HEADER.len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        buffer.copy_from_slice(&HEADER);
    }
}

impl NetlinkDeserializable for Message {
    type Error = DecodeError;

    fn deserialize(_: &NetlinkHeader, payload: &[u8]) -> Result<Self, DecodeError> {
        Ok(Self(payload.to_vec()))
    }
}
