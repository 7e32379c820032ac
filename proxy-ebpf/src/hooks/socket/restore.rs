//! `recvmsg` and `getpeername`: a socket sees the frontend it asked for, not the backend it got.

use proxy_common::socket::SocketKey;

use super::call::Call;
use super::form::{Form, SocketFamily};

/// Puts the frontend in the place of a backend that this socket was turned to.
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
    // SAFETY: copied at once; what is of another key is told by its socket.
    let found = unsafe { F::Family::sockets(protocol).get(&key).copied() };
    let [socket, _] = key.cookie;
    if let Some(found) = found.filter(|found| found.socket == socket) {
        F::set_address(call, &found.address);
        call.set_port(found.port);
    }
}
