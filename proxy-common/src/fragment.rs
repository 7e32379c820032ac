//! FRAGMENTS4/6 and HELD: what the first fragment of a packet says, and the fragments that came
//! before it.
//!
//! Only the first fragment has ports. The programs treat each later one as the first (decisions 66
//! and 87).

use crate::hash::mix;
use crate::layout::shared;
use crate::{Addr6, Address};

/// Seconds for which the programs wait for a packet's other fragments, as Linux' own `ipfrag_time`.
pub const FRAGMENT_SECONDS: u32 = 30;

/// The side of the node where a program meets a fragment.
///
/// All fragments of one packet are met on one side. A pod so can't add a fragment to the packet of
/// a client outside. It may forge its source address, and the programs see its packets before any
/// firewall does.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Any uplink: the network may spread the fragments of a packet over several.
    Uplink = 0,
    /// Any uplink, inside a tunnel from another node to this one.
    Tunnel = 1,
    /// On the way out, or to a pod.
    Out = 2,
    /// From a pod. The device of each pod is a side of its own.
    Pod = 3,
    /// Any uplink, inside any other tunnel.
    Stranger = 4,
}

/// The bit at which [`FragmentKey::protocol_and_side`] has the side.
const SIDE_SHIFT: u32 = 8;
/// The bit of a side that marks a pod's device. The bits below are the device's index.
const POD_SIDE: u32 = 1 << 23;

impl Side {
    /// Returns the side by the number in the lowest three bits.
    #[inline(always)]
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        match bits & 7 {
            0 => Self::Uplink,
            1 => Self::Tunnel,
            2 => Self::Out,
            3 => Self::Pod,
            _ => Self::Stranger,
        }
    }
    /// Returns the field [`FragmentKey::protocol_and_side`] of a fragment that is met on the device
    /// with this index.
    #[inline(always)]
    #[must_use]
    pub const fn with_protocol(self, device: u32, protocol: u32) -> u32 {
        let side = match self {
            Self::Pod => POD_SIDE | device & (POD_SIDE - 1),
            Self::Uplink | Self::Tunnel | Self::Out | Self::Stranger => self as u32,
        };
        side << SIDE_SHIFT | protocol
    }
}

shared! {
    /// Key of FRAGMENTS4/6: the fields that all fragments of a packet share.
    pub struct FragmentKey<A> {
        /// Source address.
        pub source: A,
        /// Destination address.
        pub destination: A,
        /// Identification, bytes in network order: 16 bits of IPv4, 32 of IPv6.
        pub id: u32,
        /// The protocol in the lowest byte, the side above it; see [`Side::with_protocol`].
        ///
        /// The byte is zero with IPv6. IPv6 tells fragments apart without the protocol, and only
        /// the first one's counts (RFC 8200, section 4.5).
        pub protocol_and_side: u32,
    }
}

/// Largest frame in bytes that HELD has room for.
pub const HELD_BYTES: usize = 2048;
/// The number of entries in HELD for each CPU.
pub const HELD_PER_CPU: u32 = 64;
/// The number of fragments of one packet that can be held.
pub const HELD_PIECES: u32 = 64;
/// Bytes of a packet for each place in HELD: one fragment can be held for each. A packet has at
/// most 64 KiB, and fragments may begin anywhere.
pub const HELD_PIECE_BYTES: u32 = 1024;

shared! {
    /// Key of HELD: a [`FragmentKey`] of either family, and the fragment's place in the packet.
    pub struct HeldKey {
        /// Source address, v4-mapped.
        pub source: Addr6,
        /// Destination address, v4-mapped.
        pub destination: Addr6,
        /// As in [`FragmentKey`].
        pub id: u32,
        /// As in [`FragmentKey`].
        pub protocol_and_side: u32,
        /// The fragment's offset in units of [`HELD_PIECE_BYTES`].
        pub piece: u32,
    }
}

shared! {
    /// Value of HELD.
    pub struct Held {
        /// Bytes of the frame.
        pub length: u32,
        /// Monotonic second of its arrival.
        pub seen: u32,
        /// The frame with its Ethernet header. Bytes beyond `length` have no meaning.
        pub frame: [[u64; 16]; HELD_BYTES / 128],
    }
}

impl Held {
    /// Returns whether the programs still wait for the packet's first fragment.
    #[inline(always)]
    #[must_use]
    pub const fn is_awaited(&self, now: u32) -> bool {
        now.wrapping_sub(self.seen).wrapping_add(1) <= FRAGMENT_SECONDS + 1
    }
}

/// The ports and the protocol of a fragmented packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FragmentOf {
    /// Source port, network byte order.
    pub source_port: u16,
    /// Destination port, network byte order.
    pub destination_port: u16,
    /// IP protocol number of the packet's payload.
    pub protocol: u8,
}

