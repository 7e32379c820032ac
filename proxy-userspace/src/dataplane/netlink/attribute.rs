//! Netlink attributes, written and read.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlink_packet_core::{
    DecodeError, DefaultNla, Emitable, NLA_F_NESTED, NLA_HEADER_SIZE, Nla, NlasIterator,
};

use crate::model::Family;

/// A list of attributes, read by kind.
#[derive(Clone, Copy, Debug)]
pub struct Attributes<'a>(&'a [u8]);

pub fn u16(kind: u16, value: u16) -> DefaultNla {
    DefaultNla::new(kind, value.to_ne_bytes().to_vec())
}

/// Returns a port in network byte order.
pub fn port(kind: u16, value: u16) -> DefaultNla {
    DefaultNla::new(kind, value.to_be_bytes().to_vec())
}

pub fn u32(kind: u16, value: u32) -> DefaultNla {
    DefaultNla::new(kind, value.to_ne_bytes().to_vec())
}

/// Returns a number in network byte order.
pub fn be32(kind: u16, value: u32) -> DefaultNla {
    DefaultNla::new(kind, value.to_be_bytes().to_vec())
}

pub fn bytes(kind: u16, value: &[u8]) -> DefaultNla {
    DefaultNla::new(kind, value.to_vec())
}

pub fn text(kind: u16, value: &str) -> DefaultNla {
    DefaultNla::new(kind, value.bytes().chain([0]).collect())
}

/// Returns an address in a field with room for either family.
pub fn address(kind: u16, value: IpAddr) -> DefaultNla {
    let mut bytes = match value {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    bytes.resize(16, 0);
    DefaultNla::new(kind, bytes)
}

pub fn nested(kind: u16, inner: &[DefaultNla]) -> DefaultNla {
    let mut bytes = vec![0; inner.buffer_len()];
    inner.emit(&mut bytes);
    DefaultNla::new(kind | NLA_F_NESTED, bytes)
}

/// Returns the value of a nested attribute.
pub fn inner(attributes: &[DefaultNla], kind: u16) -> Option<Vec<u8>> {
    let found = attributes.iter().find(|attribute| attribute.kind() & !NLA_F_NESTED == kind)?;
    let mut bytes = vec![0; found.value_len()];
    found.emit_value(&mut bytes);
    Some(bytes)
}

impl<'a> Attributes<'a> {
    /// Reads the attributes in `bytes`. Fails if one is truncated.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        NlasIterator::new(bytes).try_for_each(|attribute| attribute.map(drop))?;
        Ok(Self(bytes))
    }

    fn find(&self, kind: u16) -> Option<&'a [u8]> {
        let mut all = NlasIterator::new(self.0).filter_map(Result::ok);
        let found = all.find(|attribute| attribute.kind() == kind)?;
        let length = usize::from(found.length());
        found.into_inner().get(NLA_HEADER_SIZE..length)
    }

    fn array<const N: usize>(&self, kind: u16) -> Option<[u8; N]> {
        self.find(kind)?.get(..N)?.try_into().ok()
    }

    pub fn u16(&self, kind: u16) -> Option<u16> {
        self.array(kind).map(u16::from_ne_bytes)
    }

    pub fn port(&self, kind: u16) -> Option<u16> {
        self.array(kind).map(u16::from_be_bytes)
    }

    pub fn u32(&self, kind: u16) -> Option<u32> {
        self.array(kind).map(u32::from_ne_bytes)
    }

    /// Returns a number in network byte order.
    pub fn be32(&self, kind: u16) -> Option<u32> {
        self.array(kind).map(u32::from_be_bytes)
    }

    /// Whether the list has an attribute of this kind.
    pub fn has(&self, kind: u16) -> bool {
        self.find(kind).is_some()
    }

    /// Returns the bytes of an attribute; none if it is missing.
    pub fn bytes(&self, kind: u16) -> &'a [u8] {
        self.find(kind).unwrap_or_default()
    }

    /// Returns the bytes of each attribute of this kind.
    pub fn all(&self, kind: u16) -> impl Iterator<Item = &'a [u8]> {
        let all = NlasIterator::new(self.0).filter_map(Result::ok).filter(move |one| one.kind() == kind);
        all.filter_map(|found| {
            let length = usize::from(found.length());
            found.into_inner().get(NLA_HEADER_SIZE..length)
        })
    }

    pub fn u64(&self, kind: u16) -> Option<u64> {
        self.array(kind).map(u64::from_ne_bytes)
    }

    /// Returns the attributes inside a nested one; none if it is missing.
    pub fn inside(&self, kind: u16) -> Result<Self, DecodeError> {
        Self::parse(self.find(kind).unwrap_or_default())
    }

    pub fn text(&self, kind: u16) -> Option<String> {
        let bytes = self.find(kind)?;
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        Some(String::from_utf8_lossy(bytes.get(..end)?).into_owned())
    }

    pub fn address(&self, kind: u16, family: Family) -> Option<IpAddr> {
        match family {
            Family::V4 => self.array::<4>(kind).map(|octets| Ipv4Addr::from(octets).into()),
            Family::V6 => self.array::<16>(kind).map(|octets| Ipv6Addr::from(octets).into()),
        }
    }
}
