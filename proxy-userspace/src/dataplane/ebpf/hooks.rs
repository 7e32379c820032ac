//! The hooks of sockets, by name.

use std::path::Path;

use super::sys::AttachType;

/// A socket call that one of our programs sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SocketHook {
    /// Name of the program, and of the link's pin.
    pub name: &'static str,
    /// The kind of call.
    pub kind: HookKind,
    /// The attach type.
    pub(super) attach: AttachType,
}

/// The kind of call that a hook sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HookKind {
    /// A call with the address of a peer, or the end of the socket.
    Call,
    /// `bind`, which has a setting of its own (`--bind-protection`).
    Bind,
}

const fn hook(name: &'static str, kind: HookKind, attach: AttachType) -> SocketHook {
    SocketHook { name, kind, attach }
}

impl SocketHook {
    /// All hooks, in the order of attachment: hooks that answer come before hooks that ask.
    pub const ALL: [Self; 11] = [
        hook("cg_sock_release", HookKind::Call, AttachType::CgroupInetSockRelease),
        hook("cg_recvmsg4", HookKind::Call, AttachType::CgroupUdp4Recvmsg),
        hook("cg_recvmsg6", HookKind::Call, AttachType::CgroupUdp6Recvmsg),
        hook("cg_getpeername4", HookKind::Call, AttachType::CgroupInet4Getpeername),
        hook("cg_getpeername6", HookKind::Call, AttachType::CgroupInet6Getpeername),
        hook("cg_connect4", HookKind::Call, AttachType::CgroupInet4Connect),
        hook("cg_connect6", HookKind::Call, AttachType::CgroupInet6Connect),
        hook("cg_sendmsg4", HookKind::Call, AttachType::CgroupUdp4Sendmsg),
        hook("cg_sendmsg6", HookKind::Call, AttachType::CgroupUdp6Sendmsg),
        hook("cg_bind4", HookKind::Bind, AttachType::CgroupInet4Bind),
        hook("cg_bind6", HookKind::Bind, AttachType::CgroupInet6Bind),
    ];

    /// The hook whose link has this pin.
    #[must_use]
    pub fn of_pin(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        Self::ALL.into_iter().find(|hook| hook.name == name)
    }
}
