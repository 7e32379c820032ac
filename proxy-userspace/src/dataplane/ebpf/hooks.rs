//! The hooks of sockets, by name.

use std::path::Path;

use super::sys::AttachType;

/// A call of sockets that a program of ours sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SocketHook {
    /// Name of the program, and of the link's pin.
    pub name: &'static str,
    /// What it sees.
    pub kind: HookKind,
    /// Where the kernel runs it.
    pub(super) attach: AttachType,
}

/// What a hook sees of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HookKind {
    /// Whom it talks to: a call with an address, where to or whose, and its end.
    Call,
    /// `bind`, which is protected by a setting of its own.
    Bind,
}

const fn hook(name: &'static str, kind: HookKind, attach: AttachType) -> SocketHook {
    SocketHook { name, kind, attach }
}

impl SocketHook {
    /// All hooks, in the order in which they are attached: what an answer needs before what asks.
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
