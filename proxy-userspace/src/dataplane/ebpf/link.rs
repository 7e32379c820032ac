//! Links: they keep a program attached while no agent runs.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use aya::util::KernelVersion;

use super::program::Program;
use super::sys::{self, AttachType};
use crate::node::Hook;

/// The program and the mode of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LinkKind {
    /// `xdp_ingress` in the driver.
    XdpNative,
    /// `xdp_ingress` in the kernel's generic hook.
    XdpGeneric,
    /// `tc_ingress`.
    TcIngress,
    /// `tc_egress`.
    TcEgress,
    /// `tc_pod_in`.
    TcPodIn,
    /// `tc_pod_out`.
    TcPodOut,
    /// `tc_ingress_l3`.
    TcIngressL3,
    /// `tc_egress_l3`.
    TcEgressL3,
}

/// A link's kind and the index of its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkKey {
    /// The kind of the link.
    pub kind: LinkKind,
    /// The interface index of the device.
    pub device: u32,
}

/// The place in a device's list of programs: the first, or the last one.
pub(super) const BPF_F_BEFORE: u32 = 1 << 3;
pub(super) const BPF_F_AFTER: u32 = 1 << 4;
const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;

/// Returns whether the kernel has links for TC programs. Before Linux 6.6, filters of clsact run them.
pub(super) fn has_tcx() -> bool {
    KernelVersion::current().is_ok_and(|version| version >= KernelVersion::new(6, 6, 0))
}

impl LinkKind {
    const ALL: [Self; 8] = [
        Self::XdpNative,
        Self::XdpGeneric,
        Self::TcIngress,
        Self::TcEgress,
        Self::TcPodIn,
        Self::TcPodOut,
        Self::TcIngressL3,
        Self::TcEgressL3,
    ];

    /// Returns the first part of the pin's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::XdpNative => "xdp_native",
            Self::XdpGeneric => "xdp_generic",
            Self::TcIngress => "tc_ingress",
            Self::TcEgress => "tc_egress",
            Self::TcPodIn => "tc_pod_in",
            Self::TcPodOut => "tc_pod_out",
            Self::TcIngressL3 => "tc_ingress_l3",
            Self::TcEgressL3 => "tc_egress_l3",
        }
    }

    /// Returns the hook.
    #[must_use]
    pub const fn hook(self) -> Hook {
        match self {
            Self::XdpNative | Self::XdpGeneric => Hook::Xdp,
            Self::TcIngress => Hook::TcIngress,
            Self::TcEgress => Hook::TcEgress,
            Self::TcPodIn => Hook::TcPodIn,
            Self::TcPodOut => Hook::TcPodOut,
            Self::TcIngressL3 => Hook::TcIngressL3,
            Self::TcEgressL3 => Hook::TcEgressL3,
        }
    }

    /// Returns the attach type and the order.
    ///
    /// Our program is the first on ingress and the last on egress. Other programs see packets after
    /// our translation on the way in, and before the reverse translation on the way out.
    const fn attach(self) -> (AttachType, u32) {
        match self {
            Self::XdpNative => (AttachType::Xdp, XDP_FLAGS_DRV_MODE),
            Self::XdpGeneric => (AttachType::Xdp, XDP_FLAGS_SKB_MODE),
            Self::TcIngress | Self::TcIngressL3 | Self::TcPodIn => (AttachType::TcxIngress, BPF_F_BEFORE),
            Self::TcEgress | Self::TcEgressL3 | Self::TcPodOut => (AttachType::TcxEgress, BPF_F_AFTER),
        }
    }
}

impl LinkKey {
    /// Returns the name of the pin: `<hook>-<ifindex>`.
    #[must_use]
    pub fn name(self) -> String {
        format!("{}-{}", self.kind.name(), self.device)
    }

    /// Parses a name of [`name`](Self::name).
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let (kind, device) = name.rsplit_once('-')?;
        let kind = LinkKind::ALL.into_iter().find(|candidate| candidate.name() == kind)?;
        Some(Self { kind, device: device.parse().ok()? })
    }
}

/// Attaches a program and pins the link.
pub fn create(key: LinkKey, program: &Program, directory: &Path) -> io::Result<()> {
    let (attach, flags) = key.kind.attach();
    let link = sys::link_create(program.as_fd(), key.device, attach, flags)?;
    sys::obj_pin(link.as_fd(), &directory.join(key.name()))
}

/// Returns the program of a pinned link; `None` without its device.
pub fn program_id(key: LinkKey, directory: &Path) -> io::Result<Option<u32>> {
    let link = sys::obj_get(&directory.join(key.name()))?;
    let info = sys::link_info(link.as_fd())?;
    Ok((info.device != 0).then_some(info.program_id))
}

/// Replaces a pinned link's program, atomically.
pub fn update(key: LinkKey, program: &Program, directory: &Path) -> io::Result<()> {
    let link = sys::obj_get(&directory.join(key.name()))?;
    sys::link_update(link.as_fd(), program.as_fd())
}

/// Replaces the program of a link of another layout and moves the pin to our directory. Each step
/// is atomic, so that there is one pin at any time. Returns false without the link's device.
pub fn take_over(key: LinkKey, program: &Program, from: &Path, directory: &Path) -> io::Result<bool> {
    let former = from.join(key.name());
    let link = sys::obj_get(&former)?;
    if sys::link_info(link.as_fd())?.device == 0 {
        fs::remove_file(former)?;
        return Ok(false);
    }
    sys::link_update(link.as_fd(), program.as_fd())?;
    fs::rename(former, directory.join(key.name()))?;
    Ok(true)
}

/// Detaches a link's program and removes the pin. A removed device or pin has detached it already.
pub fn remove(key: LinkKey, directory: &Path) -> io::Result<()> {
    let path = directory.join(key.name());
    let link = match sys::obj_get(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        link => link?,
    };
    if sys::link_info(link.as_fd())?.device != 0 {
        sys::link_detach(link.as_fd())?;
    }
    fs::remove_file(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pin_is_named_after_hook_and_device() {
        for kind in LinkKind::ALL {
            let key = LinkKey { kind, device: 17 };
            assert_eq!(LinkKey::parse(&key.name()), Some(key));
        }
        assert_eq!(LinkKey { kind: LinkKind::TcEgress, device: 3 }.name(), "tc_egress-3");
        assert_eq!(LinkKey::parse("tc_egress-x"), None);
        assert_eq!(LinkKey::parse("other-3"), None);
    }
}
