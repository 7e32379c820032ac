//! The operations a plan consists of, and the order they are carried out in.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use proxy_common::frontend::Frontend;
use proxy_common::hop::Device;
use proxy_common::name::ServiceName;
use proxy_common::selection::{BackendRef, HintKey, ServiceEntry, Slot};
use proxy_common::way::Way;

use crate::model::{Family, PortKey};

/// One thing to change in the kernel. Each is whole in itself: it either happens or it does not.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Zero slots that have rested, so that after a restart they are known to be free.
    ClearSlots(Extent),
    /// Forget the name of a service id that has rested, which makes the id free.
    RemoveName(u32),
    /// Write, or with all flags clear release, a way.
    Way(u32, Way),
    /// Write an endpoint, or with [`BACKEND_EXISTS`](proxy_common::backend::BACKEND_EXISTS) clear release it.
    Backend(BackendId, BackendEntry),
    /// Store slots of a slice of service `service`.
    Slots {
        /// The service id they are for.
        service: u32,
        /// Index into SELECTION and word.
        words: Vec<(u32, Slot)>,
    },
    /// Point a service id at a slice, or with the zero word at nothing.
    Service(u32, ServiceEntry),
    /// Say what a service id stands for. Boxed: it is many times as large as any other change, and all changes of a
    /// sync are held at once.
    Name(u32, Box<ServiceName>),
    /// Name a backend on this node by its hint.
    Hint(HintKey, BackendRef),
    /// The hint names nothing any more.
    RemoveHint(HintKey),
    /// An address of a node, with `PEER_*` bits.
    Peer(IpAddr, u32),
    /// The address is no node's any more.
    RemovePeer(IpAddr),
    /// An address is a service's, with `VIP_*` bits.
    Vip(IpAddr, u32),
    /// The address is no service's any more, or a node's.
    RemoveVip(IpAddr),
    /// A device that translated packets may leave by.
    Device(u32, Device),
    /// None may leave by it any more.
    RemoveDevice(u32),
    /// Let a prefix in.
    SourceRange(RangeAt),
    /// Let it in no more.
    RemoveSourceRange(RangeAt),
    /// Close a frontend that is served to everybody to all but its source ranges; it stays as it is otherwise.
    Restrict(FrontendAt, Frontend),
    /// Serve a frontend.
    Frontend(FrontendAt, Frontend),
    /// Stop serving a frontend.
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

/// A backend id is unique in its family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BackendId {
    /// Which of BACKENDS4 and BACKENDS6.
    pub family: Family,
    /// Index.
    pub id: u32,
}

/// [`Backend`](proxy_common::backend::Backend) of either family.
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

/// [`FrontendKey`](proxy_common::frontend::FrontendKey) of either family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FrontendAt {
    /// Address and port a client sends to.
    pub address: SocketAddr,
    /// IP protocol number.
    pub protocol: u8,
    /// `SCOPE_*`.
    pub scope: u8,
}

/// [`SourceRange`](proxy_common::source_range::SourceRange) of either family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RangeAt {
    /// Service id, or [`CLUSTER`](proxy_common::source_range::CLUSTER) or [`NEAR`](proxy_common::source_range::NEAR).
    pub service: u32,
    /// The prefix, without bits behind its length.
    pub net: IpNet,
}

/// A change, and whose it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Op {
    /// What to do.
    pub change: Change,
    /// The service port it is for. If it fails, the rest of that port's operations is left for the next
    /// sync. None for what belongs to no port, and for backends, which belong to all that name them.
    pub owner: Option<Arc<PortKey>>,
}

/// The order of a sync: a thing is written before what refers to it, and released after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Who may use a frontend, before it is closed to all others, and before it is there at all. These come first so
    /// that nothing that fails for want of room leaves open what shall be closed.
    SourceRanges,
    /// Frontends that are closed to all but their source ranges.
    Restrictions,
    /// Those who may use a frontend no more, when all who may have been let in.
    SourceRangeRemovals,
    /// Ways come before the backends that name them.
    Ways,
    /// Endpoints.
    Backends,
    /// Slices.
    Slots,
    /// Names of service ids: a word without a name could not be adopted.
    Names,
    /// Service words.
    Services,
    /// Hints.
    Hints,
    /// Node addresses, and this node's devices.
    Nodes,
    /// Frontends, when all they lead to is there.
    Frontends,
    /// Frontends nobody names any more.
    FrontendRemovals,
    /// What an unknown port gets, when all known ones are there.
    Vips,
}

impl Change {
    /// Where in a sync this change belongs, if it is a write. What is released or freed follows later.
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
