//! The walk of a socket's `connect`, which the hooks of sockets turn to a backend.
//!
//! Its truth is `hooks/socket/translate.rs` of `proxy-ebpf`. The kernel has no test run for such hooks.

use std::net::{IpAddr, SocketAddr};

use proxy_common::Address;
use proxy_common::affinity::AFFINITY_NAMESPACE;
use proxy_common::config::global;
use proxy_common::frontend::{
    FRONTEND_AFFINITY, FRONTEND_NODE_ONLY, FRONTEND_SOURCE_RANGES, Frontend, FrontendKey, SCOPE_INTERNAL,
};
use proxy_common::hash::client_hash;
use proxy_common::rules::Role;
use proxy_common::selection::{BackendRef, Slot};
use proxy_common::socket::cookie_words;
use proxy_common::verdict::{Program, Reason};

use super::access::not_ours;
use super::packet::protocol;
use super::step::{End, Verdict, Walk};
use super::text::{endpoint, socket};
use super::walker::{Part, Past, Walker};
use crate::dataplane::ebpf::dry_run::{Concern, Keys};
use crate::dataplane::ebpf::read::{Lookups, Tables, protocol_text};

/// The process of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// A process in the node's own network namespace.
    Node,
    /// A process in another one.
    Pod,
}

/// A `connect` of a socket that is not bound to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The process.
    pub caller: Caller,
    /// The address and port in the call.
    pub to: SocketAddr,
    /// The IP protocol number of the socket.
    pub protocol: u8,
}

impl Call {
    /// Returns the hook of the call.
    #[must_use]
    pub const fn program(&self) -> Program {
        if self.to.is_ipv4() { Program::CgConnect4 } else { Program::CgConnect6 }
    }
}

/// Walks a call through the pinned tables.
#[must_use]
pub fn walk_call(lookups: &Lookups<'_>, call: Call) -> Walk {
    match call.to.ip() {
        IpAddr::V4(address) => walk_call_of(&lookups.v4(), call, address.into()),
        IpAddr::V6(address) => walk_call_of(&lookups.v6(), call, address.into()),
    }
}

/// Walks a call to an address of the tables' family.
pub fn walk_call_of<A: Address, T: Tables<A>>(tables: &T, call: Call, address: A) -> Walk
where
    Concern: From<Keys<A>>,
{
    let mut walker = Walker::new(tables, call.program(), 0, Past::Known);
    let end = walker.call(call, address).map_or_else(|end| end, End::from);
    Walk { steps: walker.steps, end, concern: walker.keys.into() }
}

