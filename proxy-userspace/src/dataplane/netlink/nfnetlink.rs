//! Messages of the netfilter subsystems: a header, and attributes.

use netlink_packet_core::{
    DecodeError, DefaultNla, Emitable, NetlinkDeserializable, NetlinkHeader, NetlinkSerializable,
};

use super::attribute::Attributes;

/// `NFNL_SUBSYS_NFTABLES << 8`, above the numbers of `enum nf_tables_msg_types`.
pub const NFTABLES: u16 = 10 << 8;
/// `NFT_MSG_GETCHAIN`.
pub const GET_CHAIN: u16 = NFTABLES | 4;
/// `NFNL_MSG_BATCH_BEGIN` and `NFNL_MSG_BATCH_END`.
const BATCH: [u16; 2] = [0x10, 0x11];
/// The length of `struct nfgenmsg` in bytes. It begins with the family.
const HEADER: usize = 4;

/// A request or an answer: its type, and the bytes after the netlink header.
#[derive(Debug)]
pub struct Message {
    kind: u16,
    bytes: Vec<u8>,
}

impl Message {
    /// Returns a request about a family, `NFPROTO_*`, with these attributes.
    pub fn new(kind: u16, family: u8, attributes: &[DefaultNla]) -> Self {
        let mut bytes = vec![0; HEADER + attributes.buffer_len()];
        let (header, rest) = bytes.split_at_mut(HEADER);
        header.copy_from_slice(&[family, 0, 0, 0]);
        attributes.emit(rest);
        Self { kind, bytes }
    }

    /// Returns the messages around a transaction of nftables.
    pub fn frame() -> [Self; 2] {
        // The resource is the subsystem, in network byte order.
        BATCH.map(|kind| Self { kind, bytes: vec![0, 0, 0, (NFTABLES >> 8).to_be_bytes()[1]] })
    }

    /// Returns the family.
    pub fn family(&self) -> u8 {
        self.bytes.first().copied().unwrap_or_default()
    }

    /// Returns the attributes.
    pub fn attributes(&self) -> Result<Attributes<'_>, DecodeError> {
        Attributes::parse(self.bytes.get(HEADER..).unwrap_or_default())
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
