//! FRONTENDS4/6: where services are reached.

use crate::layout::shared;

/// Asked for by this node's own pods and processes.
pub const SCOPE_INTERNAL: u8 = 0;
/// Came in over an uplink.
pub const SCOPE_EXTERNAL: u8 = 1;
/// Came in over an uplink, encapsulated by another node, for a NodePort of that node's: the key has no address.
pub const SCOPE_ENCAPSULATED: u8 = 2;

/// Flag of [`Frontend`]: the Service has Direct Server Return towards backends on other nodes.
pub const FRONTEND_DSR: u32 = 1 << 0;
/// Flag of [`Frontend`]: `service` names the Local list (externalTrafficPolicy Local for scope external,
/// internalTrafficPolicy Local for scope internal).
pub const FRONTEND_LOCAL: u32 = 1 << 1;
/// Flag of [`Frontend`]: sessionAffinity ClientIP. The slot is chosen by the client's address alone, and AFFINITY is asked
/// before the slot.
pub const FRONTEND_AFFINITY: u32 = 1 << 2;
/// Flag of [`Frontend`]: only sources inside a prefix of `service` in SOURCE_RANGES may use it.
pub const FRONTEND_SOURCE_RANGES: u32 = 1 << 3;
/// Flag of [`Frontend`]: its address and port is that of a backend on this node, too, which the stack gives its packets to.
/// Nobody else is chosen: another node's choice may have been this backend, and would be made anew for ever.
pub const FRONTEND_LISTENER: u32 = 1 << 4;
/// Flag of [`Frontend`]: for sockets of the node's own network namespace only. Its address is the loopback device's, and every
/// pod has one of these.
pub const FRONTEND_NODE_ONLY: u32 = 1 << 5;
/// Flag of [`Frontend`], scope external: only sources inside the cluster may use it.
pub const FRONTEND_INSIDE_ONLY: u32 = 1 << 6;
/// The kind of a frontend is `flags >> FRONTEND_KIND_SHIFT`, one of `FRONTEND_KIND_*`.
pub const FRONTEND_KIND_SHIFT: u32 = 28;
/// A Service's cluster IP.
pub const FRONTEND_KIND_CLUSTER_IP: u32 = 0;
/// An address of this node with the Service's nodePort.
pub const FRONTEND_KIND_NODE_PORT: u32 = 1;
/// One of a Service's externalIPs.
pub const FRONTEND_KIND_EXTERNAL_IP: u32 = 2;
/// An ingress address of a Service of type LoadBalancer.
pub const FRONTEND_KIND_LOAD_BALANCER: u32 = 3;

shared! {
    /// Key of FRONTENDS4/6.
    pub struct FrontendKey<A> {
        /// The address a client sends to.
        pub address: A,
        /// The port a client sends to, network byte order.
        pub port: u16,
        /// IP protocol number (6, 17, 132).
        pub protocol: u8,
        /// [`SCOPE_INTERNAL`], [`SCOPE_EXTERNAL`] or [`SCOPE_ENCAPSULATED`].
        pub scope: u8,
    }
}

shared! {
    /// Value of FRONTENDS4/6. Never rewritten because an endpoint changed.
    pub struct Frontend {
        /// Service id (index into SERVICES) of the list this frontend's traffic policy names.
        pub service: u32,
        /// Service id of the Cluster list, for clients inside the cluster (under policy Local, scope external); equals `service` under policy
        /// Cluster. 0 when the service port has no Cluster list.
        pub cluster_service: u32,
        /// `FRONTEND_*` bits and the kind.
        pub flags: u32,
        /// Session affinity time-out in seconds, 0 = none.
        pub affinity_seconds: u32,
    }
}

impl Frontend {
    /// One of `FRONTEND_KIND_*`.
    #[inline(always)]
    #[must_use]
    pub const fn kind(&self) -> u32 {
        self.flags >> FRONTEND_KIND_SHIFT
    }
}
