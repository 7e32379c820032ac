//! `bind`: a port of the node that is a Service's is nobody else's.

use proxy_common::frontend::FRONTEND_KIND_NODE_PORT;

use super::call::Call;
use super::form::{Form, Plain6, SocketFamily};
use super::outcome::EADDRINUSE;
use crate::maps::mode;
use crate::maps::v4::V4;
use crate::select::backend;

/// Whether a socket may have the port it wants; the error number if not. Every NodePort has a frontend at the loopback address.
#[inline(always)]
pub fn bind<F: Form>(call: &Call) -> Result<(), i32> {
    let address = F::address(call);
    let address = if F::is_any(&address) { F::Family::LOOPBACK } else { address };
    permit::<F::Family>(call, &address)
}

/// The same for IPv4, whose port a socket at `::` takes as well. That one is IPv6's alone (`IPV6_V6ONLY`) is not to be seen here.
#[inline(always)]
pub fn bind_beside(call: &Call) -> Result<(), i32> {
    if Plain6::is_any(&Plain6::address(call)) { permit::<V4>(call, &V4::LOOPBACK) } else { Ok(()) }
}

#[inline(always)]
fn permit<F: SocketFamily>(call: &Call, address: &F::Address) -> Result<(), i32> {
    let (port, Some(protocol)) = (call.port(), call.protocol()) else {
        return Ok(());
    };
    if port == 0 || mode::is_older() || !call.is_of_node() {
        return Ok(());
    }
    if is_node_port::<F>(address, port, protocol) { Err(EADDRINUSE) } else { Ok(()) }
}

#[inline(always)]
fn is_node_port<F: SocketFamily>(address: &F::Address, port: u16, protocol: u8) -> bool {
    backend::lookup_internal::<F>(address, port, protocol)
        .is_some_and(|frontend| frontend.kind() == FRONTEND_KIND_NODE_PORT)
}
