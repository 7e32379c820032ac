//! Where a packet's transport header is, and what the headers in front of it say.

use proxy_common::fragment::FragmentOf;

use crate::header::Ports;
use crate::packet::findings::Findings;

/// Where what follows a packet's headers is, and what the headers do not say themselves.
#[derive(Clone, Copy)]
pub struct Shape {
    /// A [`Place`], bytes swapped.
    place: u64,
    /// Protocol of what follows all headers, in the first fragment if this is a later one.
    pub protocol: u8,
}

/// Where what follows a packet's headers is, and the ports of the packet that a later fragment belongs to: [`Findings`] without all
/// else, so that the bits of the protocol are zero.
#[derive(Clone, Copy)]
pub struct Place(u64);

const BYTE_SHIFT: u32 = 56;

const LATER_SHIFT: u32 = 63;

impl Shape {
    /// What follows one header begins at `payload`.
    #[inline(always)]
    pub const fn plain(payload: usize, protocol: u8) -> Self {
        Self { place: Findings::at(payload as u32).0.swap_bytes(), protocol }
    }

    #[inline(always)]
    pub const fn new(findings: Findings) -> Self {
        Self { place: findings.place().swap_bytes(), protocol: findings.fragment_of().protocol }
    }

    /// The place, of which the verifier knows nothing: else it would walk everything behind once for plain packets and once for
    /// others.
    #[inline(always)]
    pub fn place(self) -> Place {
        #[cfg(not(target_arch = "bpf"))]
        let bits = self.place.swap_bytes();
        // SAFETY: one instruction on one register.
        #[cfg(target_arch = "bpf")]
        let bits = unsafe {
            let mut bits = self.place;
            core::arch::asm!("{0} = be64 {0}", inout(reg) bits, options(pure, nomem, nostack));
            bits
        };
        Place(bits)
    }
}

impl Place {
    /// The offset.
    #[inline(always)]
    pub const fn payload(self) -> u32 {
        Findings(self.0).offset()
    }
    /// Not zero for a later fragment: no transport header follows.
    #[inline(always)]
    pub fn later(self) -> u8 {
        opaque(self.0 >> BYTE_SHIFT) as u8
    }
    /// No TCP flags, of which the verifier does not know that they are none.
    #[inline(always)]
    pub const fn no_flags(self) -> u8 {
        (self.0 >> Findings::PROTOCOL_SHIFT) as u8
    }
    /// Ports and TCP flags: those that were read where the transport header is, or a later fragment's own. Without a branch, behind
    /// which the verifier would walk everything twice.
    #[inline(always)]
    pub fn choose(self, read: Ports, flags: u8) -> (Ports, u8) {
        let later = opaque((self.0.cast_signed() >> LATER_SHIFT).cast_unsigned());
        let of = FragmentOf { source_port: read.source, destination_port: read.destination, protocol: flags };
        let bits = of.to_bits() & !later | self.0 & later & Findings::PORTS;
        let FragmentOf { source_port, destination_port, protocol: flags } = FragmentOf::from_bits(bits);
        (Ports { source: source_port, destination: destination_port }, flags)
    }
}

/// The same byte, of which the verifier forgets what was asked: behind a question for the protocol it would walk everything once for
/// each answer.
#[inline(always)]
pub fn opaque_byte(byte: u8) -> u8 {
    #[cfg_attr(not(target_arch = "bpf"), expect(unused_mut, reason = "the host only lints this"))]
    let mut hidden = u64::from(byte);
    // SAFETY: two instructions on one register: up into the second byte, and swapped.
    #[cfg(target_arch = "bpf")]
    unsafe {
        core::arch::asm!("{0} <<= 8", "{0} = be16 {0}", inout(reg) hidden, options(pure, nomem, nostack));
    };
    hidden as u8
}

/// The same number, which LLVM does not know to be.
#[inline(always)]
fn opaque(number: u64) -> u64 {
    #[cfg_attr(not(target_arch = "bpf"), expect(unused_mut, reason = "the host only lints this"))]
    let mut number = number;
    // SAFETY: an instruction that changes nothing.
    #[cfg(target_arch = "bpf")]
    unsafe {
        core::arch::asm!("{0} = {0}", inout(reg) number, options(pure, nomem, nostack));
    };
    number
}

/// What the headers in front of the transport's say.
#[derive(Clone, Copy)]
pub struct Preface {
    /// Protocol of what follows.
    pub protocol: u8,
    /// Offset of what follows.
    pub payload: u32,
    /// Offset of the packet's end.
    pub end: u32,
    /// What it is of the packet its sender sent.
    pub piece: Piece,
    /// The identification, bytes in network order; of a whole packet it means nothing. No part of `Piece`: Linux 6.1 refuses to read
    /// what only some variants have.
    pub id: u32,
    /// Where in the packet it belongs: a [`HeldKey::piece`](proxy_common::fragment::HeldKey::piece).
    pub place: u32,
}

/// A whole packet, or a fragment of one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Piece {
    /// No fragment.
    Whole,
    /// The first fragment, which has the transport header.
    First,
    /// Any other.
    Later,
}
