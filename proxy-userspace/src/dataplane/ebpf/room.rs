//! Room for growth.

/// Slots for a slice of one slot an endpoint, so that it need not move when a few endpoints are added.
#[must_use]
pub const fn with_spare_room(length: u32) -> u32 {
    length.saturating_add(length / 4 + 1)
}
