//! The view of connections, from `/proc/net/ip_vs_conn`.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use serde::Serialize;

use super::record;
use crate::dataplane::ipvs::OpenError;
use crate::dataplane::ipvs::state::{State, Virtual};
use crate::model::{Family, Protocol};

const LIST: &str = "/proc/net/ip_vs_conn";
/// The first word of the first line.
const HEADER: &str = "Pro";

/// Our connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flows {
    /// The connections, unsorted, in the order of the kernel's list.
    pub flows: Vec<FlowView>,
    /// The number of unreadable lines. Such a kernel has another format.
    pub unread: usize,
}

/// A connection, or the entry for a client with session affinity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FlowView {
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// `connection` or `template`. By a template, a client with session affinity keeps its backend.
    pub kind: &'static str,
    /// The client; port 0 in a template.
    pub source: SocketAddr,
    /// The frontend; none in the template of a marked virtual service.
    pub destination: Option<SocketAddr>,
    /// The mark of a marked virtual service.
    pub mark: Option<u32>,
    /// The server; port 0 in some templates.
    pub backend: SocketAddr,
    /// The kernel's name of the state, in small letters.
    pub state: String,
    /// The seconds until it expires without another packet.
    pub remaining_seconds: u32,
}

/// Returns our connections that `keep` chooses, at most `limit`; `None` if IPVS does not serve.
///
/// All connections pass `keep`, as long as the limit is not reached. It may count those that it does not choose.
pub fn flows(limit: usize, keep: impl FnMut(&FlowView) -> bool) -> Result<Option<Flows>, OpenError> {
    let Some((_, state)) = record()? else { return Ok(None) };
    let file = File::open(LIST).map_err(OpenError::Connections)?;
    read(BufReader::new(file), &state, limit, keep).map(Some).map_err(OpenError::Connections)
}

pub(super) fn read(
    list: impl BufRead,
    state: &State,
    limit: usize,
    mut keep: impl FnMut(&FlowView) -> bool,
) -> std::io::Result<Flows> {
    let mut read = Flows::default();
    for (number, line) in list.lines().enumerate() {
        let line = line?;
        if read.flows.len() >= limit {
            break;
        }
        match Line::parse(&line) {
            Some(line) => read.flows.extend(line.view(state).filter(&mut keep)),
            None => read.unread += usize::from(number > 0 || !line.starts_with(HEADER)),
        }
    }
    Ok(read)
}

/// The content of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Line<'a> {
    /// `None` for protocols that Services can't have.
    protocol: Option<Protocol>,
    /// Whether the line is the template of a mark. The kernel writes `IP` as its protocol.
    is_of_mark: bool,
    client: SocketAddr,
    frontend: SocketAddr,
    backend: SocketAddr,
    state: &'a str,
    seconds: u32,
}

impl<'a> Line<'a> {
    /// Reads protocol, client, frontend, server, state and seconds. The name and the data of a persistence
    /// engine may follow.
    fn parse(line: &'a str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let protocol = words.next()?;
        let mut place = || socket(words.next()?, words.next()?);
        let (client, frontend, backend) = (place()?, place()?, place()?);
        let state = words.next()?;
        let seconds = words.next()?.parse().ok()?;
        Some(Self {
            protocol: match protocol {
                "TCP" => Some(Protocol::Tcp),
                "UDP" => Some(Protocol::Udp),
                "SCTP" => Some(Protocol::Sctp),
                _ => None,
            },
            is_of_mark: protocol == "IP",
            client,
            frontend,
            backend,
            state,
            seconds,
        })
    }

    /// Returns the view of the line; `None` if the connection is not ours.
    fn view(&self, state: &State) -> Option<FlowView> {
        let service = self.service()?;
        let (destination, mark) = match service {
            Virtual::Address { address, .. } => (Some(address), None),
            Virtual::Mark { mark, .. } => (None, Some(mark)),
        };
        state.owns(&service).then(|| FlowView {
            protocol: service.protocol().to_string(),
            kind: if self.client.port() == 0 { "template" } else { "connection" },
            source: self.client,
            destination,
            mark,
            backend: self.backend,
            state: self.state.to_lowercase(),
            remaining_seconds: self.seconds,
        })
    }

    fn service(&self) -> Option<Virtual> {
        match self.protocol {
            Some(protocol) => Some(Virtual::Address { protocol, address: self.frontend }),
            // The kernel writes the mark in place of the address.
            None if self.is_of_mark => {
                let mark = match self.frontend.ip() {
                    IpAddr::V4(ip) => u32::from(ip),
                    IpAddr::V6(ip) => u32::try_from(u128::from(ip) >> 96).ok()?,
                };
                Some(Virtual::Mark { family: Family::of(self.client.ip()), mark })
            }
            None => None,
        }
    }
}

/// Reads an address and a port. IPv4 has eight hexadecimal digits, IPv6 all eight groups, a port four digits.
fn socket(address: &str, port: &str) -> Option<SocketAddr> {
    let ip = if address.contains(':') {
        address.parse::<Ipv6Addr>().ok()?.into()
    } else {
        Ipv4Addr::from(hexadecimal(address, 8)?).into()
    };
    Some(SocketAddr::new(ip, u16::try_from(hexadecimal(port, 4)?).ok()?))
}

fn hexadecimal(text: &str, digits: usize) -> Option<u32> {
    let is_whole = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_whole.then(|| u32::from_str_radix(text, 16).ok())?
}
