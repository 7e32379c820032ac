//! Connections of this node, and connections translated by the kernel's rules, from before the
//! programs were attached.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use aya::Pod;
use proxy_common::flow::FlowKey;
use proxy_common::{Addr4, Addr6, Address};
use tracing::{info, warn};

use super::EbpfDataplane;
use super::conntrack::{self, Tracked};
use super::diag::{Connected, Diag};
use super::error::OpenError;
use super::maps::Table;
use super::now;
use crate::model::{Desired, Protocol, ServicePort};

/// Addresses, ports and protocols of Services.
#[derive(Clone, Debug, Default)]
pub struct Frontends(BTreeSet<(SocketAddr, u8)>);

impl Frontends {
    /// Returns the frontends of the desired state.
    #[must_use]
    pub fn of(desired: &Desired) -> Self {
        let of_port = |port: &ServicePort| {
            let protocol = port.protocol.number();
            port.frontends.iter().map(move |frontend| (frontend.address, protocol)).collect::<Vec<_>>()
        };
        Self(desired.ports.values().flat_map(of_port).collect())
    }

    fn has(&self, address: SocketAddr, protocol: u8) -> bool {
        self.0.contains(&(address, protocol))
    }

    /// Returns the number of TCP and SCTP connections to these frontends that the kernel's rules
    /// translate, such as those of kube-proxy.
    pub fn translated_by_kernel(&self) -> io::Result<usize> {
        let mut count = 0;
        conntrack::each(|tracked| count += usize::from(self.is_served_by_kernel(&tracked)))?;
        Ok(count)
    }

    fn is_served_by_kernel(&self, tracked: &Tracked) -> bool {
        let has_connections = tracked.protocol != Protocol::Udp.number();
        tracked.is_translated
            && !tracked.is_over
            && has_connections
            && self.has(tracked.destination, tracked.protocol)
    }
}

/// Connections of the kernel's rules that are noted at most: half of NODE_FLOWS, which evicts.
const MOST_NOTED: usize = 1 << 13;

/// Returns the ends of all backends, and their protocols.
fn backends(desired: &Desired) -> BTreeSet<(SocketAddr, u8)> {
    let mut backends = BTreeSet::new();
    for port in desired.ports.values() {
        backends.extend(port.endpoints.keys().map(|at| (*at, port.protocol.number())));
    }
    backends
}

/// Whether the kernel reaches a backend from one of these ports. Datagrams change the mode at once.
fn has_port_to_backend(
    tracked: &Tracked,
    ports: &RangeInclusive<u16>,
    backends: &BTreeSet<(SocketAddr, u8)>,
) -> bool {
    tracked.is_masqueraded
        && !tracked.is_over
        && tracked.protocol != Protocol::Udp.number()
        && ports.contains(&tracked.replies_to.port())
        && backends.contains(&(tracked.replies_from, tracked.protocol))
}

/// A connection of this node, or one it masquerades.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NodeFlow {
    protocol: u8,
    /// The source of incoming packets.
    peer: SocketAddr,
    /// The destination of incoming packets.
    local: SocketAddr,
}

impl NodeFlow {
    const fn of_tracked(tracked: &Tracked) -> Self {
        Self { protocol: tracked.protocol, peer: tracked.replies_from, local: tracked.replies_to }
    }
}

/// Gives `visit` the connections of this node's sockets, for nodes without connection tracking.
fn each_socket(mut visit: impl FnMut(NodeFlow)) -> io::Result<()> {
    let diag = Diag::open()?;
    for (protocol, sockets) in [(Protocol::Tcp, diag.connections()?), (Protocol::Udp, diag.connected()?)] {
        let flow = |socket: &Connected| NodeFlow {
            protocol: protocol.number(),
            peer: socket.peer(),
            local: socket.local(),
        };
        sockets.iter().map(flow).for_each(&mut visit);
    }
    Ok(())
}

