//! A socket's call, as the kernel shows it to the hooks.
//!
//! The code reads and writes the context's fields one word at a time, at fixed places: the verifier rewrites
//! each access.

use core::ptr;

use aya_ebpf::bindings::{bpf_sock, bpf_sock_addr};
use aya_ebpf::helpers::generated::{
    bpf_get_netns_cookie, bpf_get_prandom_u32, bpf_get_socket_cookie, bpf_set_retval,
};
use aya_ebpf::programs::SockAddrContext;
use proxy_common::socket::cookie_words;

use crate::maps::observe::node_namespace;

/// A socket's `connect`, `bind`, `sendmsg`, `recvmsg` or `getpeername`.
pub struct Call {
    context: *mut bpf_sock_addr,
}

impl Call {
    #[inline(always)]
    pub const fn new(context: &SockAddrContext) -> Self {
        Self { context: context.sock_addr }
    }

    /// The protocol of the socket, if a Service can have it.
    #[inline(always)]
    pub fn protocol(&self) -> Option<u8> {
        // SAFETY: the kernel's context; every field may be read.
        let protocol = unsafe { (&raw const (*self.context).protocol).read_volatile() };
        u8::try_from(protocol).ok()
    }
    /// The other side's port, network byte order; for `bind`, the socket's own.
    #[inline(always)]
    pub fn port(&self) -> u16 {
        // SAFETY: as above.
        unsafe { (&raw const (*self.context).user_port).read_volatile() as u16 }
    }
    #[inline(always)]
    pub fn set_port(&self, port: u16) {
        // SAFETY: the kernel's context; these hooks may write the field.
        unsafe { (&raw mut (*self.context).user_port).write_volatile(u32::from(port)) };
    }
    #[inline(always)]
    pub fn address4(&self) -> [u32; 1] {
        // SAFETY: as above.
        unsafe { [(&raw const (*self.context).user_ip4).read_volatile()] }
    }
    #[inline(always)]
    pub fn set_address4(&self, [word]: [u32; 1]) {
        // SAFETY: as above.
        unsafe { (&raw mut (*self.context).user_ip4).write_volatile(word) };
    }
    #[inline(always)]
    pub fn address6(&self) -> [u32; 4] {
        // SAFETY: as above.
        unsafe { read4((&raw const (*self.context).user_ip6).cast()) }
    }
    #[inline(always)]
    pub fn set_address6(&self, [a, b, c, d]: [u32; 4]) {
        // SAFETY: as above.
        unsafe {
            let words = (&raw mut (*self.context).user_ip6).cast::<u32>();
            words.write_volatile(a);
            words.add(1).write_volatile(b);
            words.add(2).write_volatile(c);
            words.add(3).write_volatile(d);
        }
    }
    /// The IPv4 address the socket is bound to; zero if it is not bound.
    #[inline(always)]
    pub fn bound4(&self) -> [u32; 1] {
        // SAFETY: the kernel's own view of the socket; the field may be read.
        unsafe { [(&raw const (*self.socket()).src_ip4).read_volatile()] }
    }
    /// The IPv6 address the socket is bound to; zero if it is not bound.
    #[inline(always)]
    pub fn bound6(&self) -> [u32; 4] {
        // SAFETY: as above.
        unsafe { read4((&raw const (*self.socket()).src_ip6).cast()) }
    }
    /// Whether the socket is connected.
    #[inline(always)]
    pub fn is_connected(&self) -> bool {
        // SAFETY: as above.
        unsafe { (&raw const (*self.socket()).dst_port).read_volatile() != 0 }
    }
    /// The socket's cookie, in two words.
    #[inline(always)]
    pub fn cookie(&self) -> [u32; 2] {
        // SAFETY: the context is the kernel's own.
        cookie_words(unsafe { bpf_get_socket_cookie(self.context.cast()) })
    }
    /// The cookie of the socket's network namespace.
    #[inline(always)]
    pub fn namespace(&self) -> u64 {
        // SAFETY: as above.
        unsafe { bpf_get_netns_cookie(self.context.cast()) }
    }
    /// Whether the socket is in the node's own network namespace.
    #[inline(always)]
    pub fn is_of_node(&self) -> bool {
        self.namespace() == node_namespace()
    }

    #[inline(always)]
    fn socket(&self) -> *const bpf_sock {
        // SAFETY: as above; all members of the union lie in one word.
        unsafe { ptr::from_ref(&(*self.context).__bindgen_anon_1.sk).read_volatile() }
    }
}

/// An unpredictable number.
#[inline(always)]
pub fn random() -> u32 {
    // SAFETY: no arguments, no preconditions.
    unsafe { bpf_get_prandom_u32() }
}

/// Makes a refused call fail with this error number instead of EPERM.
#[inline(always)]
pub fn fail_with(error: i32) {
    // SAFETY: no pointers. If the kernel refuses the number, the call fails with EPERM.
    unsafe { bpf_set_retval(-error) };
}

/// Reads four words of the context.
///
/// # Safety
///
/// The verifier must let the program read four words at `words`.
#[inline(always)]
pub(super) unsafe fn read4(words: *const u32) -> [u32; 4] {
    // SAFETY: the caller guarantees four readable words.
    unsafe {
        [
            words.read_volatile(),
            words.add(1).read_volatile(),
            words.add(2).read_volatile(),
            words.add(3).read_volatile(),
        ]
    }
}
