//! Why the IPVS data plane can't be opened.

use std::io;

use super::nft::NftError;

/// Why the IPVS data plane can't be opened. One line each.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The kernel lets us do nothing.
    #[error("missing CAP_NET_ADMIN: run as root, or grant it")]
    Capability,
    /// There is no IPVS.
    #[error("the kernel has no IPVS: module ip_vs is missing (modprobe ip_vs)")]
    NoIpvs,
    /// There is no such scheduler.
    #[error("the kernel has no IPVS scheduler {0}: module ip_vs_{0} is missing (modprobe ip_vs_{0})")]
    Scheduler(&'static str),
    /// IPVS refuses something that it should take.
    #[error("IPVS: {0}")]
    Ipvs(io::Error),
    /// Its list of connections can't be read.
    #[error("connections: {0}")]
    Connections(io::Error),
    /// There is no dummy device, and none can be made.
    #[error("the kernel makes no dummy device: module dummy is missing (modprobe dummy)")]
    NoDummy,
    /// The dummy device can't be worked with.
    #[error("{device}: {0}", device = super::DEVICE)]
    Dummy(io::Error),
    /// The table can't be read or written.
    #[error(transparent)]
    Nft(#[from] NftError),
    /// Another agent serves this network namespace.
    #[error("another agent serves this network namespace by IPVS; one at a time can")]
    InUse,
    /// That can't be found out.
    #[error("lock: {0}")]
    Lock(io::Error),
}

impl OpenError {
    pub(super) fn ipvs(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EPERM) => Self::Capability,
            Some(libc::ENOENT) => Self::NoIpvs,
            _ => Self::Ipvs(error),
        }
    }

    pub(super) fn dummy(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EPERM) => Self::Capability,
            Some(libc::EOPNOTSUPP) => Self::NoDummy,
            _ => Self::Dummy(error),
        }
    }
}