impl EbpfDataplane {
    /// Records connections of this node, or connections it masquerades, on ports of frontends.
    ///
    /// The programs record later ones. The call comes before the first attachment of the programs;
    /// later it changes nothing.
    pub fn note_node_flows(&mut self, frontends: &Frontends) {
        let mut found = Vec::new();
        let mut keep = |flow: NodeFlow| {
            if frontends.has(flow.local, flow.protocol) {
                found.push(flow);
            }
        };
        let tracked = conntrack::each(|tracked| keep(NodeFlow::of_tracked(&tracked)));
        for (kind, listed) in [("connections", tracked), ("sockets", each_socket(keep))] {
            if let Err(error) = listed {
                warn!(kind, %error, "listing this node's connections failed; some replies may go to Services");
            }
        }
        let noted = found.iter().filter(|flow| self.note_node_flow(flow)).count();
        if noted > 0 {
            info!(
                connections = noted,
                "connections of this node use ports of Services; they stay with the kernel"
            );
        }
    }

    /// Records connections to backends with a port of `--snat-ports` that the kernel's rules translate. While the programs
    /// share with these rules, they give no other connection to the same backend that port.
    ///
    /// One that begins after the call is missed, so it is made again when all new connections are this mode's.
    pub fn note_ports_of_kernel(&mut self, desired: &Desired) {
        let (ports, backends) = (self.settings.snat_ports.clone(), backends(desired));
        let mut found = Vec::new();
        let listed = conntrack::each(|tracked| {
            if has_port_to_backend(&tracked, &ports, &backends) {
                found.push(NodeFlow::of_tracked(&tracked));
            }
        });
        if found.len() > MOST_NOTED {
            warn!(
                connections = found.len(),
                "too many connections of the kernel's rules have ports of --snat-ports; some of these may end"
            );
        }
        if let Err(error) = listed {
            warn!(%error, "listing the kernel's connections failed; one may lose its port, and end");
        }
        let noted = found.iter().take(MOST_NOTED).filter(|flow| self.note_node_flow(flow)).count();
        if noted > 0 {
            info!(
                connections = noted,
                "connections of the kernel's rules have ports of --snat-ports; they keep them"
            );
        }
    }

    fn note_node_flow(&mut self, flow: &NodeFlow) -> bool {
        let seen = u32::try_from(now().as_secs() & u64::from(u32::MAX)).unwrap_or(0);
        let written = match (flow.peer.ip(), flow.local.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let key = key(flow, Addr4::from(from), Addr4::from(to));
                self.maps.of4.node_flows.insert(&key, &seen)
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let key = key(flow, Addr6::from(from), Addr6::from(to));
                self.maps.of6.node_flows.insert(&key, &seen)
            }
            // A connection has one family.
            _ => return false,
        };
        if let Err(error) = &written {
            warn!(error, "recording a connection of this node failed; replies to it may go to a Service");
        }
        written.is_ok()
    }

    /// Removes the records of datagram exchanges: some may have been datagrams of the former mode.
    pub(super) fn forget_node_datagrams(&mut self) -> Result<(), OpenError> {
        forget_datagrams(&mut self.maps.of4.node_flows)?;
        forget_datagrams(&mut self.maps.of6.node_flows)
    }
}

/// Returns the key of incoming packets.
fn key<A: Address>(flow: &NodeFlow, source: A, destination: A) -> FlowKey<A> {
    FlowKey {
        source,
        destination,
        source_port: flow.peer.port().to_be(),
        destination_port: flow.local.port().to_be(),
        protocol: flow.protocol,
        ..FlowKey::default()
    }
}

