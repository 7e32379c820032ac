//! A packet socket bound to one device.

use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, recvmsg, send,
    setsockopt, socket, sockopt,
};
use nix::sys::time::TimeSpec;

use super::Direction;

/// The room for frames that arrive between two reads.
const BUFFER: usize = 64 << 20;
/// The size of the largest frame: a merged one, with its headers.
const LARGEST_FRAME: usize = 1 << 17;

#[derive(Debug)]
pub(super) struct PacketSocket {
    descriptor: OwnedFd,
}

pub(super) struct Received {
    pub(super) frame: Vec<u8>,
    pub(super) direction: Direction,
    pub(super) time: Duration,
}

impl PacketSocket {
    /// Opens a socket on a device of the current thread's namespace.
    pub(super) fn open(device: &str) -> Result<Self> {
        let index =
            nix::net::if_::if_nametoindex(device).with_context(|| format!("there is no device {device}"))?;
        // Without a protocol the socket receives nothing until it is bound to its device.
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let descriptor = socket(AddressFamily::Packet, SockType::Raw, flags, None::<SockProtocol>)
            .context("can't open a packet socket")?;
        setsockopt(&descriptor, sockopt::RcvBufForce, &BUFFER)?;
        setsockopt(&descriptor, sockopt::ReceiveTimestampns, &true)?;
        bind(&descriptor, index).with_context(|| format!("can't capture on {device}"))?;
        Ok(Self { descriptor })
    }

    /// Sends a frame unchanged.
    pub(super) fn send(&self, frame: &[u8]) -> Result<()> {
        let sent =
            send(self.descriptor.as_raw_fd(), frame, MsgFlags::empty()).context("can't send a frame")?;
        anyhow::ensure!(sent == frame.len(), "{sent} of {} bytes were sent", frame.len());
        Ok(())
    }

    /// Returns the next frame, if there is one.
    pub(super) fn receive(&self) -> Result<Option<Received>> {
        let mut frame = vec![0; LARGEST_FRAME];
        let mut control = nix::cmsg_space!(TimeSpec);
        let mut parts = [IoSliceMut::new(&mut frame)];
        let descriptor = self.descriptor.as_raw_fd();
        let message = match recvmsg::<LinkAddr>(descriptor, &mut parts, Some(&mut control), MsgFlags::empty())
        {
            Ok(message) => message,
            Err(Errno::EAGAIN) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let outgoing = message.address.is_some_and(|address| address.pkttype() == libc::PACKET_OUTGOING);
        let direction = if outgoing { Direction::Out } else { Direction::In };
        let time = message.cmsgs()?.find_map(|control| match control {
            ControlMessageOwned::ScmTimestampns(time) => Some(Duration::from(time)),
            _ => None,
        });
        let time = time.context("the kernel gave no timestamp")?;
        let length = message.bytes;
        frame.truncate(length);
        // A capture keeps its frames. With their room for the largest one, those of a minute took 20 GB.
        frame.shrink_to_fit();
        Ok(Some(Received { frame, direction, time }))
    }

    /// Returns the number of frames without room since the last call.
    pub(super) fn lost(&self) -> Result<u32> {
        let mut statistics = [0_u32; 2];
        let mut size = libc::socklen_t::try_from(size_of_val(&statistics))?;
        // SAFETY: PACKET_STATISTICS writes at most `size` bytes, the two words of struct
        // tpacket_stats.
        let result = unsafe {
            libc::getsockopt(
                self.descriptor.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                statistics.as_mut_ptr().cast(),
                &raw mut size,
            )
        };
        Errno::result(result).context("can't read a capture's statistics")?;
        let [_, lost] = statistics;
        Ok(lost)
    }
}

fn bind(descriptor: &OwnedFd, index: u32) -> Result<()> {
    // SAFETY: an all-zero sockaddr_ll is valid: integers and an array only.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = u16::try_from(libc::AF_PACKET)?;
    address.sll_protocol = u16::try_from(libc::ETH_P_ALL)?.to_be();
    address.sll_ifindex = i32::try_from(index)?;
    let size = libc::socklen_t::try_from(size_of_val(&address))?;
    // SAFETY: the address lives until the call returns, and `size` is its size.
    let result = unsafe { libc::bind(descriptor.as_raw_fd(), (&raw const address).cast(), size) };
    Errno::result(result)?;
    Ok(())
}
