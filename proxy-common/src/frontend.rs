//! FRONTENDS4/6: the addresses and ports where Services are reached.

use crate::layout::shared;
use crate::rules::Role;

/// Scope of [`FrontendKey`]: for this node's own pods and processes.
pub const SCOPE_INTERNAL: u8 = 0;
/// Scope of [`FrontendKey`]: for packets from an uplink.
pub const SCOPE_EXTERNAL: u8 = 1;
/// Scope of [`FrontendKey`]: for packets from an uplink that another node encapsulated, to a
/// NodePort of that node. The key has no address (decision 58).
pub const SCOPE_ENCAPSULATED: u8 = 2;

/// Flag of [`Frontend`]: backends on other nodes are reached by Direct Server Return.
pub const FRONTEND_DSR: u32 = 1 << 0;
/// Flag of [`Frontend`]: `service` names the Local list. Scope external has it for
/// externalTrafficPolicy Local, scope internal for internalTrafficPolicy Local.
pub const FRONTEND_LOCAL: u32 = 1 << 1;
/// Flag of [`Frontend`]: sessionAffinity ClientIP. AFFINITY is asked before the slot, and the
/// client's address alone chooses the slot.
pub const FRONTEND_AFFINITY: u32 = 1 << 2;
/// Flag of [`Frontend`]: SOURCE_RANGES lists the allowed sources of `service`.
pub const FRONTEND_SOURCE_RANGES: u32 = 1 << 3;
/// Flag of [`Frontend`]: a backend on this node listens at the frontend's own address and port, and
/// the stack gets the packets (decision 57).
///
/// The programs choose no other backend. Another node may have chosen this one, and the two nodes
/// would send the packet to and fro for ever.
pub const FRONTEND_LISTENER: u32 = 1 << 4;
/// Flag of [`Frontend`]: only for sockets of the node's own network namespace. The address is a
/// loopback address, which every pod has, too.
pub const FRONTEND_NODE_ONLY: u32 = 1 << 5;
/// Flag of [`Frontend`], scope external: only for sources inside the cluster.
pub const FRONTEND_INSIDE_ONLY: u32 = 1 << 6;
/// Flag of [`Frontend`]: it had [`FRONTEND_DSR`] before. New connections use SNAT, and those that
/// began by Direct Server Return go on so (decision 199).
pub const FRONTEND_DSR_ENDS: u32 = 1 << 7;
/// Flag of [`Frontend`] with [`FRONTEND_LOCAL`]: its traffic policy was Cluster before. Connections by
/// Direct Server Return without a flow entry go by the Cluster list (decision 199).
pub const FRONTEND_WAS_CLUSTER: u32 = 1 << 8;
/// Flags of [`Frontend`]: connections by Direct Server Return may exist, new ones or only older ones.
pub const FRONTEND_MAY_HAVE_DSR: u32 = FRONTEND_DSR | FRONTEND_DSR_ENDS;
/// The kind of a frontend is `flags >> FRONTEND_KIND_SHIFT`, a `FRONTEND_KIND_*` value.
pub const FRONTEND_KIND_SHIFT: u32 = 28;
/// Kind of [`Frontend`]: a Service's ClusterIP.
pub const FRONTEND_KIND_CLUSTER_IP: u32 = 0;
/// Kind of [`Frontend`]: an address of this node with a Service's nodePort.
pub const FRONTEND_KIND_NODE_PORT: u32 = 1;
/// Kind of [`Frontend`]: one of a Service's externalIPs.
pub const FRONTEND_KIND_EXTERNAL_IP: u32 = 2;
/// Kind of [`Frontend`]: an ingress address of a Service of type LoadBalancer.
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
    /// Value of FRONTENDS4/6. A change of endpoints never rewrites it.
    pub struct Frontend {
        /// Service id (index into SERVICES) of the list that the frontend's traffic policy names.
        pub service: u32,
        /// Service id of the Cluster list, or `service` if the Service port has none.
        ///
        /// Under policy Local and scope external, clients inside the cluster get this list. Under
        /// policy Cluster it equals `service`.
        pub cluster_service: u32,
        /// `FRONTEND_*` bits, and the kind above them.
        pub flags: u32,
        /// Session affinity time-out in seconds, 0 = none.
        pub affinity_seconds: u32,
    }
}

impl Frontend {
    /// Returns the kind, a `FRONTEND_KIND_*` value.
    #[inline(always)]
    #[must_use]
    pub const fn kind(&self) -> u32 {
        self.flags >> FRONTEND_KIND_SHIFT
    }
    /// Returns the service id of the port's flow entries and affinities, whichever list they were
    /// chosen from.
    #[inline(always)]
    #[must_use]
    pub const fn port_service(&self) -> u32 {
        self.cluster_service
    }
    /// Returns whether a flow entry with this service id is one of the port's.
    #[inline(always)]
    #[must_use]
    pub const fn owns_flows_of(&self, service: u32) -> bool {
        service == self.port_service() || service == self.service
    }
    /// Returns whether a DSR director can do without a flow entry, by rule 1 of the
    /// [slot](crate::rules), as long as nothing changed.
    ///
    /// Affinity needs an entry: a client may have another backend than its slot's.
    #[inline(always)]
    #[must_use]
    pub const fn needs_no_flow_entry(&self) -> bool {
        self.flags & (FRONTEND_DSR | FRONTEND_AFFINITY) == FRONTEND_DSR
    }
    /// Returns whether connections by Direct Server Return may exist: new ones, or only older ones.
    #[inline(always)]
    #[must_use]
    pub const fn may_have_dsr(&self) -> bool {
        self.flags & FRONTEND_MAY_HAVE_DSR != 0
    }
    /// Returns the frontend for a client whose replies can't come from another node.
    #[inline(always)]
    #[must_use]
    pub const fn without_dsr(self) -> Self {
        Self { flags: self.flags & !(FRONTEND_MAY_HAVE_DSR | FRONTEND_WAS_CLUSTER), ..self }
    }
    /// Returns whether a DSR director may have connections without a flow entry.
    #[inline(always)]
    #[must_use]
    pub const fn may_lack_flow_entry(&self) -> bool {
        self.may_have_dsr() && self.flags & FRONTEND_AFFINITY == 0
    }
    /// Returns whether a packet without a flow entry, to a backend on another node, goes there by
    /// Direct Server Return.
    #[inline(always)]
    #[must_use]
    pub const fn returns_directly(&self, role: Role) -> bool {
        self.flags & FRONTEND_DSR != 0
            || self.flags & FRONTEND_DSR_ENDS != 0 && matches!(role, Role::Midstream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_older_connections_return_directly_once_dsr_ends() {
        let of = |flags| Frontend { service: 1, cluster_service: 1, flags, affinity_seconds: 0 };
        for role in [Role::Opening, Role::Midstream, Role::Datagram] {
            assert!(of(FRONTEND_DSR).returns_directly(role));
            assert!(!of(0).returns_directly(role));
        }
        let ends = of(FRONTEND_DSR_ENDS);
        assert!(ends.returns_directly(Role::Midstream));
        assert!(!ends.returns_directly(Role::Opening) && !ends.returns_directly(Role::Datagram));
        assert!(ends.may_have_dsr() && of(FRONTEND_DSR).may_have_dsr() && !of(0).may_have_dsr());
        assert!(ends.may_lack_flow_entry() && !ends.needs_no_flow_entry());
        assert!(!of(FRONTEND_DSR | FRONTEND_AFFINITY).may_lack_flow_entry());
    }
}
