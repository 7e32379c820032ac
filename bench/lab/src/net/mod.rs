//! Network namespaces, and the devices in them.

mod attached;
mod bpf;
mod card;
mod cgroup;
mod conntrack;
mod ethtool;
mod namespace;
mod netlink;
mod overlay;
mod pass;
mod stale;
mod sysctl;
mod wire;
mod wireguard;

pub use attached::{attached_programs, has_tcx};
pub use bpf::{ForeignLink, NEXT, TcHook, attach_first, detach_link};
pub use card::{CardEnd, take_card};
pub use cgroup::Cgroup;
pub use conntrack::flush_conntrack;
pub use ethtool::{Offload, bus_of, driver_of, leave_tags_alone, queues, set_offload, set_queues};
pub use namespace::{Namespace, Task};
pub use netlink::Netlink;
pub use overlay::{End, Overlay};
pub use stale::{
    bpffs_directory, pool_directory, remove_leftovers, remove_own, remove_own_at_exit, temporary_directory,
};
pub use sysctl::{read_sysctl, write_sysctl};
pub use wire::{Medium, Wire};

/// Returns the prefix of the names of this process's namespaces and directories. It identifies
/// leftovers.
#[must_use]
pub fn own_prefix() -> String {
    format!("{}{}-", stale::NAMESPACE_PREFIX, std::process::id())
}
