//! FRAGMENTS4/6: what the later fragments of a packet do not say. Only the first one has ports. HELD: those that came before it.

use crate::hash::mix;
use crate::layout::shared;
use crate::{Addr6, Address};

/// Seconds after which the other fragments of a packet are not waited for: those of Linux' own `ipfrag_time`.
pub const FRAGMENT_SECONDS: u32 = 30;

/// Where fragments are met. Those of one packet are met on one side, so that nobody adds to a packet of another: a pod, which may
/// lie about its address before anybody's rules have seen its packets, to one of a client outside.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Over any of the uplinks: the network may spread a packet's fragments over them.
    Uplink = 0,
    /// The same, inside a tunnel from another node to this one.
    Tunnel = 1,
    /// On their way out, or to a pod.
    Out = 2,
    /// From a pod's device, of which each is a side of its own.
    Pod = 3,
    /// Over any of the uplinks, inside any other tunnel.
    Stranger = 4,
}

/// Where [`FragmentKey::protocol_and_side`] has the side.
const SIDE_SHIFT: u32 = 8;
/// Set for a pod's device, above so many bits of its index.
const POD_SIDE: u32 = 1 << 23;

impl Side {
    /// The side whose number is in the lowest three bits.
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
    /// What stands in the key of a fragment that is met at the device with this index, with its protocol.
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
    /// Key of FRAGMENTS4/6: what all fragments of a packet share.
    pub struct FragmentKey<A> {
        /// Source address.
        pub source: A,
        /// Destination address.
        pub destination: A,
        /// Identification, bytes in network order: 16 bits of IPv4, 32 of IPv6.
        pub id: u32,
        /// In the lowest byte IPv4's protocol. Zero with IPv6, whose fragments are told apart without it, and only the first's counts
        /// (RFC 8200, section 4.5). Above it where the fragment was met; see [`Side::with_protocol`].
        pub protocol_and_side: u32,
    }
}

/// Bytes of a frame that HELD has room for.
pub const HELD_BYTES: usize = 2048;
/// Entries that HELD has for each CPU.
pub const HELD_PER_CPU: u32 = 64;
/// As many fragments of one packet can be held.
pub const HELD_PIECES: u32 = 64;
/// Bytes of a packet for which one fragment is held: they need not begin where a fragment begins, and a packet has at most 64 KiB.
pub const HELD_PIECE_BYTES: u32 = 1024;

shared! {
    /// Key of HELD: a [`FragmentKey`] of either family, and where in the packet the fragment belongs.
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
        /// Monotonic seconds at which it came.
        pub seen: u32,
        /// The frame, its Ethernet header included; what stands behind `length` bytes means nothing.
        pub frame: [[u64; 16]; HELD_BYTES / 128],
    }
}

impl Held {
    /// Whether the packet's first fragment is still waited for.
    #[inline(always)]
    #[must_use]
    pub const fn is_awaited(&self, now: u32) -> bool {
        now.wrapping_sub(self.seen).wrapping_add(1) <= FRAGMENT_SECONDS + 1
    }
}

/// Ports and protocol of a packet that was cut up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FragmentOf {
    /// Source port, network byte order.
    pub source_port: u16,
    /// Destination port, network byte order.
    pub destination_port: u16,
    /// IP protocol number of what the packet carries.
    pub protocol: u8,
}

/// Value of FRAGMENTS4/6. One word, so that none is read torn; eight bits of the key's hash tell one that was given to another
/// key while it was read.
///
/// From the lowest bit: source port (16), destination port (16), protocol (8), check (8), the lower half of the monotonic
/// seconds at which the first fragment was seen (16).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FragmentWord(pub u64);

impl FragmentOf {
    /// In place of what is not known yet: fragments are held until the first one comes. No packet has this protocol (IANA:
    /// reserved).
    pub const AWAITED: Self = Self { source_port: 0, destination_port: 0, protocol: 255 };

    /// Whether the first fragment has not come yet.
    #[inline(always)]
    #[must_use]
    pub const fn is_awaited(self) -> bool {
        self.protocol == Self::AWAITED.protocol
    }
    /// The five bytes as the lower ones of a word.
    #[inline(always)]
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        self.source_port as u64 | (self.destination_port as u64) << 16 | (self.protocol as u64) << 32
    }
    /// The inverse; what stands above is not looked at.
    #[inline(always)]
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self { source_port: bits as u16, destination_port: (bits >> 16) as u16, protocol: (bits >> 32) as u8 }
    }
}

impl FragmentWord {
    /// The entry for a first fragment seen at `now` (monotonic seconds).
    #[inline(always)]
    #[must_use]
    pub fn new<A: Address>(key: &FragmentKey<A>, of: FragmentOf, now: u32) -> Self {
        Self(of.to_bits() | check(key) << 40 | (now as u64 & 0xffff) << 48)
    }
    /// What a fragment with this key belongs to, unless the entry is too old or another's.
    #[inline(always)]
    #[must_use]
    pub fn read<A: Address>(self, key: &FragmentKey<A>, now: u32) -> Option<FragmentOf> {
        // Another CPU may be a tick ahead.
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
        fn what_the_first_fragment_said_is_read_for_thirty_seconds(
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
    fn a_fragment_is_held_as_long_as_others_are_waited_for() {
        let held = Held { seen: 100, ..Held::default() };
        assert!(held.is_awaited(99) && held.is_awaited(100) && held.is_awaited(130));
        assert!(!held.is_awaited(131) && !held.is_awaited(98));
    }

    #[test]
    fn an_entry_of_another_key_is_nearly_always_told() {
        let word = FragmentWord::new(&key(1), FragmentOf::default(), 100);
        let wrong = (2..10_002).filter(|id| word.read(&key(*id), 100).is_some()).count();
        assert!(wrong < 100, "{wrong} of 10000");
    }
}
