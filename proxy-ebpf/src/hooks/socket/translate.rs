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
use super::outcome::{EADDRNOTAVAIL, ECONNREFUSED, EHOSTUNREACH, Outcome, UNTOUCHED};
use crate::header::protocol;
use crate::maps::config::SOCKET_NODE_ONLY;
use crate::maps::{mode, peers};
use crate::select::affinity::{self, Asks};
use crate::select::{backend, source, vip};

/// A socket is connected.
#[inline(always)]
pub fn connect<F: Form>(call: &Call) -> Outcome {
    let Some(protocol) = served_protocol(call) else {
        return UNTOUCHED;
    };
    let asked = Asked::<F> { address: F::address(call), port: call.port(), protocol };
    let outcome = translate::<F>(call, &asked);
    if matches!(outcome, Outcome::Proceed(Reason::NotOurs)) && protocol == protocol::UDP {
        asked.forget(call);
    }
    outcome
}

/// A datagram is sent by a socket that is not connected.
#[inline(always)]
pub fn send<F: Form>(call: &Call) -> Outcome {
    let Some(protocol) = served_protocol(call) else {
        return UNTOUCHED;
    };
    let asked = Asked::<F> { address: F::address(call), port: call.port(), protocol };
    let outcome = translate::<F>(call, &asked);
    // A connected socket hears nobody but its peer.
    if matches!(outcome, Outcome::Proceed(Reason::NotOurs)) && !call.is_connected() {
        asked.forget(call);
    }
    outcome
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

    /// What a backend stands for, unless it is gone.
    #[inline(always)]
    fn of(reference: BackendRef, protocol: u8) -> Option<Self> {
        let backend = backend::lookup_backend::<F::Family>(reference)?;
        Some(Self { address: backend.address, port: backend.port, protocol })
    }

    /// A datagram socket that asked by a frontend before asks for the backend itself now: the last counts.
    #[inline(always)]
    fn forget(&self, call: &Call) {
        let (key, sockets) = (self.key(call), F::Family::sockets(self.protocol));
        // To look is cheap where nothing is found, to delete takes a lock.
        if sockets.get_ptr(&key).is_some() {
            let _ = sockets.remove(&key);
        }
    }
}

#[inline(always)]
fn served_protocol(call: &Call) -> Option<u8> {
    let protocol = call.protocol()?;
    let is_served = matches!(protocol, protocol::TCP | protocol::UDP) && !mode::is_older();
    if SOCKET_NODE_ONLY.load() != 0 && !call.is_of_node() {
        return None;
    }
    is_served.then_some(protocol)
}

#[inline(always)]
fn translate<F: Form>(call: &Call, asked: &Asked<F>) -> Outcome {
    let Some(frontend) = backend::lookup_internal::<F::Family>(&asked.address, asked.port, asked.protocol)
    else {
        return unknown::<F>(asked);
    };
    if !is_for::<F>(call, asked, &frontend) {
        return UNTOUCHED;
    }
    let reference = choose::<F>(call, asked, &frontend);
    let Some(given) = Asked::<F>::of(reference, asked.protocol) else {
        let reason = backend::reason_of_none(&frontend);
        let error = if matches!(reason, Reason::NoEndpoint) { ECONNREFUSED } else { EHOSTUNREACH };
        return Outcome::Fail(reason, error);
    };
    if is_out_of_reach::<F>(call, asked, &given) {
        return Outcome::Fail(Reason::LoopbackSource, EADDRNOTAVAIL);
    }
    let given = remember::<F>(call, asked, given, reference, &frontend);
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
    let Some(service) = backend::lookup_slice(frontend) else {
        return BackendRef::NONE;
    };
    if frontend.flags & FRONTEND_AFFINITY != 0 {
        let client = F::Family::namespace(call.namespace());
        let owner = backend::slot_of(service, client_hash(&client)).current();
        return affinity::recall::<F::Family>(frontend, (client, AFFINITY_NAMESPACE), owner, Asks::AndEnters);
    }
    let hash = if asked.protocol == protocol::UDP { spread(call.cookie()) } else { random() };
    backend::slot_of(service, hash).current()
}

/// Cookies are given out one after the other.
#[inline(always)]
const fn spread([low, high]: [u32; 2]) -> u32 {
    mix(low as u64 | (high as u64) << 32) as u32
}

/// Whether a socket can't reach a NodePort's backend from the loopback address that it is bound to: the kernel sends nothing from there but
/// to addresses of the node itself, and no hook can bind it to another one (`bpf_bind` refuses a socket that has a port).
#[inline(always)]
fn is_out_of_reach<F: Form>(call: &Call, asked: &Asked<F>, given: &Asked<F>) -> bool {
    asked.address == F::Family::LOOPBACK
        && F::Family::is_loopback(&F::bound(call))
        && !peers::is_own::<F::Family>(&given.address)
}

/// Notes which frontend a socket's backend stands for; where the map refuses, the socket sees the backend's own address. Returns what the socket gets in
/// the end: answers of one backend to one socket can stand for one frontend only, so datagrams to a second frontend go to another backend, as far as
/// there is one.
#[inline(always)]
fn remember<F: Form>(
    call: &Call,
    asked: &Asked<F>,
    given: Asked<F>,
    reference: BackendRef,
    frontend: &Frontend,
) -> Asked<F> {
    // A connection is one of its own, datagrams come again.
    let (given, reference) = if asked.protocol == protocol::TCP {
        (given, reference)
    } else {
        match known::<F>(call, asked, &given) {
            Known::AsAsked => return given,
            Known::Nobody => (given, reference),
            Known::Another => other::<F>(call, asked, frontend).unwrap_or((given, reference)),
        }
    };
    let key = given.key(call);
    let [low, _] = key.cookie;
    let entry = SocketFrontend {
        address: asked.address,
        backend: reference.0,
        socket: low,
        port: asked.port,
        reserved: 0,
    };
    let _ = F::Family::sockets(asked.protocol).insert(&key, &entry, BPF_ANY.into());
    given
}

/// What a backend stands for to a socket so far.
enum Known {
    Nobody,
    AsAsked,
    Another,
}

#[inline(always)]
fn known<F: Form>(call: &Call, asked: &Asked<F>, given: &Asked<F>) -> Known {
    let key = given.key(call);
    let [low, _] = key.cookie;
    // SAFETY: copied at once; what is of another key is told by its socket.
    let found = unsafe { F::Family::sockets(asked.protocol).get(&key).copied() };
    match found.filter(|found| found.socket == low) {
        None => Known::Nobody,
        Some(found) if found.address == asked.address && found.port == asked.port => Known::AsAsked,
        Some(_) => Known::Another,
    }
}

/// Another backend of the list, which stands for no other frontend to this socket. Under session affinity there is none.
#[inline(always)]
fn other<F: Form>(call: &Call, asked: &Asked<F>, frontend: &Frontend) -> Option<(Asked<F>, BackendRef)> {
    const TRIES: u32 = 8;
    /// The golden ratio's part of all hashes: a few steps come by each slot of a short list.
    const STEP: u32 = 0x9e37_79b9;
    let service = backend::lookup_slice(frontend).filter(|_| frontend.flags & FRONTEND_AFFINITY == 0)?;
    let mut hash = spread(call.cookie());
    for _ in 0..TRIES {
        hash = hash.wrapping_add(STEP);
        let reference = backend::slot_of(service, hash).current();
        if let Some(given) = Asked::<F>::of(reference, asked.protocol)
            && !matches!(known::<F>(call, asked, &given), Known::Another)
        {
            return Some((given, reference));
        }
    }
    None
}