fn forget_datagrams<A: Address>(flows: &mut Table<FlowKey<A>, u32>) -> Result<(), OpenError>
where
    FlowKey<A>: Pod,
{
    let mut datagrams = Vec::new();
    flows.for_each(|key, _| {
        if key.protocol == Protocol::Udp.number() {
            datagrams.push(key);
        }
        true
    })?;
    for key in &datagrams {
        // A record that stays expires after a silence.
        let _ = flows.remove(key);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataplane::ebpf::scratch::Scratch;

    fn tracked(protocol: Protocol, replies_to: &str) -> Tracked {
        Tracked {
            protocol: protocol.number(),
            destination: "203.0.113.1:80".parse().unwrap(),
            replies_from: "198.51.100.10:443".parse().unwrap(),
            replies_to: replies_to.parse().unwrap(),
            is_masqueraded: true,
            is_translated: true,
            is_over: false,
        }
    }

    #[test]
    fn translated_connections_to_frontends_count_as_the_kernels() {
        let at = |text: &str, protocol: Protocol| (text.parse().unwrap(), protocol.number());
        let frontends =
            Frontends([at("203.0.113.1:80", Protocol::Tcp), at("203.0.113.1:80", Protocol::Udp)].into());
        let tcp = tracked(Protocol::Tcp, "198.51.100.10:443");
        assert!(frontends.is_served_by_kernel(&tcp));
        assert!(!frontends.is_served_by_kernel(&Tracked { is_translated: false, ..tcp }));
        assert!(
            !frontends
                .is_served_by_kernel(&Tracked { destination: "203.0.113.1:81".parse().unwrap(), ..tcp })
        );
        let udp = tracked(Protocol::Udp, "198.51.100.10:443");
        assert!(!frontends.is_served_by_kernel(&udp), "datagrams change the mode at once");
    }

    #[test]
    fn only_live_masqueraded_connections_to_backends_keep_their_ports() {
        let ports = 61000..=65535;
        let ours: SocketAddr = "198.51.100.10:443".parse().unwrap();
        let backends = BTreeSet::from([(ours, Protocol::Tcp.number()), (ours, Protocol::Udp.number())]);
        let keeps = |tracked: &Tracked| has_port_to_backend(tracked, &ports, &backends);
        let tcp = tracked(Protocol::Tcp, "192.0.2.1:61000");
        assert!(keeps(&tcp));
        assert!(!keeps(&Tracked { is_masqueraded: false, ..tcp }));
        assert!(!keeps(&Tracked { is_over: true, ..tcp }));
        assert!(!keeps(&Tracked { replies_from: "198.51.100.11:443".parse().unwrap(), ..tcp }), "no backend");
        assert!(!keeps(&tracked(Protocol::Tcp, "192.0.2.1:60999")));
        assert!(!keeps(&tracked(Protocol::Udp, "192.0.2.1:61000")));
    }

    #[test]
    fn records_of_datagrams_are_removed_and_connections_kept() {
        let scratch = Scratch::new("node-flows");
        let mut dataplane = scratch.open();
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            assert!(dataplane.note_node_flow(&NodeFlow::of_tracked(&tracked(protocol, "192.0.2.1:30080"))));
        }
        dataplane.forget_node_datagrams().unwrap();
        let mut left = Vec::new();
        dataplane
            .maps
            .of4
            .node_flows
            .for_each(|key, _| {
                left.push((key.protocol, key.destination_port));
                true
            })
            .unwrap();
        assert_eq!(left, [(Protocol::Tcp.number(), 30080_u16.to_be())]);
    }

    #[test]
    fn sockets_are_found_with_both_their_ends() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let server = listener.local_addr().unwrap();
        let client = std::net::TcpStream::connect(server).unwrap();
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(server).unwrap();
        let wanted = [(Protocol::Tcp, client.local_addr()), (Protocol::Udp, socket.local_addr())];
        let mut found = Vec::new();
        each_socket(|flow| found.push((flow.protocol, flow.local, flow.peer))).unwrap();
        for (protocol, local) in wanted {
            assert!(found.contains(&(protocol.number(), local.unwrap(), server)), "{protocol:?}");
        }
    }
}
