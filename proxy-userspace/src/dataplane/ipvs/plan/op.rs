//! The operations on the kernel, as data.

use std::net::{IpAddr, SocketAddr};

use crate::dataplane::ipvs::state::{Member, Scheduling, Server, Virtual};
use crate::model::Family;

/// A member, with its value in a map.
pub type Entry = (Member, Option<u32>);

/// An operation. It may be repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Makes a virtual service or changes its scheduling.
    PutService(Virtual, Scheduling),
    /// Removes a virtual service and its servers.
    DeleteService(Virtual),
    /// Adds a server or changes it.
    PutServer(Virtual, SocketAddr, Server),
    /// Removes a server.
    DeleteServer(Virtual, SocketAddr),
    /// Changes the members of sets in one transaction.
    ChangeMembers {
        /// The members to add.
        add: Vec<Entry>,
        /// The members to remove first.
        delete: Vec<Entry>,
    },
    /// Adds an address to the dummy device.
    AddAddress(IpAddr),
    /// Removes an address from the dummy device.
    DeleteAddress(IpAddr),
    /// Makes the decapsulating device for outer headers of a family.
    AddTunnel(Family),
    /// Removes that device.
    DeleteTunnel(Family),
}

/// The executor of an [`Op`].
pub trait Kernel {
    /// Carries the operation out as a whole. A failure changes nothing; its text is one line.
    fn apply(&mut self, op: &Op) -> Result<(), String>;

    /// Carries out several operations of one kind. The failure of one does not affect the others.
    fn apply_all(&mut self, ops: &[&Op]) -> Vec<Result<(), String>> {
        ops.iter().map(|op| self.apply(op)).collect()
    }
}

impl Op {
    /// Whether both may be carried out together, in any order.
    #[must_use]
    pub const fn goes_with(&self, other: &Self) -> bool {
        matches!(
            (self, other),
            (Self::PutService(..), Self::PutService(..))
                | (Self::PutServer(..), Self::PutServer(..))
                | (Self::AddAddress(_), Self::AddAddress(_))
        )
    }

    /// Returns the number of changed entries in the kernel.
    #[must_use]
    pub fn writes(&self) -> usize {
        match self {
            Self::ChangeMembers { add, delete } => add.len() + delete.len(),
            _ => 1,
        }
    }
}
