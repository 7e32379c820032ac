//! SHARE: whether this mode serves alone, or beside the one that the node had before or gets next.

use proxy_common::config::{SHARE_ALONE, SHARE_NEWER, SHARE_OLDER, SHARE_TURNED};

use crate::header::has_connections;
use crate::maps::config::SHARE;

/// Whether there is no other mode.
#[inline(always)]
pub fn is_alone() -> bool {
    SHARE.load() == SHARE_ALONE
}

/// Whether connections that are not known here may be the other mode's, from before. Then those of this one all have entries, where a
/// director would do without them, too.
#[inline(always)]
pub fn is_newer() -> bool {
    SHARE.load() & !SHARE_TURNED == SHARE_NEWER
}

/// Whether what begins now is the other mode's.
#[inline(always)]
pub fn is_older() -> bool {
    SHARE.load() & !SHARE_TURNED == SHARE_OLDER
}

/// Whether this mode's directors have packets of a protocol for which there is no entry: those of the mode that the node had before it
/// changed for the first time, as long as connections of then may be left.
#[inline(always)]
pub fn owns_unknown(protocol: u8) -> bool {
    let is_turned = SHARE.load() & SHARE_TURNED != 0;
    match SHARE.load() & !SHARE_TURNED {
        SHARE_NEWER => is_turned || !has_connections(protocol),
        SHARE_OLDER => !is_turned && has_connections(protocol),
        _ => true,
    }
}
