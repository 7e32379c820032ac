//! The kernel's connection tracking.

use std::os::fd::{AsRawFd, OwnedFd};

use anyhow::{Context, Result, ensure};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, socket,
};

/// Makes the kernel forget all connections of the current thread's namespace, as `conntrack -F` does.
pub fn flush_conntrack() -> Result<()> {
    /// linux/netfilter/nfnetlink.h, nfnetlink_conntrack.h: subsystem 1, `IPCTNL_MSG_CT_DELETE`.
    const DELETE: u16 = 1 << 8 | 2;
    /// linux/netlink.h: `NLM_F_REQUEST | NLM_F_ACK`.
    const FLAGS: u16 = 1 | 4;
    /// The place of the error code in an answer, behind its header of 16 bytes.
    const CODE: std::ops::Range<usize> = 16..20;
    let netlink = SockProtocol::NetlinkNetFilter;
    let socket: OwnedFd = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, netlink)
        .context("can't open a netlink socket")?;
    // The header, then a struct nfgenmsg of zeros: all families.
    let length: u32 = 20;
    let mut message = Vec::new();
    message.extend(length.to_ne_bytes());
    message.extend(DELETE.to_ne_bytes());
    message.extend(FLAGS.to_ne_bytes());
    message.resize(20, 0);
    sendto(socket.as_raw_fd(), &message, &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
    let mut answer = [0; 256];
    let length = recv(socket.as_raw_fd(), &mut answer, MsgFlags::empty())?;
    let code = answer.get(..length).and_then(|answer| answer.get(CODE)).context("a short answer")?;
    let code = i32::from_ne_bytes(code.try_into()?);
    ensure!(code == 0, "can't forget connections: {}", nix::errno::Errno::from_raw(-code));
    Ok(())
}
