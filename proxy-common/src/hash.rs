//! The two hashes that every node of a cluster must compute alike: the slot of a packet, and the
//! hint of a backend.

use crate::addr::Address;
use crate::tuple::FlowKey;

const SEED: u64 = 0x6d69_6c6c_7261_6365;

/// Mixes a word: Murmur3's 64-bit finaliser. It has full avalanche in five operations, without a
/// 128-bit product.
#[inline(always)]
#[must_use]
pub const fn mix(mut word: u64) -> u64 {
    word ^= word >> 33;
    word = word.wrapping_mul(0xff51_afd7_ed55_8ccd);
    word ^= word >> 33;
    word = word.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    word ^ word >> 33
}

/// Absorbs two words at a time.
#[inline(always)]
const fn absorb(state: u64, low: u32, high: u32) -> u64 {
    mix(state ^ (low as u64 | (high as u64) << 32))
}

#[inline(always)]
fn absorb_address<A: Address>(mut state: u64, address: &A) -> u64 {
    // The trip count is small and fixed (the words of one address), so the compiler unrolls the
    // loop.
    for pair in address.words().chunks(2) {
        state = match *pair {
            [low, high] => absorb(state, low, high),
            [low] => absorb(state, low, 0),
            _ => state,
        };
    }
    state
}

/// Returns the hash that chooses a slot, of the tuple in the client's packet.
#[inline(always)]
pub fn flow_hash<A: Address>(key: &FlowKey<A>) -> u32 {
    let ports = (key.source_port as u64) | (key.destination_port as u64) << 16 | (key.protocol as u64) << 32;
    let state = mix(SEED ^ ports);
    if let ([source], [destination]) = (key.source.words(), key.destination.words()) {
        return absorb(state, *source, *destination) as u32;
    }
    absorb_address(absorb_address(state, &key.source), &key.destination) as u32
}

/// Returns the hash that chooses a slot under session affinity, of the client's address alone.
#[inline(always)]
pub fn client_hash<A: Address>(client: &A) -> u32 {
    absorb_address(SEED, client) as u32
}

/// Returns the hint that names a backend to its node, 1..=16383, of its address and target port
/// (network order).
///
/// A hint has 14 bits: the outer IPv4 identification has room for them and for two flags. 0 means
/// "no hint". Two backends of one Service may have the same hint. On every node, it then belongs to
/// the lower address and port.
#[must_use]
pub fn hint<A: Address>(address: &A, port: u16) -> u16 {
    let hash = absorb_address(mix(SEED ^ u64::from(port)), address);
    // The modulus and the increment leave zero out.
    (hash % 16383 + 1) as u16
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use super::*;
    use crate::{Addr4, Addr6};

    fn key(client: u32, port: u16) -> FlowKey<Addr4> {
        FlowKey {
            source: Addr4::from(Ipv4Addr::from(client)),
            destination: Addr4::from(Ipv4Addr::new(203, 0, 113, 1)),
            source_port: port.to_be(),
            destination_port: 80_u16.to_be(),
            protocol: 6,
            reserved: 0,
            unused: 0,
        }
    }

    #[test]
    fn the_values_are_part_of_the_contract_between_nodes() {
        // A changed value moves every flow of a cluster whose nodes are upgraded one by one.
        assert_eq!(flow_hash(&key(0xc000_0201, 40000)), FLOW_HASH);
        assert_eq!(client_hash(&Addr6([1, 2, 3, 4])), CLIENT_HASH);
        assert_eq!(hint(&Addr4::from(Ipv4Addr::new(10, 0, 0, 1)), 8080_u16.to_be()), HINT);
    }
    const FLOW_HASH: u32 = 3_069_100_149;
    const CLIENT_HASH: u32 = 3_540_615;
    const HINT: u16 = 9_280;

    #[test]
    fn consecutive_ports_and_clients_spread_evenly() {
        const BUCKETS: usize = 64;
        let mut by_port = [0_u32; BUCKETS];
        let mut by_client = [0_u32; BUCKETS];
        for i in 0..64_000_u32 {
            let bucket = |hash: u32| ((u64::from(hash) * BUCKETS as u64) >> 32) as usize;
            by_port[bucket(flow_hash(&key(0xc000_0201, i as u16)))] += 1;
            by_client[bucket(flow_hash(&key(0x0a00_0000 + i, 40000)))] += 1;
        }
        for count in by_port.into_iter().chain(by_client) {
            assert!((850..1150).contains(&count), "a bucket of mean 1000 holds {count}");
        }
    }

    #[test]
    fn a_hint_is_never_zero_and_fits_fourteen_bits() {
        for i in 0..100_000_u32 {
            let hint = hint(&Addr4::from(Ipv4Addr::from(i)), 80);
            assert!((1..1 << 14).contains(&hint));
        }
    }
}
