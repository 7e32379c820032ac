//! SERVICES, SELECTION and HINTS: the way from a service id to a backend.
//!
//! A service id is an index into SERVICES. Its word names a slice of SELECTION. A hash picks a slot
//! of the slice, and the slot names its owners. The agent maps both arrays into its memory and
//! stores whole words. A program that runs meanwhile sees the old word or the new one, never a
//! mixture.

use crate::addr::Address;
use crate::hash::client_hash;
use crate::layout::shared;

/// Flag of [`ServiceEntry`]: the list is empty, but the Service has usable endpoints elsewhere.
/// Packets are dropped and counted instead of refused.
pub const SERVICE_ELSEWHERE: u8 = 1 << 0;
/// Flag of [`ServiceEntry`]: the slice is a Maglev table of fixed length.
pub const SERVICE_MAGLEV: u8 = 1 << 1;
/// Flag of [`ServiceEntry`]: the list is empty. The slots serve only connections of former owners
/// (decision 63).
pub const SERVICE_VACANT: u8 = 1 << 2;
/// Flag of [`ServiceEntry`]: the word of SELECTION before the slice is the [`ServiceEntry`] of the
/// table that the list had before. Connections by Direct Server Return may live there without any
/// flow entry (decision 199).
pub const SERVICE_FORMER: u8 = 1 << 3;

/// The largest length of a slice.
pub const MAX_SLICE_LENGTH: u32 = (1 << 24) - 1;

/// A word of SERVICES: the slice of a list. The zero word is a Service without any endpoint.
///
/// | Bits | Meaning |
/// |---|---|
/// | 0..32 | the slice's offset in SELECTION |
/// | 32..56 | its length in slots |
/// | 56..64 | `SERVICE_*` flags |
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServiceEntry(pub u64);

impl ServiceEntry {
    /// Packs a slice. `length` is cut to 24 bits.
    #[inline(always)]
    #[must_use]
    pub const fn new(offset: u32, length: u32, flags: u8) -> Self {
        Self(offset as u64 | ((length & MAX_SLICE_LENGTH) as u64) << 32 | (flags as u64) << 56)
    }
    /// Returns the first slot of the slice.
    #[inline(always)]
    #[must_use]
    pub const fn offset(self) -> u32 {
        self.0 as u32
    }
    /// Returns the number of slots. 0 = the list has no endpoint.
    #[inline(always)]
    #[must_use]
    pub const fn length(self) -> u32 {
        (self.0 >> 32) as u32 & MAX_SLICE_LENGTH
    }
    /// Returns the `SERVICE_*` bits.
    #[inline(always)]
    #[must_use]
    pub const fn flags(self) -> u8 {
        (self.0 >> 56) as u8
    }
    /// Returns the index in SELECTION of the word that names the former table, if there is one.
    #[inline(always)]
    #[must_use]
    pub const fn former(self) -> Option<u32> {
        if self.flags() & SERVICE_FORMER == 0 { None } else { self.offset().checked_sub(1) }
    }
    /// Returns the slot that a hash picks. The list must not be empty.
    #[inline(always)]
    #[must_use]
    pub const fn slot(self, hash: u32) -> u32 {
        self.offset().wrapping_add(((hash as u64 * self.length() as u64) >> 32) as u32)
    }
}

/// A reference to a backend, with the generation of its id. Id 0 is never given out: the zero
/// reference is "none".
///
/// | Bits | Meaning |
/// |---|---|
/// | 0..24 | the id |
/// | 24..31 | the generation |
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BackendRef(pub u32);

impl BackendRef {
    /// The reference to no backend.
    pub const NONE: Self = Self(0);
    /// The number of bits of the id.
    pub const ID_BITS: u32 = 24;
    /// The number of generations. They wrap around.
    pub const GENERATIONS: u8 = 128;

    /// Packs an id and a generation, cut to 24 and 7 bits.
    #[inline(always)]
    #[must_use]
    pub const fn new(id: u32, generation: u8) -> Self {
        Self(id & 0x00ff_ffff | ((generation & 0x7f) as u32) << Self::ID_BITS)
    }
    /// Returns the id, an index into BACKENDS4/6.
    #[inline(always)]
    #[must_use]
    pub const fn id(self) -> u32 {
        self.0 & 0x00ff_ffff
    }
    /// Returns the generation of the id, 0..=127.
    #[inline(always)]
    #[must_use]
    pub const fn generation(self) -> u8 {
        (self.0 >> Self::ID_BITS) as u8 & 0x7f
    }
    /// Returns whether this names no backend.
    #[inline(always)]
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.id() == 0
    }
}

/// A word of SELECTION: the owners of a slot. [`rules`](crate::rules) has its rules.
///
/// | Bits | Meaning |
/// |---|---|
/// | 0..31 | the current owner |
/// | 31..62 | the settled owner |
/// | 62 | set while the slot is unsettled |
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slot(pub u64);

