//! Real sockets: servers in pods that report their clients, and clients that ask them.

mod connections;
mod datagrams;
mod http;
mod mtu;
mod ping;
mod raw;
mod sctp;
mod server;
mod spoof;
mod trace;
mod tunnel;

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use tokio::time::error::Elapsed;

use crate::net::{Namespace, Task};

pub use connections::LongConnections;
pub use datagrams::{Delivery, Stream};
pub(crate) use datagrams::{connect as connect_udp, parse as parse_echo};
pub use http::{Connection, get_status};
pub use mtu::{Fate, Fragments, datagram_headers, path_mtu, send_datagram};
pub use ping::ping;
pub use server::Server;
pub use spoof::{Forger, PAIRS_PER_TICK, TICKS_PER_SECOND, route_strangers, send_datagram_pairs, stranger};
pub use trace::{Trace, trace_path};
pub use tunnel::{receive_encapsulated, send_encapsulated};

/// The time after which an answer counts as lost.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(3);

/// A backend's report of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sighting {
    /// Name of the pod or host process that answered.
    pub backend: String,
    /// Source of the request as the backend's socket saw it.
    pub peer: SocketAddr,
    /// Bytes of the request's body.
    pub received: usize,
}

/// Transport protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// TCP; requests are HTTP.
    Tcp,
    /// UDP; a request is one datagram.
    Udp,
    /// SCTP; requests are HTTP.
    Sctp,
}

impl Protocol {
    /// The protocols that every kernel has.
    pub const ALL: [Self; 2] = [Self::Tcp, Self::Udp];

    /// Name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        }
    }
}

/// An answer, and the client's own address. They agree if the client's address is preserved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The backend's report.
    pub sighting: Sighting,
    /// The client's address and port.
    pub client: SocketAddr,
}

impl Answer {
    /// Returns whether the backend saw the client's own address and port.
    #[must_use]
    pub fn kept_client(&self) -> bool {
        self.sighting.peer == self.client
    }
}

/// Asks `target` once from a new socket in `namespace`.
pub fn ask(namespace: &Namespace, protocol: Protocol, target: SocketAddr) -> Result<Answer> {
    namespace.run(async move || ask_here(protocol, target).await)
}

/// Asks `target` once from a new socket of the current thread's namespace.
pub async fn ask_here(protocol: Protocol, target: SocketAddr) -> Result<Answer> {
    let answer = match protocol {
        Protocol::Tcp => async { Connection::open(target).await?.request().await }.await,
        Protocol::Udp => datagrams::ask(target).await,
        Protocol::Sctp => Err(anyhow::anyhow!("it takes an address to ask from")),
    };
    answer.with_context(|| format!("no answer from {} {target}", protocol.name()))
}

/// Asks `target` once from a new socket in `namespace`, by one datagram of `bytes` bytes in
/// fragments of at most 1200 bytes. `order` has the numbers of the fragments.
pub fn ask_in_fragments(
    namespace: &Namespace,
    target: SocketAddr,
    bytes: usize,
    order: &[usize],
) -> Result<Answer> {
    let order = order.to_vec();
    namespace.run(async move || {
        let asked = datagrams::ask_in_fragments(target, bytes, &order).await;
        asked.with_context(|| format!("no answer from {target} to fragments in the order {order:?}"))
    })
}

/// A request that should get no answer. It is given up on drop.
#[derive(Debug)]
pub struct Unanswered {
    task: Task<Answer>,
}

impl Unanswered {
    /// Returns whether no answer and no refusal has come so far, even long after the request was
    /// given up.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        match self.task.outcome_so_far() {
            None => true,
            Some(Ok(_)) => false,
            Some(Err(error)) => error.is::<Elapsed>(),
        }
    }

    /// Returns whether the request was answered; `None` before its end. The end is told once.
    #[must_use]
    pub fn is_answered(&self) -> Option<bool> {
        self.task.outcome_so_far().map(|outcome| outcome.is_ok())
    }
}

/// Sends a request from a new socket in `namespace` and does not wait for an answer.
#[must_use]
pub fn send(namespace: &Namespace, protocol: Protocol, target: SocketAddr) -> Unanswered {
    Unanswered { task: namespace.spawn(async move || ask_here(protocol, target).await) }
}
