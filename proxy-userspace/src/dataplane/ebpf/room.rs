//! Room for growth.

/// Returns the slots for a slice with one slot an endpoint. The slice need not move for a few more endpoints.
#[must_use]
pub const fn with_spare_room(length: u32) -> u32 {
    length.saturating_add(length / 4 + 1)
}
