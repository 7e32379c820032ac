//! VIPS and VIP_FILTER: the addresses of Services, whatever the port.

use crate::addr::Address;
use crate::layout::shared;

/// Bit of a VIPS value: a Service's ClusterIP.
pub const VIP_CLUSTER_IP: u32 = 1 << 0;
/// Bit of a VIPS value: a Service's external IP or load balancer address.
pub const VIP_EXTERNAL: u32 = 1 << 1;
/// Bit of a VIPS value: over an uplink, only clients inside the cluster are served.
pub const VIP_INSIDE_ONLY: u32 = 1 << 2;

/// Bit of a VIPS value, alone: a Service's address that is a node's as well. Its other ports are the
/// node's business, but other nodes may decapsulate packets for it (decision 122).
pub const VIP_ON_NODE: u32 = 1 << 3;
/// The bits of an address whose other ports are no node's business.
pub const VIP_KINDS: u32 = VIP_CLUSTER_IP | VIP_EXTERNAL | VIP_INSIDE_ONLY;

/// The number of words in VIP_FILTER: 32 KiB. 20,000 addresses set one bit in thirteen (decision
/// 50).
pub const VIP_FILTER_WORDS: u32 = 4096;
const BITS: u32 = VIP_FILTER_WORDS.ilog2() + u64::BITS.ilog2();

shared! {
    /// Key of VIPS; the value is a set of `VIP_*` bits.
    pub struct VipKey {
        /// The address, v4-mapped for IPv4.
        pub address: [u32; 4],
    }
}

/// Returns the bit of an address in VIP_FILTER: the index of the word, and the mask.
///
/// The bit is set if the address is in VIPS. It may also be set if the address is not.
#[inline(always)]
pub fn filter_bit<A: Address>(address: &A) -> (u32, u64) {
    // A multiplication carries bits upwards only, so the upper bits of the product are the best.
    let hash = address.words().iter().fold(0_u32, |hash, word| (hash ^ *word).wrapping_mul(0x9e37_79b1));
    let bit = hash >> (u32::BITS - BITS);
    (bit >> u64::BITS.ilog2(), 1 << (bit & (u64::BITS - 1)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use core::net::{Ipv4Addr, Ipv6Addr};

    use super::*;
    use crate::{Addr4, Addr6};

    #[test]
    fn addresses_that_differ_in_their_last_bytes_have_bits_of_their_own() {
        let v4 = |n: u32| filter_bit(&Addr4::from(Ipv4Addr::from(0x0a60_0000 + n)));
        let v6 = |n: u32| {
            filter_bit(&Addr6::from(Ipv6Addr::from(
                0x2001_0db8_0005_0000_0000_0000_0000_0000 + u128::from(n),
            )))
        };
        for bits in [(0..4096).map(v4).collect::<BTreeSet<_>>(), (0..4096).map(v6).collect()] {
            assert!(bits.len() > 3900, "{} of 4096", bits.len());
            assert!(bits.iter().all(|(word, mask)| *word < VIP_FILTER_WORDS && mask.is_power_of_two()));
        }
    }
}
