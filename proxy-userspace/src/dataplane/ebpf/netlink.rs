//! A netlink socket for requests to the kernel.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, setsockopt, socket,
};
use nix::sys::time::{TimeVal, TimeValLike};

/// The kernel's answer to a request, or its error.
pub const NLMSG_ERROR: u16 = 2;
/// The end of a dump.
pub const NLMSG_DONE: u16 = 3;
/// Requests an acknowledgement.
pub const NLM_F_ACK: u16 = 4;
/// Requests all objects.
pub const NLM_F_DUMP: u16 = 0x300;
const NLM_F_REQUEST: u16 = 1;

/// `struct nlmsghdr`.
const HEADER: usize = 16;
/// The buffer for the answers of a dump; the kernel fills up to 32 KiB at a time.
const BUFFER: usize = 1 << 16;

/// A netlink socket of the network namespace of its creation.
#[derive(Debug)]
pub struct Netlink {
    socket: OwnedFd,
}

impl Netlink {
    /// Opens it in this thread's network namespace.
    pub fn open(protocol: SockProtocol) -> io::Result<Self> {
        let socket = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
        // Every answer comes sooner. A thread without an answer must not wait for ever.
        setsockopt(&socket, ReceiveTimeout, &TimeVal::seconds(5))?;
        Ok(Self { socket })
    }

    /// Sends a request; its body has any length.
    pub fn send(&self, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
        let length = u32::try_from(HEADER + body.len()).map_err(io::Error::other)?;
        let mut message = Vec::with_capacity(HEADER + body.len());
        message.extend(length.to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend((NLM_F_REQUEST | flags).to_ne_bytes());
        message.extend([0; 8]);
        message.extend(body);
        send(self.socket.as_raw_fd(), &message, MsgFlags::empty())?;
        Ok(())
    }

    /// Gives `visit` the kind and body of each message until it returns the end.
    pub fn receive(&self, mut visit: impl FnMut(u16, &[u8]) -> Option<io::Result<()>>) -> io::Result<()> {
        let mut buffer = vec![0; BUFFER];
        loop {
            let length = match recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                // With a receive time-out, the kernel does not restart the call after a signal:
                // signal(7).
                Err(Errno::EINTR) => continue,
                received => received?,
            };
            let mut rest = buffer.get(..length).unwrap_or_default();
            while let Some((kind, body, next)) = message(rest) {
                if let Some(end) = visit(kind, body) {
                    return end;
                }
                rest = next;
            }
        }
    }

    /// Requests all objects and gives `visit` the body of each answer.
    pub fn dump(&self, kind: u16, body: &[u8], mut visit: impl FnMut(&[u8])) -> io::Result<()> {
        self.send(kind, NLM_F_DUMP, body)?;
        self.receive(|kind, body| match kind {
            NLMSG_DONE => Some(Ok(())),
            NLMSG_ERROR => Some(error(body)),
            _ => {
                visit(body);
                None
            }
        })
    }
}

/// Returns the kind and body of the first message, and the bytes behind it.
fn message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?);
    let length = usize::try_from(length).ok().filter(|length| *length >= HEADER)?;
    let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
    let next = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    Some((kind, bytes.get(HEADER..length)?, next))
}

/// Parses the body of an error message: zero, or a negative error number.
pub fn error(body: &[u8]) -> io::Result<()> {
    let number = body.get(..4).and_then(|bytes| bytes.try_into().ok()).map_or(0, i32::from_ne_bytes);
    if number == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(-number)) }
}
