//! What is done to the kernel, as data.

use std::net::{IpAddr, SocketAddr};

use crate::dataplane::ipvs::state::{Member, Scheduling, Server, Virtual};
use crate::model::Family;

/// A member and, in a map, its mark.
pub type Entry = (Member, Option<u32>);

/// One thing that is done. Each may be repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Makes a virtual service or gives it another scheduling.
    PutService(Virtual, Scheduling),
    /// Removes a virtual service and its servers.
    DeleteService(Virtual),
    /// Adds a server or changes it.
    PutServer(Virtual, SocketAddr, Server),
    /// Removes a server.
    DeleteServer(Virtual, SocketAddr),
    /// Changes the members of sets, all at once.
    ChangeMembers {
        /// What comes.
        add: Vec<Entry>,
        /// What goes before that.
        delete: Vec<Entry>,
    },
    /// Gives the dummy device an address.
    AddAddress(IpAddr),
    /// Takes it away.
    DeleteAddress(IpAddr),
    /// Makes the device that takes outer headers of a family off.
    AddTunnel(Family),
    /// Removes it.
    DeleteTunnel(Family),
}

/// What can carry out an [`Op`].
pub trait Kernel {
    /// Does it whole, or fails with one line that says why, and has done nothing.
    fn apply(&mut self, op: &Op) -> Result<(), String>;

    /// Does several of one kind, each for itself: what one of them fails at is no other's concern.
    fn apply_all(&mut self, ops: &[&Op]) -> Vec<Result<(), String>> {
        ops.iter().map(|op| self.apply(op)).collect()
    }
}

impl Op {
    /// Whether both may be done at once, in any order.
    #[must_use]
    pub const fn goes_with(&self, other: &Self) -> bool {
        matches!(
            (self, other),
            (Self::PutService(..), Self::PutService(..))
                | (Self::PutServer(..), Self::PutServer(..))
                | (Self::AddAddress(_), Self::AddAddress(_))
        )
    }

    /// How many things in the kernel it changes.
    #[must_use]
    pub fn writes(&self) -> usize {
        match self {
            Self::ChangeMembers { add, delete } => add.len() + delete.len(),
            _ => 1,
        }
    }
}
