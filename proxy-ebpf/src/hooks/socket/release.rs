//! `close`: forgets the entry of a connected socket.
//!
//! The next connection gets its room in the maps, and its lines in the processor's caches. In a table full of
//! closed sockets each `connect` and `accept` would cost some cache misses. Live datagram sockets keep their
//! entries for longer.

use aya_ebpf::bindings::bpf_sock;
use aya_ebpf::helpers::generated::bpf_get_socket_cookie;
use aya_ebpf::programs::SockContext;
use proxy_common::socket::{SocketKey, cookie_words};
use proxy_common::{Addr4, Addr6};

use super::call::read4;
use super::form::{SocketFamily, unmap};
use crate::header::protocol;
use crate::maps::v4::{AF_INET, V4};
use crate::maps::v6::V6;

/// A socket that its process closes, as the kernel shows it to the hook.
pub struct Closing {
    socket: *mut bpf_sock,
}

impl Closing {
    #[inline(always)]
    pub const fn new(context: &SockContext) -> Self {
        Self { socket: context.sock }
    }

    #[inline(always)]
    fn family(&self) -> u32 {
        // SAFETY: the kernel's view of the socket; the field may be read.
        unsafe { (&raw const (*self.socket).family).read_volatile() }
    }
    #[inline(always)]
    fn protocol(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (&raw const (*self.socket).protocol).read_volatile() }
    }
    /// The peer's port, network byte order; zero if the socket is not connected.
    #[inline(always)]
    fn peer_port(&self) -> u16 {
        // SAFETY: as above.
        unsafe { (&raw const (*self.socket).dst_port).read_volatile() }
    }
    #[inline(always)]
    fn peer4(&self) -> [u32; 1] {
        // SAFETY: as above.
        unsafe { [(&raw const (*self.socket).dst_ip4).read_volatile()] }
    }
    #[inline(always)]
    fn peer6(&self) -> [u32; 4] {
        // SAFETY: as above; four words.
        unsafe { read4((&raw const (*self.socket).dst_ip6).cast()) }
    }
    #[inline(always)]
    fn cookie(&self) -> [u32; 2] {
        // SAFETY: the context is the kernel's own.
        cookie_words(unsafe { bpf_get_socket_cookie(self.socket.cast()) })
    }
}

/// Removes the entry of a socket and its connected backend.
///
/// A socket whose `connect` failed has no peer any more. The map evicts its entry later, like those of
/// datagrams sent without `connect`.
#[inline(always)]
pub fn forget(socket: &Closing) {
    let Ok(protocol @ (protocol::TCP | protocol::UDP)) = u8::try_from(socket.protocol()) else {
        return;
    };
    if socket.peer_port() == 0 {
        return;
    }
    if socket.family() == u32::from(AF_INET) {
        return remove::<V4>(socket, protocol, Addr4(socket.peer4()));
    }
    let address = socket.peer6();
    match unmap(address) {
        Some(address) => remove::<V4>(socket, protocol, address),
        None => remove::<V6>(socket, protocol, Addr6(address)),
    }
}

#[inline(always)]
fn remove<F: SocketFamily>(socket: &Closing, protocol: u8, address: F::Address) {
    let (cookie, port) = (socket.cookie(), socket.peer_port());
    let key = SocketKey { address, cookie, port, protocol: u16::from(protocol) };
    let sockets = F::sockets(protocol);
    // A look-up that finds nothing is cheap; a removal takes a lock.
    if sockets.get_ptr(&key).is_some() {
        let _ = sockets.remove(&key);
    }
}
