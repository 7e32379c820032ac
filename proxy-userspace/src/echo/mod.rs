//! Echo servers, and clients that say what they met: what runs in the pods of `kubectl millrace test`.
#![forbid(unsafe_code)]

mod client;
mod server;

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

pub use client::{ask, ask_all};
pub use server::Server;

/// The most bytes of a request. One more would not fit into a datagram with its headers.
pub const MOST_BYTES: usize = 60_000;

/// What a server says of a request: one line of JSON, and as many bytes as it got.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Greeting {
    /// The server's name.
    server: String,
    /// The client's address, as the server saw it.
    client: SocketAddr,
}

/// A transport protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    /// A connection for each request.
    Tcp,
    /// A datagram for each request.
    Udp,
}

impl Protocol {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Tcp, Self::Udp];

    /// Returns the name in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }
}

/// Requests of a client to one address, each from a socket of its own. As a word:
/// `PROTOCOL,ADDRESS:PORT,REQUESTS,BYTES`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Probe {
    /// The protocol.
    pub protocol: Protocol,
    /// The address that is asked.
    pub target: SocketAddr,
    /// The number of requests.
    pub requests: u16,
    /// The bytes of each request, and of each answer: at most [`MOST_BYTES`].
    pub bytes: usize,
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { protocol, target, requests, bytes } = self;
        write!(f, "{},{target},{requests},{bytes}", protocol.name())
    }
}

impl FromStr for Probe {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let mut words = text.split(',');
            let name = words.next()?;
            let probe = Self {
                protocol: Protocol::ALL.into_iter().find(|one| one.name() == name)?,
                target: words.next()?.parse().ok()?,
                requests: words.next()?.parse().ok()?,
                bytes: words.next()?.parse().ok().filter(|bytes| (1..=MOST_BYTES).contains(bytes))?,
            };
            words.next().is_none().then_some(probe)
        };
        parse().ok_or("takes PROTOCOL,ADDRESS:PORT,REQUESTS,BYTES such as tcp,192.0.2.1:80,4,100")
    }
}

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "result", rename_all = "snake_case")]
pub enum Reply {
    /// A server answered with as many bytes as it got.
    Answered {
        /// The server's name.
        server: String,
        /// The client's address, as the server saw it.
        seen: SocketAddr,
        /// The address of the client's socket.
        own: SocketAddr,
    },
    /// The connection was refused.
    Refused,
    /// No answer came in time.
    Silent,
    /// Something else.
    Failed {
        /// The reason.
        why: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_is_a_word() {
        for word in ["tcp,192.0.2.1:80,4,100", "udp,[2001:db8::1]:53,1,60000"] {
            assert_eq!(word.parse::<Probe>().unwrap().to_string(), word);
        }
        for word in ["", "tcp", "sctp,192.0.2.1:80,4,100", "tcp,192.0.2.1,4,100", "tcp,192.0.2.1:80,4,0"] {
            word.parse::<Probe>().unwrap_err();
        }
        "udp,192.0.2.1:80,4,60001".parse::<Probe>().unwrap_err();
        "udp,192.0.2.1:80,4,100,5".parse::<Probe>().unwrap_err();
    }
}
