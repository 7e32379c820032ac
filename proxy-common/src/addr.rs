//! IP addresses as the programs load them: 32-bit words, with their bytes in network order.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An address of one family, as a short array of 32-bit words.
///
/// BPF loads a word at once. It has no unaligned and no wide copies of bytes.
pub trait Address: sealed::Sealed + Copy + Default + Eq + 'static {
    /// The number of 32-bit words: 1 or 4.
    const WORDS: usize;
    /// The words, bytes in network order.
    fn words(&self) -> &[u32];
    /// Returns zero if the addresses are equal, else any other number. The verifier would follow each word's
    /// comparison on its own.
    #[inline(always)]
    fn difference(&self, other: &Self) -> u32 {
        self.words().iter().zip(other.words()).fold(0, |sum, (one, other)| sum | one ^ other)
    }
    /// Returns the address as user space and people know it.
    fn to_ip(self) -> IpAddr;
    /// Returns the address if it is of this family.
    fn from_ip(address: IpAddr) -> Option<Self>;
}

/// An IPv4 address: one word, bytes in network order.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Addr4(pub [u32; 1]);

/// An IPv6 address: four words, bytes in network order.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Addr6(pub [u32; 4]);

mod sealed {
    /// Seals [`Address`](super::Address): `shared!` proves its types for two address types, so
    /// there must be no third.
    pub trait Sealed {}
    impl Sealed for super::Addr4 {}
    impl Sealed for super::Addr6 {}
}

impl Address for Addr4 {
    const WORDS: usize = 1;
    #[inline(always)]
    fn words(&self) -> &[u32] {
        &self.0
    }
    fn to_ip(self) -> IpAddr {
        let [word] = self.0;
        IpAddr::V4(Ipv4Addr::from(word.to_ne_bytes()))
    }
    fn from_ip(address: IpAddr) -> Option<Self> {
        match address {
            IpAddr::V4(address) => Some(address.into()),
            IpAddr::V6(_) => None,
        }
    }
}

impl Address for Addr6 {
    const WORDS: usize = 4;
    #[inline(always)]
    fn words(&self) -> &[u32] {
        &self.0
    }
    fn to_ip(self) -> IpAddr {
        let [a, b, c, d] = self.0.map(u32::to_ne_bytes);
        let mut octets = [0; 16];
        for (target, source) in octets.chunks_exact_mut(4).zip([a, b, c, d]) {
            target.copy_from_slice(&source);
        }
        IpAddr::V6(Ipv6Addr::from(octets))
    }
    fn from_ip(address: IpAddr) -> Option<Self> {
        match address {
            IpAddr::V4(_) => None,
            IpAddr::V6(address) => Some(address.into()),
        }
    }
}

impl From<Ipv4Addr> for Addr4 {
    fn from(address: Ipv4Addr) -> Self {
        Self([u32::from_ne_bytes(address.octets())])
    }
}

impl From<Ipv6Addr> for Addr6 {
    fn from(address: Ipv6Addr) -> Self {
        let [a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3] = address.octets();
        Self([
            u32::from_ne_bytes([a0, a1, a2, a3]),
            u32::from_ne_bytes([b0, b1, b2, b3]),
            u32::from_ne_bytes([c0, c1, c2, c3]),
            u32::from_ne_bytes([d0, d1, d2, d3]),
        ])
    }
}

/// Returns an address of either family in four words, IPv4 in its v4-mapped form
/// (`::ffff:a.b.c.d`).
///
/// The maps that serve both families use this form: [`PeerKey`](crate::way::PeerKey) and
/// [`Way`](crate::way::Way).
#[must_use]
pub fn mapped(address: IpAddr) -> [u32; 4] {
    let address = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    Addr6::from(address).0
}

/// Returns the address of four words: the inverse of [`mapped`].
#[must_use]
pub fn unmapped(words: [u32; 4]) -> IpAddr {
    Addr6(words).to_ip().to_canonical()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_round_trip_through_words() {
        for text in ["192.0.2.1", "255.255.255.255", "0.0.0.0"] {
            let address: IpAddr = text.parse().unwrap();
            assert_eq!(Addr4::from_ip(address).unwrap().to_ip(), address);
            assert_eq!(unmapped(mapped(address)), address);
            assert_eq!(Addr6::from_ip(address), None);
        }
        for text in ["2001:db8::1", "fe80::1234:5678", "::"] {
            let address: IpAddr = text.parse().unwrap();
            assert_eq!(Addr6::from_ip(address).unwrap().to_ip(), address);
            assert_eq!(unmapped(mapped(address)), address);
            assert_eq!(Addr4::from_ip(address), None);
        }
    }

    #[test]
    fn words_hold_the_bytes_in_network_order() {
        assert_eq!(Addr4::from(Ipv4Addr::new(192, 0, 2, 1)).0[0].to_ne_bytes(), [192, 0, 2, 1]);
        assert_eq!(mapped("1.2.3.4".parse().unwrap())[2], 0xffff_u32.to_be());
    }
}
