//! Tells the kernel's connection tracking which ports translated connections of the programs have.
//!
//! When a node changes to kube-proxy, the kernel translates new clients to the same backends, from ports of its own
//! choice among all. It knows none of the programs' connections, because their packets pass it by. With an entry for each, it
//! takes another port. IPVS masquerades from other ports than those of `--snat-ports`.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use aya::Pod;
use netlink_packet_core::{DefaultNla, NLM_F_CREATE, NLM_F_EXCL};
use netlink_sys::protocols::NETLINK_NETFILTER;
use proxy_common::Address;
use proxy_common::flow::{FLOW_ESTABLISHED, FLOW_REPLY, Flow, FlowKey};

use super::conntrack::{
    CTA_IP_V4_DST, CTA_IP_V4_SRC, CTA_IP_V6_DST, CTA_IP_V6_SRC, CTA_PROTO_DST_PORT, CTA_PROTO_NUM,
    CTA_PROTO_SRC_PORT, CTA_PROTOINFO, CTA_PROTOINFO_TCP, CTA_PROTOINFO_TCP_STATE, CTA_STATUS, CTA_TUPLE_IP,
    CTA_TUPLE_ORIG, CTA_TUPLE_PROTO, CTA_TUPLE_REPLY,
};
use super::maps::{Maps, Table};
use crate::dataplane::netlink::Channel;
use crate::dataplane::netlink::attribute::{be32, bytes, nested, port};
use crate::dataplane::netlink::nfnetlink::Message;
use crate::model::Protocol;

/// `NFNL_SUBSYS_CTNETLINK` and `IPCTNL_MSG_CT_NEW`.
const NEW: u16 = 1 << 8;
const CTA_TIMEOUT: u16 = 7;
/// `IPS_SEEN_REPLY` and `IPS_CONFIRMED`. Without `IPS_ASSURED` the kernel drops these entries first when it has no room.
const SEEN: u32 = 1 << 1 | 1 << 3;
/// `TCP_CONNTRACK_ESTABLISHED`: one that is closing could lose its port.
const ESTABLISHED: u8 = 3;
/// Seconds for which the port of anything but an established connection is held.
const SHORT: u32 = 300;
/// Connections in one list of requests.
const CHUNK: usize = 1 << 12;
/// The kernel's own connections keep this part of the room that is left.
const PART: usize = 2;

/// What has become of the ports.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The connections whose ports the kernel holds now, and did not before.
    pub held: usize,
    /// The connections that it refused, and its first reason.
    pub refused: usize,
    pub reason: Option<io::Error>,
    /// Whether the kernel had no room for all.
    pub is_short: bool,
}

/// Has the kernel hold the ports of all connections with a port of this node, for `time`. Those of ended connections,
/// datagrams and handshakes are held for minutes: their entries live no longer.
pub fn hold(maps: &Maps, time: Duration) -> io::Result<Outcome> {
    let Some(room) = room() else { return Ok(Outcome::default()) };
    let mut held = Held {
        channel: Channel::open(NETLINK_NETFILTER)?,
        seconds: u32::try_from(time.as_secs()).unwrap_or(u32::MAX),
        room,
        chunk: Vec::new(),
        outcome: Outcome::default(),
    };
    // Established connections come first: they live longest.
    held.table(&maps.of4.flows)?;
    held.table(&maps.of6.flows)?;
    held.table(&maps.of4.flows_new)?;
    held.table(&maps.of6.flows_new)?;
    Ok(held.outcome)
}

/// Returns how many connections the kernel may be told; none if it tracks none.
fn room() -> Option<usize> {
    let read = |name: &str| {
        let text = std::fs::read_to_string(format!("/proc/sys/net/netfilter/nf_conntrack_{name}")).ok()?;
        text.trim().parse::<usize>().ok()
    };
    let (most, now) = (read("max")?, read("count")?);
    // No limit is written as zero.
    Some(if most == 0 { usize::MAX } else { most.saturating_sub(now) / PART })
}

struct Held {
    channel: Channel,
    /// The longest time.
    seconds: u32,
    /// Connections that there is room for.
    room: usize,
    chunk: Vec<Message>,
    outcome: Outcome,
}

impl Held {
    fn table<A: Address>(&mut self, table: &Table<FlowKey<A>, Flow<A>>) -> io::Result<()>
    where
        FlowKey<A>: Pod + Default,
        Flow<A>: Pod + Default,
    {
        let walked = table.for_each(|key, flow| {
            let Some(connection) = Connection::of(&key, &flow) else { return true };
            self.outcome.is_short |= self.room == 0;
            if self.room > 0 {
                let limit = if flow.state == FLOW_ESTABLISHED { u32::MAX } else { SHORT };
                self.chunk.push(connection.request(self.seconds.min(limit)));
            }
            if self.chunk.len() >= CHUNK.min(self.room) {
                self.flush();
            }
            self.room > 0
        });
        self.flush();
        walked.map_err(io::Error::other)
    }

