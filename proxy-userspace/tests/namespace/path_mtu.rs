//! Links that are narrower than those at both ends, and the path MTU that clients learn.

use std::net::SocketAddr;

use anyhow::Result;
use millrace_lab::cluster::Cluster;
use millrace_lab::topology::{Family, Host, Leg, Shape, vip};
use millrace_lab::traffic::{Connection, Fate, Fragments, Trace, path_mtu, send_datagram, trace_path};

use crate::fixture::{counted, xdp};

const NARROW: u32 = 1400;
/// The leg from node 1 to node 2.
const BETWEEN: Leg = Leg::Nodes { from: 1, to: 2 };

/// Services by their number, which is also that of their address. One has DSR and one SNAT, both
/// with backends on node 2. One has a backend on the director.
const DIRECT: u8 = 1;
const TRANSLATED: u8 = 2;
const NEAR: u8 = 3;

/// Two nodes, and a router in a leg, with an MTU of [`NARROW`] bytes.
struct Narrowed {
    cluster: Cluster,
    gate: Host,
}

impl Narrowed {
    fn start(leg: Leg, flags: &[&str]) -> Result<Self> {
        let shape = Shape { nodes: 2, pods: 2, ..Shape::default() };
        let mut cluster = Cluster::without_agents(shape, &xdp())?;
        let gate = cluster.bed().add_narrows(leg, NARROW)?;
        for node in [1, 2] {
            cluster.start_agent_with(node, flags)?;
            cluster.wait_for_hooks(node)?;
        }
        let direct = cluster.service("direct", DIRECT, &["pod-2a"])?.load_balancer(vip(DIRECT));
        let translated =
            cluster.service("translated", TRANSLATED, &["pod-2b"])?.load_balancer(vip(TRANSLATED));
        let near = cluster.service("near", NEAR, &["pod-1a"])?.load_balancer(vip(NEAR));
        cluster.apply(&direct.annotation("millrace.dev/forwarding", "dsr"), &[1, 2])?;
        cluster.apply(&translated, &[1])?;
        cluster.apply(&near, &[1])?;
        cluster.wait_for_ways(1)?;
        Ok(Self { cluster, gate })
    }

    /// Sends twenty megabytes in each direction. Each part is so small that a busy machine carries
    /// it before the client's time-out.
    fn cross(&self, target: SocketAddr) -> Result<()> {
        const PARTS: usize = 5;
        const BYTES: usize = 4_000_000;
        self.cluster.bed().client().run(async move || {
            let mut connection = Connection::open(target).await?;
            for _ in 0..PARTS {
                assert_eq!(connection.upload(BYTES).await?.sighting.received, BYTES, "{target}");
                assert_eq!(connection.download(BYTES).await?, BYTES, "{target}");
            }
            Ok(())
        })
    }

    /// Expects that large bodies arrive complete over both families, and that the router has
    /// refused a packet of each connection.
    fn expect_whole_bodies(&self, services: &[u8]) -> Result<()> {
        for family in Family::ALL {
            for number in services {
                let before = self.gate.refused_packets(family)?;
                self.cross(SocketAddr::new(vip(*number).of(family), 80))?;
                let after = self.gate.refused_packets(family)?;
                assert!(after > before, "{family}, address {number}: the router had nothing to refuse");
            }
        }
        Ok(())
    }
}

/// Expects the same as [`Narrowed::expect_whole_bodies`], and that the director has relayed the
/// router's errors.
fn expect_whole_bodies_and_errors(leg: Leg, flags: &[&str], services: &[u8]) -> Result<Narrowed> {
    let narrowed = Narrowed::start(leg, flags)?;
    let before = counted(&narrowed.cluster, 1, "icmp_error")?;
    narrowed.expect_whole_bodies(services)?;
    let errors = counted(&narrowed.cluster, 1, "icmp_error")? - before;
    let connections = (services.len() * Family::ALL.len()) as u64;
    assert!(errors >= connections, "{errors} errors for {connections} connections");
    Ok(narrowed)
}

/// Expects that a socket of the client learns the path MTU to the DSR Service, and that divisible
/// datagrams arrive.
fn expect_datagrams(narrowed: &Narrowed, largest: [(Family, usize); 2]) -> Result<()> {
    let client = narrowed.cluster.bed().client();
    for (family, largest) in largest {
        let target = SocketAddr::new(vip(DIRECT).of(family), 80);
        assert_eq!(path_mtu(client, target, 1500)?, largest, "{family}");
        for bytes in [largest, 1472, 4000, 60_000] {
            assert_eq!(send_datagram(client, target, Fragments::Allowed, bytes)?, Fate::Echoed, "{target}");
        }
    }
    Ok(())
}

#[test]
fn a_narrow_link_between_the_nodes_slows_no_transfer_down() -> Result<()> {
    let narrowed = expect_whole_bodies_and_errors(BETWEEN, &[], &[DIRECT, TRANSLATED])?;
    expect_datagrams(&narrowed, [(Family::V4, 1380), (Family::V6, 1360)])
}

#[test]
fn a_narrow_link_between_the_nodes_slows_no_transfer_in_udp_down() -> Result<()> {
    let flags = ["--dsr-encap", "fou"];
    let narrowed = expect_whole_bodies_and_errors(BETWEEN, &flags, &[DIRECT, TRANSLATED])?;
    expect_datagrams(&narrowed, [(Family::V4, 1372), (Family::V6, 1352)])
}

/// The backend learns the MTU without the director, because its answers there are addressed to a
/// node.
#[test]
fn a_narrow_link_back_to_the_director_slows_no_transfer_down() -> Result<()> {
    Narrowed::start(Leg::Nodes { from: 2, to: 1 }, &[])?.expect_whole_bodies(&[TRANSLATED])
}

#[test]
fn a_narrow_link_between_router_and_director_slows_no_transfer_down() -> Result<()> {
    expect_whole_bodies_and_errors(Leg::Director, &[], &[DIRECT, TRANSLATED, NEAR]).map(drop)
}

#[test]
fn a_narrow_link_from_the_backend_to_the_router_slows_no_transfer_down() -> Result<()> {
    expect_whole_bodies_and_errors(Leg::ToClient(2), &[], &[DIRECT]).map(drop)
}

#[test]
fn a_traced_path_shows_every_hop_and_the_largest_packet_of_its_narrowest_link() -> Result<()> {
    let narrowed = Narrowed::start(BETWEEN, &[])?;
    for (family, direct) in [(Family::V4, 1380), (Family::V6, 1360)] {
        let bed = narrowed.cluster.bed();
        let [router, director] = [bed.gateway_addresses(), bed.node(1)?.addresses()].map(|at| at.of(family));
        // The error of a router behind the director reaches the client from the Service's address.
        for (number, mtu, director, behind) in [
            (DIRECT, direct, Some(director), 1),
            (TRANSLATED, 1400, Some(director), 2),
            (NEAR, 1500, None, 1),
        ] {
            let address = vip(number).of(family);
            let behind = std::iter::repeat_n(address, behind);
            let routers = std::iter::once(router).chain(director).chain(behind).collect();
            let trace = trace_path(bed.client(), SocketAddr::new(address, 80))?;
            assert_eq!(trace, Trace { routers, mtu }, "{address}");
        }
    }
    Ok(())
}
