//! `recvmsg` and `getpeername`: a socket sees the frontend it asked for, not the backend it got.

use proxy_common::socket::SocketKey;

use super::call::Call;
use super::form::{Form, SocketFamily};

/// Replaces a backend's address with the frontend that this socket asked for.
#[inline(always)]
pub fn restore<F: Form>(call: &Call) {
    let Some(protocol) = call.protocol() else {
        return;
    };
    let key = SocketKey {
        address: F::address(call),
        cookie: call.cookie(),
        port: call.port(),
        protocol: u16::from(protocol),
    };
    // SAFETY: copied at once; `socket` shows an entry of another key.
    let found = unsafe { F::Family::sockets(protocol).get(&key).copied() };
    let [socket, _] = key.cookie;
    if let Some(found) = found.filter(|found| found.socket == socket) {
        F::set_address(call, &found.address);
        call.set_port(found.port);
    }
}
