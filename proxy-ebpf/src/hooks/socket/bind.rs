//! `bind`: no other process may take a node's port that belongs to a Service.

use proxy_common::frontend::FRONTEND_KIND_NODE_PORT;

use super::call::Call;
use super::form::{Form, Plain6, SocketFamily};
use super::outcome::EADDRINUSE;
use crate::maps::mode;
use crate::maps::v4::V4;
use crate::select::backend;

/// Refuses a port of the node that a Service has, with the error number.
///
/// Every NodePort has a frontend at the loopback address.
#[inline(always)]
pub fn bind<F: Form>(call: &Call) -> Result<(), i32> {
    let address = F::address(call);
    let address = if F::is_any(&address) { F::Family::LOOPBACK } else { address };
    permit::<F::Family>(call, &address)
}

/// Checks the IPv4 port that a socket at `::` takes as well.
///
/// The hook can't see that a socket is for IPv6 only (`IPV6_V6ONLY`).
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
