//! `connect` and `sendmsg`: from the frontend in the call to a backend.

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
use crate::maps::family::Family;
use crate::maps::{mode, peers, recorder};
use crate::select::affinity::{self, Asks};
use crate::select::{backend, source, vip};

/// Turns the `connect` of a socket to a backend.
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

/// Turns a datagram of a socket that is not connected to a backend.
#[inline(always)]
pub fn send<F: Form>(call: &Call) -> Outcome {
    let Some(protocol) = served_protocol(call) else {
        return UNTOUCHED;
    };
    let asked = Asked::<F> { address: F::address(call), port: call.port(), protocol };
    let outcome = translate::<F>(call, &asked);
    // A connected socket hears only its peer.
    if matches!(outcome, Outcome::Proceed(Reason::NotOurs)) && !call.is_connected() {
        asked.forget(call);
    }
    outcome
}

/// The address, port and protocol that a socket asks for, or gets.
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

    /// The address of a backend, unless it is gone.
    #[inline(always)]
    fn of(reference: BackendRef, protocol: u8) -> Option<Self> {
        let backend = <F::Family as Family>::backend(reference)?;
        Some(Self { address: backend.address, port: backend.port, protocol })
    }

    /// Forgets the frontend of a datagram socket that now asks for the backend itself: the last call counts.
    #[inline(always)]
    fn forget(&self, call: &Call) {
        let (key, sockets) = (self.key(call), F::Family::sockets(self.protocol));
        // A look-up that finds nothing is cheap; a removal takes a lock.
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
        return refuse::<F>(asked, frontend.service, reason, error);
    };
    if is_out_of_reach::<F>(call, asked, &given) {
        return refuse::<F>(asked, frontend.service, Reason::LoopbackSource, EADDRNOTAVAIL);
    }
    let given = remember::<F>(call, asked, given, reference, &frontend);
    F::set_address(call, &given.address);
    call.set_port(given.port);
    Outcome::Proceed(Reason::Connected)
}

/// Decides about a port without a frontend, of a Service's address or of any other.
#[inline(always)]
fn unknown<F: Form>(asked: &Asked<F>) -> Outcome {
    if vip::may_be_vip::<F::Family>(&asked.address) && vip::is_rejecting::<F::Family>(&asked.address) {
        return refuse::<F>(asked, 0, Reason::UnknownPort, ECONNREFUSED);
    }
    UNTOUCHED
}

/// Fails the call, and records it.
#[inline(always)]
fn refuse<F: Form>(asked: &Asked<F>, service: u32, reason: Reason, error: i32) -> Outcome {
    let frontend = (asked.address, asked.port);
    recorder::record_refusal::<F::Family>(reason, &frontend, asked.protocol, service);
    Outcome::Fail(reason, error)
}

/// Whether this socket may use the frontend, as far as the call shows it before there is a packet.
///
/// The programs that see the packets judge the rest. If the address itself is an allowed source, the node's
/// own addresses are allowed, too (`with_vips` in the model).
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

/// Chooses a backend: the same one for all datagrams of a socket while the list is the same, any for a
/// connection.
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

/// A hash of a cookie. The kernel counts cookies up, so neighbours must be spread.
#[inline(always)]
const fn spread([low, high]: [u32; 2]) -> u32 {
    mix(low as u64 | (high as u64) << 32) as u32
}

/// Whether the socket's loopback address keeps it from a NodePort's backend.
///
/// From there the kernel sends only to addresses of the node itself. No hook can bind the socket to another
/// address: `bpf_bind` refuses a socket that has a port.
#[inline(always)]
fn is_out_of_reach<F: Form>(call: &Call, asked: &Asked<F>, given: &Asked<F>) -> bool {
    asked.address == F::Family::LOOPBACK
        && F::Family::is_loopback(&F::bound(call))
        && !peers::is_own::<F::Family>(&given.address)
}

/// Records the frontend of a socket's backend, and returns the backend that the socket gets in the end.
///
/// A backend's answers to one socket can stand for one frontend only. Datagrams to a second frontend
/// therefore go to another backend, if there is one. If the map refuses the entry, the socket sees the
/// backend's own address.
#[inline(always)]
fn remember<F: Form>(
    call: &Call,
    asked: &Asked<F>,
    given: Asked<F>,
    reference: BackendRef,
    frontend: &Frontend,
) -> Asked<F> {
    // Each connection has a socket of its own, but a socket sends many datagrams.
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

/// The frontend that a backend stands for to a socket so far.
enum Known {
    Nobody,
    AsAsked,
    Another,
}

#[inline(always)]
fn known<F: Form>(call: &Call, asked: &Asked<F>, given: &Asked<F>) -> Known {
    let key = given.key(call);
    let [low, _] = key.cookie;
    // SAFETY: copied at once; `socket` shows an entry of another key.
    let found = unsafe { F::Family::sockets(asked.protocol).get(&key).copied() };
    match found.filter(|found| found.socket == low) {
        None => Known::Nobody,
        Some(found) if found.address == asked.address && found.port == asked.port => Known::AsAsked,
        Some(_) => Known::Another,
    }
}

/// Another backend of the list that stands for no other frontend to this socket. Session affinity allows
/// none.
#[inline(always)]
fn other<F: Form>(call: &Call, asked: &Asked<F>, frontend: &Frontend) -> Option<(Asked<F>, BackendRef)> {
    const TRIES: u32 = 8;
    /// The golden ratio's part of all hashes: a few steps reach each slot of a short list.
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
