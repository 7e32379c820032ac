//! `connect` and `sendmsg`: from the frontend a socket asks for to a backend.

use aya_ebpf::bindings::BPF_ANY;
use proxy_common::affinity::AFFINITY_NAMESPACE;
use proxy_common::frontend::{FRONTEND_AFFINITY, FRONTEND_NODE_ONLY, FRONTEND_SOURCE_RANGES, Frontend};
use proxy_common::hash::{client_hash, mix};
use proxy_common::selection::BackendRef;
use proxy_common::socket::{SocketFrontend, SocketKey};
use proxy_common::verdict::Reason;

use super::call::{Call, random};
use super::form::{AddressOf, Form, SocketFamily};
use super::{ECONNREFUSED, EHOSTUNREACH, Outcome, UNTOUCHED};
use crate::affinity;
use crate::balance;
use crate::config::SOCKET_NODE_ONLY;
use crate::packet::header::protocol;
use crate::share;
use crate::source;
use crate::vip;

/// A socket is connected.
#[inline(always)]
pub fn connect<F: Form>(call: &Call) -> Outcome {
    let Some(protocol) = served_protocol(call) else {
        return UNTOUCHED;
    };
    let asked = Asked::<F> { address: F::address(call), port: call.port(), protocol };
    let outcome = turn::<F>(call, &asked);
    if matches!(outcome, Outcome::Proceed(Reason::NotOurs)) && protocol == protocol::UDP {
        // A datagram socket that was connected by a frontend before, and asks for the backend itself now.
        let _ = F::Family::sockets(protocol).remove(&asked.key(call));
    }
    outcome
}

/// A datagram is sent by a socket that is not connected.
#[inline(always)]
pub fn send<F: Form>(call: &Call) -> Outcome {
    let Some(protocol) = served_protocol(call) else {
        return UNTOUCHED;
    };
    turn::<F>(call, &Asked { address: F::address(call), port: call.port(), protocol })
}

/// What a socket asks for, or gets.
struct Asked<F: Form> {
    address: AddressOf<F>,
    port: u16,
    protocol: u8,
}

impl<F: Form> Asked<F> {
    #[inline(always)]
    fn key(&self, call: &Call) -> SocketKey<AddressOf<F>> {
        SocketKey {
            address: self.address,
            cookie: call.cookie(),
            port: self.port,
            protocol: u16::from(self.protocol),
        }
    }
}

#[inline(always)]
fn served_protocol(call: &Call) -> Option<u8> {
    let protocol = call.protocol()?;
    let is_served = matches!(protocol, protocol::TCP | protocol::UDP) && !share::is_older();
    if SOCKET_NODE_ONLY.load() != 0 && !call.is_of_node() {
        return None;
    }
    is_served.then_some(protocol)
}

#[inline(always)]
fn turn<F: Form>(call: &Call, asked: &Asked<F>) -> Outcome {
    let Some(frontend) = balance::lookup_internal::<F::Family>(&asked.address, asked.port, asked.protocol)
    else {
        return unknown::<F>(asked);
    };
    if !is_for::<F>(call, asked, &frontend) {
        return UNTOUCHED;
    }
    let reference = choose::<F>(call, asked, &frontend);
    let Some(backend) = balance::lookup_backend::<F::Family>(reference) else {
        let reason = balance::why_nobody(&frontend);
        let error = if matches!(reason, Reason::NoEndpoint) { ECONNREFUSED } else { EHOSTUNREACH };
        return Outcome::Fail(reason, error);
    };
    let given = Asked { address: backend.address, port: backend.port, protocol: asked.protocol };
    remember::<F>(call, asked, &given, reference);
    F::set_address(call, &given.address);
    call.set_port(given.port);
    Outcome::Proceed(Reason::Connected)
}

/// A port that nobody serves, of a service's address or of any other.
#[inline(always)]
fn unknown<F: Form>(asked: &Asked<F>) -> Outcome {
    if vip::may_be_vip::<F::Family>(&asked.address) && vip::is_rejecting::<F::Family>(&asked.address) {
        return Outcome::Fail(Reason::UnknownPort, ECONNREFUSED);
    }
    UNTOUCHED
}

/// Whether the frontend is this socket's to use, as far as can be told before its packets have a source. What can't is left to
/// whoever sees the packets.
///
/// That the address itself is an allowed source means that the node's own addresses are (`with_vips` in the model).
#[inline(always)]
fn is_for<F: Form>(call: &Call, asked: &Asked<F>, frontend: &Frontend) -> bool {
    if frontend.flags & FRONTEND_NODE_ONLY != 0 {
        return call.is_of_node();
    }
    if frontend.flags & FRONTEND_SOURCE_RANGES == 0 {
        return true;
    }
    let bound = F::bound(call);
    if !F::is_any(&bound) {
        return source::is_inside::<F::Family>(frontend.service, &bound);
    }
    call.is_of_node() && source::is_inside::<F::Family>(frontend.service, &asked.address)
}

/// The datagrams of a socket stay together, as far as the list does; connections are spread.
#[inline(always)]
fn choose<F: Form>(call: &Call, asked: &Asked<F>, frontend: &Frontend) -> BackendRef {
    let Some(service) = balance::lookup_slice(frontend) else {
        return BackendRef::NONE;
    };
    if frontend.flags & FRONTEND_AFFINITY != 0 {
        let client = F::Family::namespace(call.namespace());
        let owner = balance::slot_of(service, client_hash(&client)).current();
        return affinity::recall::<F::Family>(frontend, (client, AFFINITY_NAMESPACE), owner, true);
    }
    let hash = if asked.protocol == protocol::UDP { spread(call.cookie()) } else { random() };
    balance::slot_of(service, hash).current()
}

/// Cookies are given out one after the other.
#[inline(always)]
const fn spread([low, high]: [u32; 2]) -> u32 {
    mix(low as u64 | (high as u64) << 32) as u32
}

/// Where the map refuses, the socket sees the backend's own address.
#[inline(always)]
fn remember<F: Form>(call: &Call, asked: &Asked<F>, given: &Asked<F>, backend: BackendRef) {
    let key = given.key(call);
    let [low, _] = key.cookie;
    let entry = SocketFrontend {
        address: asked.address,
        backend: backend.0,
        socket: low,
        port: asked.port,
        reserved: 0,
    };
    let sockets = F::Family::sockets(asked.protocol);
    // A connection is one of its own, datagrams come again.
    let is_new = asked.protocol == protocol::TCP;
    // SAFETY: copied at once.
    if is_new || unsafe { sockets.get(&key).copied() } != Some(entry) {
        let _ = sockets.insert(&key, &entry, BPF_ANY.into());
    }
}
