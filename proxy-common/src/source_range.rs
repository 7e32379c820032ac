//! SOURCE_RANGES4/6: who may reach a frontend, and who is inside the cluster.

use crate::layout::shared;

/// Stands for the cluster itself instead of a service: sources inside its prefixes are inside the cluster, though they come
/// in over an uplink. No service has this id.
pub const CLUSTER: u32 = 0;

/// Stands for those sources inside the cluster to which externalTrafficPolicy does not apply: all of [`CLUSTER`] but other
/// nodes. No service has this id.
pub const NEAR: u32 = u32::MAX;

/// Bits of a key in front of the address: what an entry's prefix length counts beside the prefix's own.
pub const SERVICE_BITS: u32 = u32::BITS;

shared! {
    /// Key of SOURCE_RANGES4/6 behind the prefix length that the kernel keeps of a longest-prefix-match trie: that is
    /// [`SERVICE_BITS`] + the prefix's. The value is 1.
    pub struct SourceRange<A> {
        /// Service id, [`CLUSTER`] or [`NEAR`].
        pub service: u32,
        /// First address of the prefix; the client's, in a look-up.
        pub address: A,
    }
}
