//! Frames: one builder for the sent and the expected frames of tests, a parser, a printer, a
//! comparison.
//!
//! A [`Frame`] is a description: a list of layers, outermost first, and a payload. It has no
//! lengths, next-protocol fields and checksums; [`Frame::build`] computes them afresh each time. An
//! expected frame is therefore the sent one with another address, and never inherits a checksum
//! from the code under test.
#![expect(
    clippy::indexing_slicing,
    clippy::expect_used,
    clippy::cast_possible_truncation,
    clippy::missing_panics_doc,
    reason = "test support: a frame that cannot be built must stop the test at once"
)]

mod build;
mod compare;
mod cut;
mod edit;
mod layer;
mod parse;
mod show;

pub use build::{crc32c, internet_checksum};
use bytes::Bytes;
pub use compare::{assert_frames_equal, difference};
pub use layer::{
    Extension, FIRST_NUMBER, Icmp, Ipv4, Ipv6, Layer, Mac, Sctp, SctpChecksum, Tcp, Udp, UdpChecksum, Vlan,
    chunk, flag, protocol,
};
pub use parse::ParseError;
pub use show::{describe, show_if_verbose};

use std::net::IpAddr;

/// MAC address of the sender of frames, unless a test says otherwise.
pub const NEIGHBOUR_MAC: Mac = [0x02, 0, 0, 0, 0, 0x01];
/// MAC address of the device that receives the frames.
pub const DEVICE_MAC: Mac = [0x02, 0, 0, 0, 0, 0x02];

/// An Ethernet frame, described.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Destination MAC address.
    pub destination_mac: Mac,
    /// Source MAC address.
    pub source_mac: Mac,
    /// The Ethernet type, if the first layer does not imply it.
    pub ethertype: Option<u16>,
    /// The headers, outermost first.
    pub layers: Vec<Layer>,
    /// The payload of the innermost header.
    pub payload: Bytes,
    /// Bytes after the end of the outermost IP packet: Ethernet padding.
    pub trailer: Bytes,
}

impl Frame {
    /// Returns an empty Ethernet frame, from the neighbour to the device.
    #[must_use]
    pub fn ethernet() -> Self {
        Self {
            destination_mac: DEVICE_MAC,
            source_mac: NEIGHBOUR_MAC,
            ethertype: None,
            layers: Vec::new(),
            payload: Bytes::new(),
            trailer: Bytes::new(),
        }
    }

    /// Returns an Ethernet frame with an IP header of the addresses' family.
    #[must_use]
    pub fn ip(source: IpAddr, destination: IpAddr) -> Self {
        Self::ethernet().layer(Layer::ip(source, destination))
    }

    /// Adds a header inside the innermost one.
    #[must_use]
    pub fn layer(mut self, layer: impl Into<Layer>) -> Self {
        self.layers.push(layer.into());
        self
    }

    /// Adds a TCP header with `flag` bits.
    #[must_use]
    pub fn tcp(self, source: u16, destination: u16, flags: u8) -> Self {
        self.layer(Tcp::new(source, destination, flags))
    }

    /// Adds a UDP header.
    #[must_use]
    pub fn udp(self, source: u16, destination: u16) -> Self {
        self.layer(Udp::new(source, destination))
    }

    /// Adds an SCTP header and the header of a [`chunk`].
    #[must_use]
    pub fn sctp(self, source: u16, destination: u16, chunk: u8) -> Self {
        self.layer(Sctp::new(source, destination, chunk))
    }

    /// Sets the payload of the innermost header.
    #[must_use]
    pub fn payload(mut self, payload: impl Into<Bytes>) -> Self {
        self.payload = payload.into();
        self
    }
}
