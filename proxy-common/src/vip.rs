//! VIPS and ADDRESS_FILTER: the addresses that the programs look for, whatever the port.

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

/// The number of words in ADDRESS_FILTER: 64 KiB. 20,000 addresses take one place in thirteen
/// (decision 50).
pub const ADDRESS_FILTER_WORDS: u32 = 8192;
/// Bit of a place in ADDRESS_FILTER: the programs look at packets for the address. It is one of this
/// node, or a frontend's.
pub const FILTER_SERVED: u64 = 1 << 0;
/// Bit of a place in ADDRESS_FILTER: the address is in VIPS, or has a frontend that is no NodePort. At an
/// address of this node without this bit, only ports in NODE_PORTS have frontends.
pub const FILTER_VIP: u64 = 1 << 1;
const PLACE_BITS: u32 = 2;
const PLACES_BITS: u32 = ADDRESS_FILTER_WORDS.ilog2() + (u64::BITS / PLACE_BITS).ilog2();

shared! {
    /// Key of VIPS; the value is a set of `VIP_*` bits.
    pub struct VipKey {
        /// The address, v4-mapped for IPv4.
        pub address: [u32; 4],
    }
}

/// Returns the place of an address in ADDRESS_FILTER: the index of the word, and the position of the
/// place's two bits.
///
/// Another address may have the same place. The bits rule addresses out, and prove nothing.
#[inline(always)]
pub fn filter_place<A: Address>(address: &A) -> (u32, u32) {
    // Odd factors, one a word: the products do not wait for each other. A multiplication carries bits
    // upwards only, so addresses must differ in low bits, and the upper bits of the sum are the best.
    const PLACES: u32 = u64::BITS / PLACE_BITS;
    const FACTORS: [u32; 4] = [0x9e37_79b1, 0x85eb_ca77, 0xc2b2_ae3d, 0x27d4_eb2f];
    let products =
        address.words().iter().zip(FACTORS).map(|(word, factor)| u32::from_be(*word).wrapping_mul(factor));
    let place = products.fold(0_u32, u32::wrapping_add) >> (u32::BITS - PLACES_BITS);
    (place / PLACES, place % PLACES * PLACE_BITS)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use core::net::{Ipv4Addr, Ipv6Addr};

    use super::*;
    use crate::{Addr4, Addr6};

    #[test]
    fn addresses_that_differ_in_their_last_bytes_have_places_of_their_own() {
        let v4 = |n: u32| filter_place(&Addr4::from(Ipv4Addr::from(0x0a60_0000 + n)));
        let v6 = |n: u32| {
            filter_place(&Addr6::from(Ipv6Addr::from(
                0x2001_0db8_0005_0000_0000_0000_0000_0000 + u128::from(n),
            )))
        };
        for places in [(0..4096).map(v4).collect::<BTreeSet<_>>(), (0..4096).map(v6).collect()] {
            assert!(places.len() > 3900, "{} of 4096", places.len());
            assert!(places.iter().all(|(word, shift)| *word < ADDRESS_FILTER_WORDS && *shift <= 62));
        }
    }
}
