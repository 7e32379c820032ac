//! PEERS: the addresses of nodes, and the senders of encapsulated packets that this node accepts.

use proxy_common::way::{PEER_NODE, PEER_SELF};

use crate::maps::config::{MARK_MASK, MARK_VALUE};
use crate::maps::family::Family;
use crate::maps::{self, mode};

/// The bits of an address in PEERS; zero if it is no node's.
#[inline(always)]
pub fn peer<O: Family>(address: &O::Address) -> u32 {
    // SAFETY: copied at once; a peer that is being removed may count as one a moment longer.
    O::with_peer_key(address, |key| unsafe { maps::PEERS.get(key).copied() }.unwrap_or(0))
}

/// Whether an address is this node's.
#[inline(never)]
pub fn is_own<F: Family>(address: &F::Address) -> bool {
    peer::<F>(address) & PEER_SELF != 0
}

/// Whether an address is another node's of the cluster.
#[inline(never)]
pub fn is_other_node<F: Family>(address: &F::Address) -> bool {
    peer::<F>(address) & (PEER_NODE | PEER_SELF) == PEER_NODE
}

/// Whether this node accepts encapsulated packets from an address.
#[inline(never)]
pub fn may_send<F: Family>(address: &F::Address) -> bool {
    F::is_outer_source(address) || peer::<F>(address) & (PEER_NODE | PEER_SELF) == PEER_NODE
}

/// Whether a tunnel packet without our mark that came in by an uplink may leave.
///
/// It may be one node's to another, which knows its sender as well as this one. It may also be this node's
/// own if IPVS serves as well: without a mark, it looks the same.
#[inline(always)]
pub fn is_forwarded<F: Family>(source: &F::Address) -> bool {
    let has_mark = MARK_VALUE.load() & MARK_MASK.load() != 0;
    may_send::<F>(source) || (!has_mark || !mode::is_alone()) && is_own::<F>(source)
}