/// Value of FRAGMENTS4/6.
///
/// It is one word, so no program reads a torn value. An LRU map may give the entry to another key
/// while a program reads it. The check tells that.
///
/// | Bits | Meaning |
/// |---|---|
/// | 0..16 | source port |
/// | 16..32 | destination port |
/// | 32..40 | protocol |
/// | 40..48 | check: bits of the key's hash |
/// | 48..64 | the lower half of the monotonic second of the first fragment |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FragmentWord(pub u64);

impl FragmentOf {
    /// Stands in an entry until the first fragment comes: later ones are held. No packet has this
    /// protocol (IANA: reserved).
    pub const AWAITED: Self = Self { source_port: 0, destination_port: 0, protocol: 255 };

    /// Returns whether the first fragment has not come yet.
    #[inline(always)]
    #[must_use]
    pub const fn is_awaited(self) -> bool {
        self.protocol == Self::AWAITED.protocol
    }
    /// Packs the five bytes into the lower bits of a word.
    #[inline(always)]
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        self.source_port as u64 | (self.destination_port as u64) << 16 | (self.protocol as u64) << 32
    }
    /// Unpacks the lower bits of a word. The bits above have no influence.
    #[inline(always)]
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self { source_port: bits as u16, destination_port: (bits >> 16) as u16, protocol: (bits >> 32) as u8 }
    }
}

impl FragmentWord {
    /// Returns the entry for a first fragment seen at `now` (monotonic seconds).
    #[inline(always)]
    #[must_use]
    pub fn new<A: Address>(key: &FragmentKey<A>, of: FragmentOf, now: u32) -> Self {
        Self(of.to_bits() | check(key) << 40 | (now as u64 & 0xffff) << 48)
    }
    /// Returns the ports and the protocol of this key's packet, or `None` if the entry is too old
    /// or another key's.
    #[inline(always)]
    #[must_use]
    pub fn read<A: Address>(self, key: &FragmentKey<A>, now: u32) -> Option<FragmentOf> {
        // The clock of another CPU may be a tick ahead.
        let age = (now as u16).wrapping_sub((self.0 >> 48) as u16).wrapping_add(1);
        let is_fresh = u32::from(age) <= FRAGMENT_SECONDS + 1;
        (is_fresh && self.0 >> 40 & 0xff == check(key)).then_some(FragmentOf::from_bits(self.0))
    }
}

#[inline(always)]
fn check<A: Address>(key: &FragmentKey<A>) -> u64 {
    let start = u64::from(key.id) << 32 | u64::from(key.protocol_and_side);
    let words = key.source.words().iter().chain(key.destination.words());
    words.fold(mix(start), |sum, word| mix(sum ^ u64::from(*word))) >> 56
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Addr4;

    fn key(id: u32) -> FragmentKey<Addr4> {
        FragmentKey { source: Addr4([0x0a00_0001]), destination: Addr4([7]), id, protocol_and_side: 17 }
    }

    proptest! {
        #[test]
        fn an_entry_is_read_for_thirty_seconds(
            source_port: u16, destination_port: u16, protocol: u8, now: u32, id: u32,
        ) {
            let of = FragmentOf { source_port, destination_port, protocol };
            let word = FragmentWord::new(&key(id), of, now);
            for age in 0..=FRAGMENT_SECONDS {
                prop_assert_eq!(word.read(&key(id), now.wrapping_add(age)), Some(of));
            }
            prop_assert_eq!(word.read(&key(id), now.wrapping_add(FRAGMENT_SECONDS + 1)), None);
            prop_assert_eq!(word.read(&key(id), now.wrapping_sub(1)), Some(of), "a clock that is a tick behind");
        }
    }

    #[test]
    fn a_pods_device_is_a_side_of_its_own_and_the_uplinks_are_one() {
        let common = [Side::Uplink, Side::Tunnel, Side::Out, Side::Stranger];
        let known = |side: Side, device| (side.with_protocol(device, 17), Side::from_bits(side as u32));
        assert!(common.iter().all(|side| known(*side, 1) == known(*side, 2)));
        assert!(common.iter().chain([&Side::Pod]).all(|side| known(*side, 1).1 == *side));
        let mut keys: Vec<u32> = common.iter().map(|side| known(*side, 1).0).collect();
        keys.extend((0..4).map(|device| known(Side::Pod, device).0));
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 8);
        assert!(keys.iter().all(|key| key & 0xff == 17));
    }

    #[test]
    fn a_held_fragment_waits_as_long_as_an_entry_lasts() {
        let held = Held { seen: 100, ..Held::default() };
        assert!(held.is_awaited(99) && held.is_awaited(100) && held.is_awaited(130));
        assert!(!held.is_awaited(131) && !held.is_awaited(98));
    }

    #[test]
    fn the_check_recognises_nearly_every_entry_of_another_key() {
        let word = FragmentWord::new(&key(1), FragmentOf::default(), 100);
        let wrong = (2..10_002).filter(|id| word.read(&key(*id), 100).is_some()).count();
        assert!(wrong < 100, "{wrong} of 10000");
    }
}
