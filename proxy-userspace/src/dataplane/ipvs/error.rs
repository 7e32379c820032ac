//! The errors of opening the IPVS data plane.

use std::io;

use super::nft::NftError;

/// The errors of opening the IPVS data plane. Each is one line.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The agent has no permission.
    #[error("missing CAP_NET_ADMIN: run as root, or grant it")]
    Capability,
    /// The kernel has no IPVS.
    #[error("the kernel has no IPVS: module ip_vs is missing (modprobe ip_vs)")]
    NoIpvs,
    /// The kernel has no such scheduler.
    #[error("the kernel has no IPVS scheduler {0}: module ip_vs_{0} is missing (modprobe ip_vs_{0})")]
    Scheduler(&'static str),
    /// IPVS refuses the probe.
    #[error("IPVS refused a request: {0}")]
    Ipvs(io::Error),
    /// The list of connections can't be read.
    #[error("reading the connections of IPVS failed: {0}")]
    Connections(io::Error),
    /// The dummy device is missing and can't be made.
    #[error("the kernel makes no dummy device: module dummy is missing (modprobe dummy)")]
    NoDummy,
    /// The dummy device can't be read or changed.
    #[error("reading or changing device {device} failed: {0}", device = super::DEVICE)]
    Dummy(io::Error),
    /// The table can't be read or written.
    #[error(transparent)]
    Nft(#[from] NftError),
    /// Another agent serves this network namespace.
    #[error("another agent serves this network namespace by IPVS; one at a time can")]
    InUse,
    /// The lock can't be checked.
    #[error("locking IPVS mode in this network namespace failed: {0}")]
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
