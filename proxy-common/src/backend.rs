//! BACKENDS4/6: the endpoints by backend id.

use crate::layout::shared;
use crate::selection::BackendRef;

/// Flag of [`Backend`]: an EndpointSlice has the endpoint, in any condition. A clear flag means
/// that the id rests or is free.
pub const BACKEND_EXISTS: u8 = 1 << 0;
/// Flag of [`Backend`]: the endpoint is on this node.
pub const BACKEND_LOCAL: u8 = 1 << 1;
/// Flag of [`Backend`]: the endpoint is Ready.
pub const BACKEND_READY: u8 = 1 << 2;
/// Flag of [`Backend`]: the endpoint is Serving: Ready, or terminating and still serving.
pub const BACKEND_SERVING: u8 = 1 << 3;
/// Flag of [`Backend`]: the pod decapsulates. An endpoint has one backend with this flag and one
/// without it, and their connections don't mix (decision 78).
pub const BACKEND_POD: u8 = 1 << 4;

shared! {
    /// Value of BACKENDS4/6.
    ///
    /// The generation changes when the id is given to another endpoint. A slot, a flow entry or an
    /// affinity with the old generation then counts as none.
    pub struct Backend<A> {
        /// The endpoint's address.
        pub address: A,
        /// The endpoint's port, network byte order.
        pub port: u16,
        /// The generation of the id, 0..=127.
        pub generation: u8,
        /// `BACKEND_*` bits.
        pub flags: u8,
        /// Index into WAYS: the route to the endpoint's node. 0 = the endpoint is on this node, or
        /// its node is unknown.
        pub way: u32,
        /// The hint that names this backend to its node, 1..=16383; see
        /// [`hint`](crate::hash::hint).
        pub hint: u32,
    }
}

impl<A> Backend<A> {
    /// Returns whether a reference still names this endpoint.
    #[inline(always)]
    pub const fn is(&self, reference: BackendRef) -> bool {
        self.generation == reference.generation() && self.flags & BACKEND_EXISTS != 0
    }
    /// Returns whether the endpoint is on this node.
    #[inline(always)]
    pub const fn is_local(&self) -> bool {
        self.flags & BACKEND_LOCAL != 0
    }
    /// Returns whether the pod decapsulates, so that outer headers may carry the pod's address.
    #[inline(always)]
    pub const fn is_pod(&self) -> bool {
        self.flags & BACKEND_POD != 0
    }
}
