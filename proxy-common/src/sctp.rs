//! SCTP (RFC 9260): its checksum, CRC32c, and the types of its first chunk.
//!
//! The CRC is linear over GF(2) and covers no address. Where a port changes, the new checksum is
//! the old one XOR `difference * x^(8 * bytes)`, modulo the CRC's polynomial. The packet itself is
//! not read (decision 69).

/// CRC32c's polynomial with its bits reversed: bit 31 is the coefficient of x^0.
const POLYNOMIAL: u32 = 0x82f6_3b78;
/// The polynomial 1.
const ONE: u32 = 1 << 31;

/// x^(8 * n) for n = 0..256: the factor by which `n` bytes of zeros behind a remainder change it.
static SHORT: [u32; 256] = powers(byte_of_zeros(ONE));
/// x^(8 * 256 * n) for n = 0..256.
static LONG: [u32; 256] = powers(byte_of_zeros(SHORT[255]));

/// Returns the change (XOR) of a packet's checksum when its first four bytes change by `difference`
/// (XOR).
///
/// The packet has `bytes` bytes with the SCTP header. Both words are as they lie in memory.
#[inline(always)]
#[must_use]
pub fn checksum_difference(difference: u32, bytes: u32) -> u32 {
    let (low, high) = (bytes & 0xff, bytes >> 8 & 0xff);
    let mut remainder = multiply(u32::from_le(difference), SHORT[low as usize]);
    if high != 0 {
        remainder = multiply(remainder, LONG[high as usize]);
    }
    remainder.to_le()
}

/// The value of a bit that is shifted out.
///
/// It is a table because of the verifier. From Linux 6.18 on, it follows both results of a mask
/// that is all ones or zero, as if the mask were a branch. There are 64 of them here.
static SHIFTED_OUT: [u32; 2] = [0, POLYNOMIAL];

/// Multiplies modulo the polynomial, without branches: the verifier would follow both sides of
/// each.
#[inline(always)]
const fn multiply(left: u32, right: u32) -> u32 {
    let (mut product, mut left, mut right) = (0, left, right);
    let mut step = 0;
    while step < u32::BITS {
        product ^= right & ((left.cast_signed() >> 31).cast_unsigned());
        left <<= 1;
        right = times_x(right);
        step += 1;
    }
    product
}

#[inline(always)]
const fn times_x(value: u32) -> u32 {
    (value >> 1) ^ SHIFTED_OUT[(value & 1) as usize]
}

const fn byte_of_zeros(mut value: u32) -> u32 {
    let mut bit = 0;
    while bit < u8::BITS {
        value = times_x(value);
        bit += 1;
    }
    value
}

/// Returns 1, `base`, `base`^2, ...
const fn powers(base: u32) -> [u32; 256] {
    let mut powers = [ONE; 256];
    let mut index = 1;
    while index < powers.len() {
        powers[index] = multiply(powers[index - 1], base);
        index += 1;
    }
    powers
}

/// Type of a chunk: data.
pub const DATA: u8 = 0;
/// Type of a chunk: opens an association.
pub const INIT: u8 = 1;
/// Type of a chunk: answers INIT.
pub const INIT_ACK: u8 = 2;
/// Type of a chunk: ends an association at once.
pub const ABORT: u8 = 6;
/// Type of a chunk: its sender has nothing more to send and knows that the other side has neither.
pub const SHUTDOWN_ACK: u8 = 8;
/// Type of a chunk: the last of an association.
pub const SHUTDOWN_COMPLETE: u8 = 14;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// CRC32c as in RFC 9260, appendix A, one bit at a time.
    fn crc32c(bytes: &[u8]) -> u32 {
        let shifted = bytes.iter().fold(u32::MAX, |crc, byte| byte_of_zeros(crc ^ u32::from(*byte)));
        !shifted
    }

    #[test]
    fn the_reference_is_crc32c() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    proptest! {
        #[test]
        fn a_patched_checksum_equals_a_fresh_one(
            mut packet in proptest::collection::vec(any::<u8>(), 16..1600), ports in any::<[u8; 4]>(),
        ) {
            packet[8..12].fill(0);
            let (before, length) = (crc32c(&packet), packet.len() as u32);
            let old = [packet[0], packet[1], packet[2], packet[3]];
            let difference = u32::from_ne_bytes(old) ^ u32::from_ne_bytes(ports);
            packet[..4].copy_from_slice(&ports);
            let patched = before.to_le() ^ checksum_difference(difference, length);
            prop_assert_eq!(patched, crc32c(&packet).to_le());
        }
    }

    #[test]
    fn a_checksum_is_patched_at_the_ends_of_the_tables() {
        for length in [16, 255, 256, 257, 511, 512, 65_280, 65_515] {
            let (zeros, mut changed) = (vec![0; length], vec![0; length]);
            changed[..4].copy_from_slice(&[1, 2, 3, 4]);
            let patched =
                crc32c(&zeros).to_le() ^ checksum_difference(u32::from_ne_bytes([1, 2, 3, 4]), length as u32);
            assert_eq!(patched, crc32c(&changed).to_le(), "{length} bytes");
        }
    }
}