    fn flush(&mut self) {
        // An entry that the kernel has stays as it is: it may be a connection of this node's own.
        for outcome in self.channel.act_all(std::mem::take(&mut self.chunk), NLM_F_CREATE | NLM_F_EXCL) {
            match outcome {
                Ok(()) => {
                    self.outcome.held += 1;
                    self.room = self.room.saturating_sub(1);
                }
                Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {}
                Err(error) => {
                    self.outcome.refused += 1;
                    self.outcome.reason.get_or_insert(error);
                }
            }
        }
    }
}

/// A connection from this node to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Connection {
    protocol: u8,
    node: SocketAddr,
    backend: SocketAddr,
}

impl Connection {
    /// Returns the connection of a reply's entry. While there is an entry, even of a connection that has ended, replies at
    /// its port go to its client.
    fn of<A: Address>(key: &FlowKey<A>, flow: &Flow<A>) -> Option<Self> {
        let is_translated = flow.is_translated() && flow.flags & FLOW_REPLY != 0;
        let at = |address: A, port: u16| SocketAddr::new(address.to_ip(), u16::from_be(port));
        is_translated.then(|| Self {
            protocol: key.protocol,
            node: at(key.destination, key.destination_port),
            backend: at(key.source, key.source_port),
        })
    }

    fn request(&self, seconds: u32) -> Message {
        let family = if self.node.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let mut attributes = vec![
            self.tuple(CTA_TUPLE_ORIG, self.node, self.backend),
            self.tuple(CTA_TUPLE_REPLY, self.backend, self.node),
            be32(CTA_STATUS, SEEN),
            be32(CTA_TIMEOUT, seconds),
        ];
        if self.protocol == Protocol::Tcp.number() {
            let state = nested(CTA_PROTOINFO_TCP, &[bytes(CTA_PROTOINFO_TCP_STATE, &[ESTABLISHED])]);
            attributes.push(nested(CTA_PROTOINFO, &[state]));
        }
        Message::new(NEW, u8::try_from(family).unwrap_or_default(), &attributes)
    }

    fn tuple(&self, kind: u16, source: SocketAddr, destination: SocketAddr) -> DefaultNla {
        let ip = |v4: u16, v6: u16, address: IpAddr| match address {
            IpAddr::V4(address) => bytes(v4, &address.octets()),
            IpAddr::V6(address) => bytes(v6, &address.octets()),
        };
        let ends = [
            ip(CTA_IP_V4_SRC, CTA_IP_V6_SRC, source.ip()),
            ip(CTA_IP_V4_DST, CTA_IP_V6_DST, destination.ip()),
        ];
        let ports = [
            bytes(CTA_PROTO_NUM, &[self.protocol]),
            port(CTA_PROTO_SRC_PORT, source.port()),
            port(CTA_PROTO_DST_PORT, destination.port()),
        ];
        nested(kind, &[nested(CTA_TUPLE_IP, &ends), nested(CTA_TUPLE_PROTO, &ports)])
    }
}

#[cfg(test)]
mod tests {
    use proxy_common::Addr4;

    use super::*;

    fn entry() -> (FlowKey<Addr4>, Flow<Addr4>) {
        let [pod, node] =
            ["10.1.0.1", "192.0.2.1"].map(|text| Addr4::from_ip(text.parse().unwrap()).unwrap());
        let key = FlowKey {
            source: pod,
            source_port: 8080_u16.to_be(),
            destination: node,
            destination_port: 61000_u16.to_be(),
            protocol: Protocol::Tcp.number(),
            ..FlowKey::default()
        };
        (key, Flow { flags: FLOW_REPLY, check: 1, state: FLOW_ESTABLISHED, ..Flow::default() })
    }

    #[test]
    fn only_replies_to_translated_connections_have_a_port() {
        let (key, flow) = entry();
        let expected = Connection {
            protocol: 6,
            node: "192.0.2.1:61000".parse().unwrap(),
            backend: "10.1.0.1:8080".parse().unwrap(),
        };
        assert_eq!(Connection::of(&key, &flow), Some(expected));
        for other in [Flow { check: 0, ..flow }, Flow { flags: 0, ..flow }] {
            assert_eq!(Connection::of(&key, &other), None, "{other:?}");
        }
    }
}
