//! The question to a global function about a packet that is not plain, and its findings, each as one number.

use proxy_common::fragment::{FragmentOf, Side};

/// The findings about a packet. Zero means none: the packet is the stack's.
///
/// | bits | |
/// |---|---|
/// | 0 to 39 | a [`FragmentOf`]: source port, destination port, protocol |
/// | 40 to 48 | offset of the transport header; of a later fragment, which has none, of its IP header |
/// | 49 | `FOUND` |
/// | 50 | `OURS` |
/// | 51 | `HELD` |
/// | 52 | `FOR_TC` |
/// | 53 | `AWAITED` |
/// | 63 | `LATER` |
#[derive(Clone, Copy)]
pub struct Findings(pub u64);

impl Findings {
    const OFFSET_SHIFT: u32 = 40;
    const OFFSET: u64 = (Question::OFFSET as u64) << Self::OFFSET_SHIFT;
    /// Bits of the protocol.
    pub const PROTOCOL: u64 = 0xff << Self::PROTOCOL_SHIFT;
    /// Position of the protocol.
    pub const PROTOCOL_SHIFT: u32 = 32;
    /// Bits of the ports.
    pub const PORTS: u64 = 0xffff_ffff;

    /// No findings.
    pub const NONE: Self = Self(0);
    /// The packet is whole, or its first fragment is known.
    pub const FOUND: Self = Self(1 << 49);
    /// The packet is not known, and is for a Service's address.
    pub const OURS: Self = Self(1 << 50);
    /// The fragment is held.
    pub const HELD: Self = Self(1 << 51);
    /// The TC program must handle the packet.
    pub const FOR_TC: Self = Self(1 << 52);
    /// This is a first fragment for which others are held.
    pub const AWAITED: Self = Self(1 << 53);
    /// This is a later fragment.
    pub const LATER: Self = Self(1 << 63);

    /// The ports and protocol of a first fragment.
    #[inline(always)]
    pub const fn of(of: FragmentOf) -> Self {
        Self(of.to_bits() | Self::FOUND.0)
    }
    /// The offset of the transport header.
    #[inline(always)]
    pub const fn at(offset: u32) -> Self {
        Self((offset as u64) << Self::OFFSET_SHIFT & Self::OFFSET)
    }
    /// Both findings together.
    #[inline(always)]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
    /// The bits that both findings have.
    #[inline(always)]
    pub const fn common(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
    /// Whether any of these bits is set.
    #[inline(always)]
    pub const fn has(self, bits: Self) -> bool {
        self.0 & bits.0 != 0
    }
    /// Ports and protocol.
    #[inline(always)]
    pub const fn fragment_of(self) -> FragmentOf {
        FragmentOf::from_bits(self.0)
    }
    /// Ports, offset and `LATER`.
    #[inline(always)]
    pub const fn place(self) -> u64 {
        self.0 & (Self::PORTS | Self::OFFSET | Self::LATER.0)
    }
    /// The offset.
    #[inline(always)]
    pub const fn offset(self) -> u32 {
        (self.0 >> Self::OFFSET_SHIFT) as u32 & Question::OFFSET
    }
}

// No two parts overlap.
const _: () = {
    let parts = [
        Findings::PORTS,
        Findings::PROTOCOL,
        Findings::OFFSET,
        Findings::FOUND.0,
        Findings::OURS.0,
        Findings::HELD.0,
        Findings::FOR_TC.0,
        Findings::AWAITED.0,
        Findings::LATER.0,
    ];
    let (mut rest, mut used) = (parts.as_slice(), 0);
    while let [part, others @ ..] = rest {
        assert!(used & *part == 0);
        used |= *part;
        rest = others;
    }
};

/// A question about a packet.
///
/// | bits | |
/// |---|---|
/// | 0 to 8 | offset of the IP header |
/// | 16 | `JUDGED`: fragments whose packet is not known are held, or dropped |
/// | 17 to 19 | the [`Side`] on which the packet was met |
#[derive(Clone, Copy)]
pub struct Question(pub u32);

impl Question {
    /// Bits of an offset, at any position.
    pub const OFFSET: u32 = 511;
    const JUDGED: u32 = 1 << 16;
    const SIDE_SHIFT: u32 = 17;
    const SIDE: u32 = 7 << Self::SIDE_SHIFT;

    /// A question about the packet whose IP header is at `network`.
    #[inline(always)]
    pub const fn new(network: usize, is_judged: bool, side: Side) -> Self {
        let judged = if is_judged { Self::JUDGED } else { 0 };
        Self(network as u32 | judged | (side as u32) << Self::SIDE_SHIFT)
    }
    /// Offset of the IP header.
    #[inline(always)]
    pub const fn network(self) -> usize {
        (self.0 & Self::OFFSET) as usize
    }
    /// Whether fragments whose packet is not known are held, or dropped.
    #[inline(always)]
    pub const fn is_judged(self) -> bool {
        self.0 & Self::JUDGED != 0
    }
    /// The side on which the packet was met.
    #[inline(always)]
    pub const fn side(self) -> Side {
        Side::from_bits(self.0 >> Self::SIDE_SHIFT)
    }
    /// The same question about a packet in a tunnel that no node sent to this one.
    #[inline(always)]
    pub const fn of_stranger(self) -> Self {
        Self(self.0 ^ (Side::Tunnel as u32 ^ Side::Stranger as u32) << Self::SIDE_SHIFT)
    }
}

// No two parts overlap.
const _: () = assert!(
    Question::OFFSET & Question::JUDGED == 0
        && (Question::OFFSET | Question::JUDGED) & Question::SIDE == 0
        && (Side::Stranger as u32) << Question::SIDE_SHIFT & !Question::SIDE == 0
);