impl Slot {
    const REF_MASK: u64 = (1 << 31) - 1;
    const UNSETTLED: u64 = 1 << 62;

    /// Returns a settled slot: one backend is the current and the settled owner, and the bit is
    /// clear.
    #[inline(always)]
    #[must_use]
    pub const fn settled_on(owner: BackendRef) -> Self {
        Self(owner.0 as u64 & Self::REF_MASK | (owner.0 as u64 & Self::REF_MASK) << 31)
    }
    /// Returns an unsettled slot: connections of the settled owner may live.
    #[inline(always)]
    #[must_use]
    pub const fn unsettled(current: BackendRef, settled: BackendRef) -> Self {
        Self(current.0 as u64 & Self::REF_MASK | (settled.0 as u64 & Self::REF_MASK) << 31 | Self::UNSETTLED)
    }
    /// Returns the owner of new connections.
    #[inline(always)]
    #[must_use]
    pub const fn current(self) -> BackendRef {
        BackendRef((self.0 & Self::REF_MASK) as u32)
    }
    /// Returns the owner of connections without a flow entry.
    #[inline(always)]
    #[must_use]
    pub const fn settled(self) -> BackendRef {
        BackendRef((self.0 >> 31 & Self::REF_MASK) as u32)
    }
    /// Returns whether the programs must ask for flow entries.
    #[inline(always)]
    #[must_use]
    pub const fn is_unsettled(self) -> bool {
        self.0 & Self::UNSETTLED != 0
    }
}

/// Bit of [`HintKey::hint`]: the key is that of a list's member. No packet's hint has it.
pub const HINT_MEMBER: u32 = 1 << 31;
/// Bit of [`HintKey::hint`]: the lower bits are a hash of a pod's address. No packet's hint has it.
pub const HINT_POD: u32 = 1 << 30;

shared! {
    /// Key of HINTS; the value is a [`BackendRef`]. There are three kinds of keys:
    ///
    /// - by hint: a backend of this node, by the hint in the outer header
    /// - by pod ([`HintKey::pod`]): a backend of this node, by its address, for directors without
    ///   hints (IPVS)
    /// - by member ([`HintKey::member`]): each member of a list with session affinity
    ///
    /// Every key has the service id, so a packet can't select the backend of another Service.
    pub struct HintKey {
        /// Service id.
        pub service: u32,
        /// A [`hint`](crate::hash::hint), 1..=16383; or [`HINT_MEMBER`] and a backend id; or
        /// [`HINT_POD`] and a hash of an address.
        pub hint: u32,
    }
}

impl HintKey {
    /// Returns the key that HINTS has while a backend is in the list of a Service with affinity.
    /// Its value is the [`BackendRef`].
    #[inline(always)]
    #[must_use]
    pub const fn member(service: u32, backend: BackendRef) -> Self {
        Self { service, hint: HINT_MEMBER | backend.id() }
    }
    /// Returns the key of a pod of this node, by its address alone.
    ///
    /// Two addresses may share a key. The reader must compare the backend's address.
    #[inline(always)]
    #[must_use]
    pub fn pod<A: Address>(service: u32, address: &A) -> Self {
        Self { service, hint: HINT_POD | client_hash(address) & (HINT_POD - 1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: BackendRef = BackendRef::new(7, 3);
    const B: BackendRef = BackendRef::new(0x00ab_cdef, 127);

    #[test]
    fn words_keep_what_was_packed() {
        let entry = ServiceEntry::new(0xdead_beef, 0x00ff_ffff, 0xa5);
        assert_eq!((entry.offset(), entry.length(), entry.flags()), (0xdead_beef, 0x00ff_ffff, 0xa5));
        assert_eq!((B.id(), B.generation()), (0x00ab_cdef, 127));
        let slot = Slot::unsettled(A, B);
        assert_eq!((slot.current(), slot.settled(), slot.is_unsettled()), (A, B, true));
        assert!(!Slot::settled_on(B).is_unsettled());
    }

    #[test]
    fn a_hash_falls_inside_the_slice() {
        let entry = ServiceEntry::new(100, 3, 0);
        assert_eq!(entry.slot(0), 100);
        assert_eq!(entry.slot(u32::MAX), 102);
        assert_eq!(entry.slot(u32::MAX / 2), 101);
    }

    #[test]
    fn the_word_before_a_slice_names_the_former_table() {
        assert_eq!(ServiceEntry::new(100, 3, SERVICE_MAGLEV).former(), None);
        assert_eq!(ServiceEntry::new(100, 3, SERVICE_MAGLEV | SERVICE_FORMER).former(), Some(99));
        assert_eq!(ServiceEntry::new(0, 3, SERVICE_FORMER).former(), None, "no word is before the first");
    }
}
