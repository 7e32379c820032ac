//! SOURCE_RANGES4/6: the sources that may reach a frontend, and the sources inside the cluster.

use crate::layout::shared;

/// The "service id" of the cluster itself. Sources in its prefixes are inside the cluster, even if
/// they come in over an uplink. No Service has this id.
pub const CLUSTER: u32 = 0;

/// The "service id" of the near sources: this node's own addresses. externalTrafficPolicy does not
/// apply to them (decision 113), nor to pods of this node, which the hook knows by their device.
/// No Service has this id.
pub const NEAR: u32 = u32::MAX;

/// Bits of a key in front of the address. An entry's prefix length counts them, too.
pub const SERVICE_BITS: u32 = u32::BITS;

shared! {
    /// Key of SOURCE_RANGES4/6; the value is 1.
    ///
    /// The map is a longest-prefix-match trie. The kernel puts the prefix length in front of the
    /// key: [`SERVICE_BITS`] + that of the prefix.
    pub struct SourceRange<A> {
        /// Service id, [`CLUSTER`] or [`NEAR`].
        pub service: u32,
        /// First address of the prefix, or the client's address in a look-up.
        pub address: A,
    }
}
