//! The form of an address in a call: IPv4's, IPv6's, or the v4-mapped form that an IPv6 socket uses.

use proxy_common::addr::{Addr4, Addr6, Address};
use proxy_common::socket::cookie_words;

use super::call::Call;
use crate::header::protocol;
use crate::maps::family::Family;
use crate::maps::v4::V4;
use crate::maps::v6::V6;
use crate::maps::{self, SocketsMap};

/// A family, as the socket hooks need it.
pub trait SocketFamily: Family {
    /// 127.0.0.1 or ::1.
    const LOOPBACK: Self::Address;
    /// Whether an address is a loopback address.
    fn is_loopback(address: &Self::Address) -> bool;
    /// The frontends that the backends of a protocol's sockets stand for.
    fn sockets(protocol: u8) -> &'static SocketsMap<Self::Address>;
    /// A network namespace's cookie, in the form of a client's address.
    fn namespace(cookie: u64) -> Self::Address;
}

impl SocketFamily for V4 {
    const LOOPBACK: Addr4 = Addr4([u32::from_ne_bytes([127, 0, 0, 1])]);
    #[inline(always)]
    fn is_loopback(address: &Addr4) -> bool {
        let [word] = address.0;
        let [first, ..] = word.to_ne_bytes();
        first == 127
    }
    #[inline(always)]
    fn sockets(protocol: u8) -> &'static SocketsMap<Addr4> {
        if protocol == protocol::TCP { &maps::SOCK_TCP4 } else { &maps::SOCK_REV4 }
    }
    #[inline(always)]
    fn namespace(cookie: u64) -> Addr4 {
        let [low, _] = cookie_words(cookie);
        Addr4([low])
    }
}

impl SocketFamily for V6 {
    const LOOPBACK: Addr6 = Addr6([0, 0, 0, 1_u32.to_be()]);
    #[inline(always)]
    fn is_loopback(address: &Addr6) -> bool {
        *address == Self::LOOPBACK
    }
    #[inline(always)]
    fn sockets(protocol: u8) -> &'static SocketsMap<Addr6> {
        if protocol == protocol::TCP { &maps::SOCK_TCP6 } else { &maps::SOCK_REV6 }
    }
    #[inline(always)]
    fn namespace(cookie: u64) -> Addr6 {
        let [low, high] = cookie_words(cookie);
        Addr6([low, high, 0, 0])
    }
}

/// Address of a [`Form`].
pub type AddressOf<F> = <<F as Form>::Family as Family>::Address;

/// A form of addresses.
pub trait Form {
    /// The family of the addresses.
    type Family: SocketFamily;
    /// The address in the call.
    fn address(call: &Call) -> AddressOf<Self>;
    /// Writes another address into the call.
    fn set_address(call: &Call, address: &AddressOf<Self>);
    /// The address the socket is bound to; zero if it is not bound.
    fn bound(call: &Call) -> AddressOf<Self>;

    /// Whether an address is the unspecified one.
    #[inline(always)]
    fn is_any(address: &AddressOf<Self>) -> bool {
        *address == AddressOf::<Self>::default()
    }
}

/// IPv4, of an IPv4 socket.
pub struct Plain4;
/// IPv6.
pub struct Plain6;
/// IPv4, of an IPv6 socket.
pub struct Mapped4;

const MAPPED_PREFIX: [u32; 3] = [0, 0, 0xffff_u32.to_be()];

/// Whether the address in an IPv6 socket's call is a v4-mapped one.
#[inline(always)]
pub fn is_mapped(call: &Call) -> bool {
    unmap(call.address6()).is_some()
}

/// The IPv4 address in a v4-mapped one.
#[inline(always)]
pub fn unmap([a, b, c, word]: [u32; 4]) -> Option<Addr4> {
    ([a, b, c] == MAPPED_PREFIX).then_some(Addr4([word]))
}

impl Form for Plain4 {
    type Family = V4;
    #[inline(always)]
    fn address(call: &Call) -> Addr4 {
        Addr4(call.address4())
    }
    #[inline(always)]
    fn set_address(call: &Call, address: &Addr4) {
        call.set_address4(address.0);
    }
    #[inline(always)]
    fn bound(call: &Call) -> Addr4 {
        Addr4(call.bound4())
    }
}

impl Form for Plain6 {
    type Family = V6;
    #[inline(always)]
    fn address(call: &Call) -> Addr6 {
        Addr6(call.address6())
    }
    #[inline(always)]
    fn set_address(call: &Call, address: &Addr6) {
        call.set_address6(address.0);
    }
    #[inline(always)]
    fn bound(call: &Call) -> Addr6 {
        Addr6(call.bound6())
    }
}

impl Form for Mapped4 {
    type Family = V4;
    #[inline(always)]
    fn address(call: &Call) -> Addr4 {
        let [_, _, _, word] = call.address6();
        Addr4([word])
    }
    #[inline(always)]
    fn set_address(call: &Call, address: &Addr4) {
        let ([a, b, c], [word]) = (MAPPED_PREFIX, address.0);
        call.set_address6([a, b, c, word]);
    }
    #[inline(always)]
    fn bound(call: &Call) -> Addr4 {
        Addr4(call.bound4())
    }
}

const _: () = assert!(Addr4::WORDS == 1 && Addr6::WORDS == 4);
