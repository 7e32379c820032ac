//! A packet socket for frames of ARP and neighbour discovery on one device.

use std::io;
use std::mem::{size_of, size_of_val, zeroed};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket};
use tokio::io::unix::AsyncFd;

/// Bytes that hold all that is read of a frame.
const LONGEST: usize = 128;

// Instructions of the kernel's first BPF (linux/bpf_common.h).
const LOAD_BYTE: u16 = 0x30;
const LOAD_HALF: u16 = 0x28;
const JUMP_IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;
/// Whether the frame had a VLAN tag (`SKF_AD_OFF + SKF_AD_VLAN_TAG_PRESENT`): then it is that VLAN device's.
const VLAN_TAG_PRESENT: u32 = 0xffff_f000 + 48;

/// Takes untagged frames of ARP, and neighbour advertisements right behind an IPv6 header.
const FILTER: [libc::sock_filter; 11] = [
    instruction(LOAD_BYTE, 0, 0, VLAN_TAG_PRESENT),
    instruction(JUMP_IF_EQUAL, 0, 7, 0),
    instruction(LOAD_HALF, 0, 0, 12),
    instruction(JUMP_IF_EQUAL, 6, 0, 0x0806),
    instruction(JUMP_IF_EQUAL, 0, 4, 0x86dd),
    instruction(LOAD_BYTE, 0, 0, 20),
    instruction(JUMP_IF_EQUAL, 0, 2, 58),
    instruction(LOAD_BYTE, 0, 0, 54),
    instruction(JUMP_IF_EQUAL, 1, 0, 136),
    instruction(RETURN, 0, 0, 0),
    instruction(RETURN, 0, 0, LONGEST as u32),
];

const fn instruction(code: u16, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

/// A socket that is bound to a device.
#[derive(Debug)]
pub struct PacketSocket {
    descriptor: AsyncFd<OwnedFd>,
}

impl PacketSocket {
    /// Opens a socket on the device with this index. It takes `CAP_NET_RAW`.
    pub fn open(device: u32) -> io::Result<Self> {
        // Without a protocol it receives nothing until it is bound.
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let descriptor = socket(AddressFamily::Packet, SockType::Raw, flags, None::<SockProtocol>)?;
        attach_filter(&descriptor)?;
        bind(&descriptor, device)?;
        // SAFETY: an `OwnedFd` gives the same open descriptor as long as it lives.
        let descriptor = unsafe { AsyncFd::register(descriptor) }?;
        Ok(Self { descriptor })
    }

    /// Sends a frame.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        send(self.descriptor.as_raw_fd(), frame, MsgFlags::empty())?;
        Ok(())
    }

    /// Waits for a frame, and returns its first bytes.
    pub async fn receive(&self) -> io::Result<Vec<u8>> {
        loop {
            let mut ready = self.descriptor.readable().await?;
            let mut frame = vec![0; LONGEST];
            let received =
                ready.try_io(|socket| Ok(recv(socket.as_raw_fd(), &mut frame, MsgFlags::empty())?));
            if let Ok(result) = received {
                frame.truncate(result?);
                return Ok(frame);
            }
        }
    }
}

fn attach_filter(descriptor: &OwnedFd) -> io::Result<()> {
    let mut filter = FILTER;
    let length = u16::try_from(filter.len()).map_err(io::Error::other)?;
    let program = libc::sock_fprog { len: length, filter: filter.as_mut_ptr() };
    set(descriptor, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}

fn bind(descriptor: &OwnedFd, device: u32) -> io::Result<()> {
    // SAFETY: an all-zero sockaddr_ll is valid: integers and an array only.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    address.sll_family = u16::try_from(libc::AF_PACKET).map_err(io::Error::other)?;
    address.sll_protocol = u16::try_from(libc::ETH_P_ALL).map_err(io::Error::other)?.to_be();
    address.sll_ifindex = i32::try_from(device).map_err(io::Error::other)?;
    let size = libc::socklen_t::try_from(size_of_val(&address)).map_err(io::Error::other)?;
    // SAFETY: the address lives until the call returns, and `size` is its size.
    let result = unsafe { libc::bind(descriptor.as_raw_fd(), (&raw const address).cast(), size) };
    Errno::result(result)?;
    Ok(())
}

/// Sets an option of a socket to a struct of the kernel.
pub(super) fn set<T>(descriptor: &OwnedFd, level: i32, option: i32, value: &T) -> io::Result<()> {
    let size = libc::socklen_t::try_from(size_of::<T>()).map_err(io::Error::other)?;
    // SAFETY: the value, and what it points to, live until the call returns; `size` is its size.
    let result =
        unsafe { libc::setsockopt(descriptor.as_raw_fd(), level, option, (&raw const *value).cast(), size) };
    Errno::result(result)?;
    Ok(())
}
