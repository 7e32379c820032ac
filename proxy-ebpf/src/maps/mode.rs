//! SHARE: whether this mode serves alone, or beside the node's former or next mode.

use proxy_common::config::{SHARE_ALONE, SHARE_NEWER, SHARE_OLDER, SHARE_TURNED};

use crate::header::has_connections;
use crate::maps::config::SHARE;

/// Whether there is no other mode.
#[inline(always)]
pub fn is_alone() -> bool {
    SHARE.load() == SHARE_ALONE
}

/// Whether connections that are unknown here may be the former mode's.
///
/// Then all connections of this mode have entries, including those for which a director would otherwise need
/// none.
#[inline(always)]
pub fn is_newer() -> bool {
    SHARE.load() & !SHARE_TURNED == SHARE_NEWER
}

/// Whether connections that begin now are the other mode's.
#[inline(always)]
pub fn is_older() -> bool {
    SHARE.load() & !SHARE_TURNED == SHARE_OLDER
}

/// Whether this mode's directors own a protocol's packets without an entry.
///
/// Such packets belong to the mode that the node had before its first change, as long as connections from
/// then may be left.
#[inline(always)]
pub fn owns_unknown(protocol: u8) -> bool {
    let is_turned = SHARE.load() & SHARE_TURNED != 0;
    match SHARE.load() & !SHARE_TURNED {
        SHARE_NEWER => is_turned || !has_connections(protocol),
        SHARE_OLDER => !is_turned && has_connections(protocol),
        _ => true,
    }
}
