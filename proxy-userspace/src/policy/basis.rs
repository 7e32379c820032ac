//! What a step from one result to the next needs of the first one.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use super::prefixes::Prefixes;
use super::sets::Members;

/// The node whose tables are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Site {
    /// Its name, as in `spec.nodeName` of pods.
    pub node: String,
    /// Its own addresses, which always reach its pods.
    pub addresses: BTreeSet<IpAddr>,
}

/// The classes of `ipBlock`s and their exceptions, for addresses without a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Blocks(Prefixes<u32>);

impl Blocks {
    /// Returns the classes of these prefixes.
    pub const fn new(classes: Prefixes<u32>) -> Self {
        Self(classes)
    }

    /// Returns the prefixes, one before those inside it.
    pub fn iter(&self) -> impl Iterator<Item = &IpNet> {
        self.0.iter().map(|(prefix, _)| prefix)
    }

    /// Returns the class of an address without a pod.
    pub fn around(&self, address: IpAddr) -> u32 {
        self.0.longest(address).copied().unwrap_or_default()
    }

    /// Returns the class that the entry of an address has; `None` = the prefixes around it say the same. `of_pods` is the
    /// class of its pods.
    pub fn entry(&self, address: IpAddr, of_pods: Option<u32>) -> Option<u32> {
        of_pods.filter(|class| *class != self.around(address)).or_else(|| self.of_prefix(address.into()))
    }

    /// Returns the class of a prefix of blocks; `None` = it is not one, or those around it have the same class.
    pub fn of_prefix(&self, prefix: IpNet) -> Option<u32> {
        let mut containing = self.0.containing(prefix);
        let (_, own) = containing.next().filter(|(net, _)| **net == prefix)?;
        let outer = containing.next().map_or(0, |(_, class)| *class);
        Some(*own).filter(|own| *own != outer)
    }
}

/// The node, and who is a member of which set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Basis {
    pub site: Site,
    pub members: Members,
    pub blocks: Blocks,
}
