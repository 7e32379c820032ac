//! The place of a packet's transport header, and the content of the headers in front of it.

use proxy_common::fragment::FragmentOf;

use crate::header::Ports;
use crate::packet::findings::Findings;

/// The place behind a packet's headers, and facts that the headers do not show.
#[derive(Clone, Copy)]
pub struct Shape {
    /// A [`Place`], bytes swapped.
    place: u64,
    /// Protocol behind all headers, in the first fragment if this is a later one.
    pub protocol: u8,
}

/// The place behind a packet's headers, and the ports of a later fragment's packet.
///
/// It is [`Findings`] without all else, so the bits of the protocol are zero.
#[derive(Clone, Copy)]
pub struct Place(u64);

const BYTE_SHIFT: u32 = 56;

const LATER_SHIFT: u32 = 63;

impl Shape {
    /// A shape whose payload begins at `payload`, behind one header.
    #[inline(always)]
    pub const fn plain(payload: usize, protocol: u8) -> Self {
        Self { place: Findings::at(payload as u32).0.swap_bytes(), protocol }
    }

    #[inline(always)]
    pub const fn new(findings: Findings) -> Self {
        Self { place: findings.place().swap_bytes(), protocol: findings.fragment_of().protocol }
    }

    /// The place, hidden from the verifier.
    ///
    /// Otherwise it would walk everything behind once for plain packets and once for others.
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
    /// No TCP flags, in a form that hides this from the verifier.
    #[inline(always)]
    pub const fn no_flags(self) -> u8 {
        (self.0 >> Findings::PROTOCOL_SHIFT) as u8
    }
    /// Ports and TCP flags: those read at the transport header, or a later fragment's own.
    ///
    /// It has no branch, behind which the verifier would walk everything twice.
    #[inline(always)]
    pub fn choose(self, read: Ports, flags: u8) -> (Ports, u8) {
        let later = opaque((self.0.cast_signed() >> LATER_SHIFT).cast_unsigned());
        let of = FragmentOf { source_port: read.source, destination_port: read.destination, protocol: flags };
        let bits = of.to_bits() & !later | self.0 & later & Findings::PORTS;
        let FragmentOf { source_port, destination_port, protocol: flags } = FragmentOf::from_bits(bits);
        (Ports { source: source_port, destination: destination_port }, flags)
    }
}

/// The same byte, of which the verifier forgets all earlier comparisons.
///
/// Behind a comparison of the protocol it would walk everything once for each answer.
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

/// The same number, unknown to LLVM.
#[inline(always)]
pub fn opaque(number: u64) -> u64 {
    #[cfg_attr(not(target_arch = "bpf"), expect(unused_mut, reason = "the host only lints this"))]
    let mut number = number;
    // SAFETY: an instruction that changes nothing.
    #[cfg(target_arch = "bpf")]
    unsafe {
        core::arch::asm!("{0} = {0}", inout(reg) number, options(pure, nomem, nostack));
    };
    number
}

/// Makes LLVM believe that a result is used.
///
/// A function whose result nobody uses would leave anything in the register of its result. The verifier refuses the
/// address of a stack slot there.
#[inline(always)]
pub fn used(result: bool) {
    #[cfg_attr(not(target_arch = "bpf"), expect(unused, reason = "the host only lints this"))]
    let result = u64::from(result);
    // SAFETY: an instruction that changes nothing.
    #[cfg(target_arch = "bpf")]
    unsafe {
        core::arch::asm!("{0} = {0}", inout(reg) result => _, options(nomem, nostack));
    }
}

/// Returns 1 if `left` is below `right`, else 0.
///
/// It is the sign of the difference. Behind a comparison, the verifier would walk everything once for each
/// answer.
#[inline(always)]
pub fn is_below(left: i64, right: i64) -> u32 {
    (opaque(left.wrapping_sub(right).cast_unsigned()) >> (u64::BITS - 1)) as u32
}

/// The content of the headers in front of the transport's.
#[derive(Clone, Copy)]
pub struct Preface {
    /// Protocol behind the headers.
    pub protocol: u8,
    /// Offset behind the headers.
    pub payload: u32,
    /// Offset of the packet's end.
    pub end: u32,
    /// The piece of its sender's packet that it is.
    pub piece: Piece,
    /// The identification, bytes in network order; it means nothing in a whole packet.
    ///
    /// It is no part of `Piece`: Linux 6.1 refuses to read a field that only some variants have.
    pub id: u32,
    /// Its place in the packet: a [`HeldKey::piece`](proxy_common::fragment::HeldKey::piece).
    pub place: u32,
}

/// A whole packet, or a fragment of one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Piece {
    /// Not a fragment.
    Whole,
    /// The first fragment, which has the transport header.
    First,
    /// Any other fragment.
    Later,
}
