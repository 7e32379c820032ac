//! SERVICES, SELECTION and HINTS: from a service id to a backend, one aligned u64 at a time.
//!
//! Both arrays are memory-mapped by the agent, which stores whole words; a program that runs meanwhile sees
//! the old or the new word, never a mixture.

use crate::addr::Address;
use crate::hash::client_hash;
use crate::layout::shared;

/// Flag of [`ServiceEntry`]: the list is empty but the service has usable endpoints elsewhere, so traffic
/// is dropped and counted instead of refused.
pub const SERVICE_ELSEWHERE: u8 = 1 << 0;
/// Flag of [`ServiceEntry`]: the slice is a Maglev table of fixed length.
pub const SERVICE_MAGLEV: u8 = 1 << 1;
/// Flag of [`ServiceEntry`]: the list is empty; the slots are there for connections of former owners only.
pub const SERVICE_VACANT: u8 = 1 << 2;

/// Highest length of a slice.
pub const MAX_SLICE_LENGTH: u32 = (1 << 24) - 1;

/// A word of SERVICES: bits 0..32 the slice's offset in SELECTION, 32..56 its length, 56..64 flags.
///
/// The zero word is a service without a single endpoint.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServiceEntry(pub u64);

impl ServiceEntry {
    /// Packs a slice; `length` is cut to 24 bits.
    #[inline(always)]
    #[must_use]
    pub const fn new(offset: u32, length: u32, flags: u8) -> Self {
        Self(offset as u64 | ((length & MAX_SLICE_LENGTH) as u64) << 32 | (flags as u64) << 56)
    }
    /// First slot of the slice.
    #[inline(always)]
    #[must_use]
    pub const fn offset(self) -> u32 {
        self.0 as u32
    }
    /// Number of slots; 0 = no endpoint in this list.
    #[inline(always)]
    #[must_use]
    pub const fn length(self) -> u32 {
        (self.0 >> 32) as u32 & MAX_SLICE_LENGTH
    }
    /// `SERVICE_*` bits.
    #[inline(always)]
    #[must_use]
    pub const fn flags(self) -> u8 {
        (self.0 >> 56) as u8
    }
    /// The slot a hash falls on. The list must not be empty.
    #[inline(always)]
    #[must_use]
    pub const fn slot(self, hash: u32) -> u32 {
        self.offset().wrapping_add(((hash as u64 * self.length() as u64) >> 32) as u32)
    }
}

/// Names a backend and which incarnation of its id is meant: bits 0..24 the id, 24..31 the generation.
///
/// Id 0 is never given out: the zero reference is "none".
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BackendRef(pub u32);

impl BackendRef {
    /// No backend.
    pub const NONE: Self = Self(0);
    /// Bits of the id.
    pub const ID_BITS: u32 = 24;
    /// Number of different generations; they wrap around.
    pub const GENERATIONS: u8 = 128;

    /// Packs an id and a generation, cut to 24 and 7 bits.
    #[inline(always)]
    #[must_use]
    pub const fn new(id: u32, generation: u8) -> Self {
        Self(id & 0x00ff_ffff | ((generation & 0x7f) as u32) << Self::ID_BITS)
    }
    /// Index into BACKENDS4/6.
    #[inline(always)]
    #[must_use]
    pub const fn id(self) -> u32 {
        self.0 & 0x00ff_ffff
    }
    /// Incarnation of the id, 0..=127.
    #[inline(always)]
    #[must_use]
    pub const fn generation(self) -> u8 {
        (self.0 >> Self::ID_BITS) as u8 & 0x7f
    }
    /// Whether this names nothing.
    #[inline(always)]
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.id() == 0
    }
}

/// A word of SELECTION: bits 0..31 the current owner, 31..62 the settled owner, 62 unsettled.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slot(pub u64);

impl Slot {
    const REF_MASK: u64 = (1 << 31) - 1;
    const UNSETTLED: u64 = 1 << 62;

    /// A slot whose owner nobody disputes: current and settled are the same, the bit is clear.
    #[inline(always)]
    #[must_use]
    pub const fn settled_on(owner: BackendRef) -> Self {
        Self(owner.0 as u64 & Self::REF_MASK | (owner.0 as u64 & Self::REF_MASK) << 31)
    }
    /// A slot whose current owner is new while connections of the settled owner may live.
    #[inline(always)]
    #[must_use]
    pub const fn unsettled(current: BackendRef, settled: BackendRef) -> Self {
        Self(current.0 as u64 & Self::REF_MASK | (settled.0 as u64 & Self::REF_MASK) << 31 | Self::UNSETTLED)
    }
    /// The owner of new connections.
    #[inline(always)]
    #[must_use]
    pub const fn current(self) -> BackendRef {
        BackendRef((self.0 & Self::REF_MASK) as u32)
    }
    /// The owner of connections that have no flow entry.
    #[inline(always)]
    #[must_use]
    pub const fn settled(self) -> BackendRef {
        BackendRef((self.0 >> 31 & Self::REF_MASK) as u32)
    }
    /// Whether flow entries must be asked.
    #[inline(always)]
    #[must_use]
    pub const fn is_unsettled(self) -> bool {
        self.0 & Self::UNSETTLED != 0
    }
}

/// Bit of [`HintKey::hint`]: the key says that a backend is in a list. No hint of a packet has it.
pub const HINT_MEMBER: u32 = 1 << 31;
/// Bit of [`HintKey::hint`]: the other bits are of a hash of a pod's address. No hint of a packet has it.
pub const HINT_POD: u32 = 1 << 30;

shared! {
    /// Key of HINTS: the hint a director put into the outer header, together with the service it is for, so
    /// that a packet can never select another service's backend. Value: [`BackendRef`] of a backend on this
    /// node; and the same by the pod's address, for directors that name no more than that: see [`HintKey::pod`]. For lists of services
    /// with session affinity also: who is in the list; see [`HintKey::member`].
    pub struct HintKey {
        /// Service id.
        pub service: u32,
        /// 1..=16383, see [`hint`](crate::hash::hint); or [`HINT_MEMBER`] and a backend id; or [`HINT_POD`] and a hash of an address.
        pub hint: u32,
    }
}

impl HintKey {
    /// The key that is there while a backend is in the list of a service with affinity; its value is the [`BackendRef`].
    #[inline(always)]
    #[must_use]
    pub const fn member(service: u32, backend: BackendRef) -> Self {
        Self { service, hint: HINT_MEMBER | backend.id() }
    }
    /// The key by which a pod of this node is found from its address alone. Addresses share one now and then: whoever looks one up
    /// compares the backend's.
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
}
