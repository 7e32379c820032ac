//! BACKENDS4/6: the endpoints, by backend id.

use crate::layout::shared;
use crate::selection::BackendRef;

/// Flag of [`Backend`]: in some EndpointSlice, in any condition. Clear = the id rests or is free.
pub const BACKEND_EXISTS: u8 = 1 << 0;
/// Flag of [`Backend`]: on this node.
pub const BACKEND_LOCAL: u8 = 1 << 1;
/// Flag of [`Backend`]: Ready.
pub const BACKEND_READY: u8 = 1 << 2;
/// Flag of [`Backend`]: Serving (Ready, or terminating and still serving).
pub const BACKEND_SERVING: u8 = 1 << 3;
/// Flag of [`Backend`]: its pod takes off outer headers itself. An endpoint with and one without are two backends, whose
/// connections don't mix.
pub const BACKEND_POD: u8 = 1 << 4;

shared! {
    /// Value of BACKENDS4/6. The generation changes whenever the id is given to another endpoint, so that a
    /// slot, flow or affinity entry with the old one counts as no entry.
    pub struct Backend<A> {
        /// The endpoint's address.
        pub address: A,
        /// The endpoint's port, network byte order.
        pub port: u16,
        /// 0..=127.
        pub generation: u8,
        /// `BACKEND_*` bits.
        pub flags: u8,
        /// Index into WAYS: how the endpoint's node is reached. 0 = on this node, or unknown.
        pub way: u32,
        /// 1..=16383: the hint that names this backend to its node; see [`hint`](crate::hash::hint).
        pub hint: u32,
    }
}

impl<A> Backend<A> {
    /// Whether a reference still names this endpoint.
    #[inline(always)]
    pub const fn is(&self, reference: BackendRef) -> bool {
        self.generation == reference.generation() && self.flags & BACKEND_EXISTS != 0
    }
    /// Whether the endpoint is on this node.
    #[inline(always)]
    pub const fn is_local(&self) -> bool {
        self.flags & BACKEND_LOCAL != 0
    }
    /// Whether what is encapsulated can be addressed to its pod.
    #[inline(always)]
    pub const fn is_pod(&self) -> bool {
        self.flags & BACKEND_POD != 0
    }
}
