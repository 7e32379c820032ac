//! The operations of a plan, and their order.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use proxy_common::frontend::Frontend;
use proxy_common::hop::Device;
use proxy_common::name::ServiceName;
use proxy_common::selection::{BackendRef, HintKey, ServiceEntry, Slot};
use proxy_common::way::Way;

use crate::model::{Family, PortKey};

/// One change in the kernel. It happens completely or not at all.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Zero slots that have rested. After a restart the agent knows by that that they are free.
    ClearSlots(Extent),
    /// Remove the name of a service id that has rested. The id is free after that.
    RemoveName(u32),
    /// Write a way; all flags clear = release it.
    Way(u32, Way),
    /// Write a backend; [`BACKEND_EXISTS`](proxy_common::backend::BACKEND_EXISTS) clear = release
    /// it.
    Backend(BackendId, BackendEntry),
    /// Store slots of a slice of service `service`.
    Slots {
        /// The service id.
        service: u32,
        /// Index into SELECTION and word.
        words: Vec<(u32, Slot)>,
    },
    /// Point a service id at a slice; the zero word = no slice.
    Service(u32, ServiceEntry),
    /// Write the name of a service id. Boxed: it is much larger than the other changes, and a sync
    /// holds all its changes at once.
    Name(u32, Box<ServiceName>),
    /// Write the hint of a backend on this node.
    Hint(HintKey, BackendRef),
    /// Remove a hint.
    RemoveHint(HintKey),
    /// Write an address of a node, with `PEER_*` bits.
    Peer(IpAddr, u32),
    /// Remove an address of a node.
    RemovePeer(IpAddr),
    /// Write an address of a Service, with `VIP_*` bits.
    Vip(IpAddr, u32),
    /// Remove an address from VIPS: no Service has it any more, or a node has it.
    RemoveVip(IpAddr),
    /// Write a device for outgoing translated packets.
    Device(u32, Device),
    /// Remove such a device.
    RemoveDevice(u32),
    /// Allow a source range.
    SourceRange(RangeAt),
    /// Disallow a source range.
    RemoveSourceRange(RangeAt),
    /// Restrict an open frontend to its source ranges; the rest of the entry stays.
    Restrict(FrontendAt, Frontend),
    /// Write a frontend.
    Frontend(FrontendAt, Frontend),
    /// Remove a frontend.
    RemoveFrontend(FrontendAt),
}

/// A run of slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Extent {
    /// First slot.
    pub offset: u32,
    /// Number of slots.
    pub length: u32,
}

/// The id of a backend, unique in its family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BackendId {
    /// The family: BACKENDS4 or BACKENDS6.
    pub family: Family,
    /// Index.
    pub id: u32,
}

/// A [`Backend`](proxy_common::backend::Backend) of either family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackendEntry {
    /// Address and port.
    pub address: SocketAddr,
    /// Incarnation of the id.
    pub generation: u8,
    /// `BACKEND_*` bits.
    pub flags: u8,
    /// Way id, 0 = none.
    pub way: u32,
    /// Hint, 0 = none.
    pub hint: u32,
}

/// A [`FrontendKey`](proxy_common::frontend::FrontendKey) of either family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FrontendAt {
    /// Address and port that a client sends to.
    pub address: SocketAddr,
    /// IP protocol number.
    pub protocol: u8,
    /// `SCOPE_*`.
    pub scope: u8,
}

/// A [`SourceRange`](proxy_common::source_range::SourceRange) of either family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RangeAt {
    /// Service id, or [`CLUSTER`](proxy_common::source_range::CLUSTER) or [`NEAR`](proxy_common::source_range::NEAR).
    pub service: u32,
    /// The prefix, without bits behind its length.
    pub net: IpNet,
}

/// A change and its service port.
#[derive(Clone, Debug, PartialEq)]
pub struct Op {
    /// The change.
    pub change: Change,
    /// The service port of the change. After a failure the other operations of the port wait for
    /// the next sync.
    ///
    /// `None` for a change without a port, and for a backend, which can have several ports.
    pub owner: Option<Arc<PortKey>>,
}

/// The order of the operations in a sync: each thing is written before the things that refer to it,
/// and released after them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Allowed source ranges, before their frontend is restricted or added. They come first: a
    /// failure for want of room must not leave a restricted Service open.
    SourceRanges,
    /// Frontends that become restricted to their source ranges.
    Restrictions,
    /// Disallowed source ranges, after all new ranges are in.
    SourceRangeRemovals,
    /// Ways, before the backends that name them.
    Ways,
    /// Endpoints.
    Backends,
    /// Slices.
    Slots,
    /// Names of service ids, before the words: the next agent can't adopt a word without a name.
    Names,
    /// Service words.
    Services,
    /// Hints.
    Hints,
    /// Node addresses, and this node's devices.
    Nodes,
    /// Frontends, after everything they lead to.
    Frontends,
    /// Removals of unwanted frontends.
    FrontendRemovals,
    /// Addresses of Services, after the frontends. VIPS decides about packets to unknown ports.
    Vips,
}

impl Change {
    /// Returns the phase of this change if it is a write. Releases come in later steps.
    #[must_use]
    pub const fn phase(&self) -> Phase {
        match self {
            Self::SourceRange(_) => Phase::SourceRanges,
            Self::Restrict(..) => Phase::Restrictions,
            Self::RemoveSourceRange(_) => Phase::SourceRangeRemovals,
            Self::Way(..) => Phase::Ways,
            Self::Backend(..) => Phase::Backends,
            Self::Slots { .. } | Self::ClearSlots(_) => Phase::Slots,
            Self::Service(..) => Phase::Services,
            Self::Name(..) | Self::RemoveName(_) => Phase::Names,
            Self::Hint(..) | Self::RemoveHint(_) => Phase::Hints,
            Self::Peer(..) | Self::RemovePeer(_) | Self::Device(..) | Self::RemoveDevice(_) => Phase::Nodes,
            Self::Frontend(..) => Phase::Frontends,
            Self::RemoveFrontend(_) => Phase::FrontendRemovals,
            Self::Vip(..) | Self::RemoveVip(_) => Phase::Vips,
        }
    }
}
