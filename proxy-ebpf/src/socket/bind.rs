//! `bind`: a port of the node that is a Service's is nobody else's.

use proxy_common::frontend::FRONTEND_KIND_NODE_PORT;

use super::EADDRINUSE;
use super::call::Call;
use super::form::{AddressOf, Form, SocketFamily};
use crate::balance;

/// Whether a socket may have the port it wants; the error number if not. Every NodePort has a frontend at the loopback address.
#[inline(always)]
pub fn bind<F: Form>(call: &Call) -> Result<(), i32> {
    let (port, Some(protocol)) = (call.port(), call.protocol()) else {
        return Ok(());
    };
    if port == 0 || !call.is_of_node() {
        return Ok(());
    }
    let address = F::address(call);
    let address = if F::is_any(&address) { F::Family::LOOPBACK } else { address };
    if is_node_port::<F>(&address, port, protocol) { Err(EADDRINUSE) } else { Ok(()) }
}

#[inline(always)]
fn is_node_port<F: Form>(address: &AddressOf<F>, port: u16, protocol: u8) -> bool {
    balance::lookup_internal::<F::Family>(address, port, protocol)
        .is_some_and(|frontend| frontend.kind() == FRONTEND_KIND_NODE_PORT)
}