/// The choice among a list's backends, as far as it is known before the call.
enum Pick {
    /// The client's own.
    Known(BackendRef, &'static str),
    /// One of the list, for this reason.
    Any(&'static str),
}

impl<A: Address, T: Tables<A>> Walker<'_, A, T> {
    fn call(&mut self, call: Call, address: A) -> Part<Verdict> {
        if !matches!(call.protocol, protocol::TCP | protocol::UDP) {
            return Err(not_ours("hooks of sockets serve TCP and UDP alone"));
        }
        if self.is_older() {
            return Err(not_ours("the other mode serves new connections"));
        }
        let is_nodes = call.caller == Caller::Node;
        if self.constant(global::SOCKET_NODE_ONLY) != 0 && !is_nodes {
            let why = "hooks of sockets serve the node's own processes alone (--socket-lb host)";
            return Err(not_ours(why));
        }
        let port = call.to.port().to_be();
        let key = FrontendKey { address, port, protocol: call.protocol, scope: SCOPE_INTERNAL };
        let Some(frontend) = self.tables.frontend(&key) else {
            return Err(self.no_call(call, &address));
        };
        self.note_frontend(&frontend, SCOPE_INTERNAL);
        self.check_caller(is_nodes, &frontend, &address)?;
        let pick = self.pick(call, &frontend);
        self.note_list(&frontend);
        self.picked(&frontend, &pick)
    }

    /// Ends the walk of a call to a port without a frontend.
    fn no_call(&mut self, call: Call, address: &A) -> End {
        let nearest = self.nearest(address, SCOPE_INTERNAL);
        let (port, protocol) = (call.to.port(), protocol_text(call.protocol));
        self.note("frontend", format!("none for {port}/{protocol}: {nearest}"), "FRONTENDS*");
        let rejected = self.constant(global::REJECT_UNKNOWN);
        if self.may_be_vip(address) && self.vip_kinds(address) & rejected != 0 {
            let why = format!("{nearest}; connect fails with ECONNREFUSED");
            return Verdict::new(Reason::UnknownPort, why).into();
        }
        not_ours(nearest)
    }

    fn check_caller(&mut self, is_nodes: bool, frontend: &Frontend, address: &A) -> Part<()> {
        if frontend.flags & FRONTEND_NODE_ONLY != 0 {
            return if is_nodes {
                Ok(())
            } else {
                Err(not_ours("a loopback address of a pod is the pod's own"))
            };
        }
        if frontend.flags & FRONTEND_SOURCE_RANGES == 0 {
            self.note("source", "all clients are admitted", "");
            return Ok(());
        }
        if is_nodes && self.tables.is_inside(frontend.service, address) {
            self.note("source", "the node's own processes are admitted", "SOURCE_RANGES*");
            return Ok(());
        }
        let why = "the Service has source ranges, which are judged by the packets: this node's programs see them \
                   on devices of pods, other nodes' on uplinks";
        self.note("source", why, "SOURCE_RANGES*");
        Err(not_ours("the socket's address is not known yet, so its packets are judged"))
    }

    fn pick(&mut self, call: Call, frontend: &Frontend) -> Pick {
        if frontend.flags & FRONTEND_AFFINITY == 0 {
            self.note("affinity", "none asked for", "");
            let is_udp = call.protocol == protocol::UDP;
            return Pick::Any(if is_udp { "by the socket's cookie" } else { "at random" });
        }
        let Some(client) = self.node_namespace().filter(|_| call.caller == Caller::Node) else {
            self.note("affinity", "ClientIP: by the network namespace of the pod", "AFFINITY*");
            return Pick::Any("by the network namespace of the pod");
        };
        let slot = self.slice(frontend).map(|entry| self.tables.slot(entry.slot(client_hash(&client))));
        let owner = slot.map_or(BackendRef::NONE, Slot::current);
        let (reference, by) = self.recall(frontend, (client, AFFINITY_NAMESPACE), owner, Role::Datagram);
        Pick::Known(reference, by)
    }

    /// Returns the cookie of the node's network namespace in the form of a client's address.
    fn node_namespace(&self) -> Option<A> {
        let [low, high] = cookie_words(self.tables.node_namespace());
        let bytes = [low.to_ne_bytes(), high.to_ne_bytes(), [0; 4], [0; 4]].concat();
        A::from_ip(if A::WORDS == 1 {
            IpAddr::from(low.to_ne_bytes())
        } else {
            IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?)
        })
    }

    fn picked(&mut self, frontend: &Frontend, pick: &Pick) -> Part<Verdict> {
        let owners = self.owners(self.tables.service(frontend.service).unwrap_or_default());
        let only = || owners.keys().next().copied().filter(|_| owners.len() == 1);
        let (known, by) = match pick {
            Pick::Known(reference, by) => (Some(*reference), *by),
            Pick::Any(by) => (only(), if owners.len() == 1 { "the only one" } else { *by }),
        };
        let mut verdict = Verdict::new(Reason::Connected, "");
        let is_gone = |owner: &BackendRef| self.backend(*owner).is_none();
        match known {
            None if owners.keys().all(is_gone) => return Err(self.no_call_backend(frontend)),
            None => {
                verdict.or.extend(owners.keys().any(is_gone).then_some(Reason::NoBackend));
                self.note("backend", format!("one of the list, {by}"), "SELECTION, BACKENDS*");
            }
            Some(reference) => {
                let backend = self.backend(reference).ok_or_else(|| self.no_call_backend(frontend))?;
                verdict.backend = Some(socket(backend.address, backend.port));
                self.note("backend", format!("{}: {by}", endpoint(&backend)), "SELECTION, BACKENDS*");
            }
        }
        self.note_candidates(&owners);
        self.note("path", "the socket is connected to the backend itself; its process sees the frontend", "");
        Ok(verdict)
    }

    /// The end of a call without a backend.
    fn no_call_backend(&self, frontend: &Frontend) -> End {
        match self.no_backend(frontend) {
            End::Verdict(mut verdict) => {
                let is_refused = verdict.reason == Reason::NoEndpoint;
                let error = if is_refused { "ECONNREFUSED" } else { "EHOSTUNREACH" };
                verdict.why = format!("{}; connect fails with {error}", verdict.why);
                End::Verdict(verdict)
            }
            end @ End::NotWalked(_) => end,
        }
    }
}
