//! Direct Server Return: backends on another node than the client's director.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use millrace_lab::capture::{Capture, Direction, Trail};
use millrace_lab::cluster::Cluster;
use millrace_lab::frame::Frame;
use millrace_lab::manifests::Service;
use millrace_lab::topology::{Family, vip};
use millrace_lab::traffic::{
    LongConnections, Protocol, Stream, ask, receive_encapsulated, send_encapsulated,
};
use millrace_lab::walk::Walk;

use crate::fixture::{counted, expect_large_bodies, expect_no_loss, shared};

const ETHERNET_HEADER: usize = 14;
const LIMIT: Duration = Duration::from_secs(2);

fn dsr_service(cluster: &Cluster, name: &str, number: u8, pods: &[&str]) -> Result<Service> {
    let service = cluster.service(name, number, pods)?.load_balancer(vip(number));
    Ok(service.annotation("millrace.dev/forwarding", "dsr"))
}

#[test]
fn the_backends_node_answers_the_client_itself_with_the_port_translated() -> Result<()> {
    let cluster = shared();
    let pods = ["pod-2a", "pod-2b"];
    let service = dsr_service(&cluster, "direct", 20, &pods)?;
    cluster.apply(&service, &[1, 2])?;
    cluster.expect(&Walk::to(service.name(), vip(20), 80, &pods, Trail::direct_return("node1", "node2")))
}

#[test]
fn the_client_sees_answers_of_the_frontend_alone() -> Result<()> {
    let cluster = shared();
    let service = dsr_service(&cluster, "fronted", 21, &["pod-3a"])?;
    cluster.apply(&service, &[1, 3])?;
    for family in Family::ALL {
        let frontend = SocketAddr::new(vip(21).of(family), 80);
        let mut capture = Capture::start(cluster.bed().client(), &["eth0"])?;
        let client = ask(cluster.bed().client(), Protocol::Tcp, frontend)?.client;
        let answers = capture
            .packets()?
            .iter()
            .filter(|captured| captured.direction == Direction::In && captured.packet.to() == Some(client));
        let sources: Vec<_> = answers.map(|captured| captured.packet.from()).collect();
        assert!(!sources.is_empty() && sources.iter().all(|source| *source == Some(frontend)), "{sources:?}");
    }
    Ok(())
}

#[test]
fn the_tunnel_goes_from_node_to_node_and_changes_nothing_inside() -> Result<()> {
    let cluster = shared();
    let service = dsr_service(&cluster, "tunnelled", 22, &["pod-2a"])?;
    cluster.apply(&service, &[1, 2])?;
    for (family, protocol) in Family::ALL.into_iter().flat_map(|f| Protocol::ALL.map(|p| (f, p))) {
        let frontend = SocketAddr::new(vip(22).of(family), 80);
        let mut capture = Capture::start(cluster.bed().router(), &["node1"])?;
        let client = ask(cluster.bed().client(), protocol, frontend)?.client;
        let sent = capture.wait_for(LIMIT, |captured| {
            captured.packet.is_between(client, frontend) && captured.packet.tunnel.is_none()
        })?;
        let sent_on = capture.wait_for(LIMIT, |captured| {
            captured.packet.is_between(client, frontend) && captured.packet.tunnel.is_some()
        })?;
        let tunnel = sent_on.packet.tunnel.expect("it was chosen by that");
        assert_eq!(tunnel.source, cluster.bed().node(1)?.addresses().of(family));
        assert_eq!(tunnel.destination, cluster.bed().node(2)?.addresses().of(family));
        assert_eq!(sent_on.packet.transport, sent.packet.transport);
    }
    Ok(())
}

#[test]
fn an_encapsulated_packet_for_a_frontend_is_accepted_from_nodes_only() -> Result<()> {
    let cluster = shared();
    let service = dsr_service(&cluster, "guarded", 27, &["pod-2a"])?;
    cluster.apply(&service, &[2])?;
    for family in Family::ALL {
        let client = cluster.bed().client_addresses().of(family);
        let packet = Frame::ip(client, vip(27).of(family)).udp(4000, 80).payload("hello").build();
        let mut capture = Capture::start(cluster.bed().client(), &["eth0"])?;
        let before = counted(&cluster, 2, "not_peer")?;
        let node = cluster.bed().node(2)?.addresses().of(family);
        send_encapsulated(cluster.bed().client(), node, &packet[ETHERNET_HEADER..])?;
        let what = "the stranger's packet is counted";
        cluster.proxy(2)?.wait_until(what, || Ok(counted(&cluster, 2, "not_peer")? == before + 1))?;
        let frontend = SocketAddr::new(vip(27).of(family), 80);
        assert!(!capture.packets()?.iter().any(|captured| captured.packet.from() == Some(frontend)));
    }
    Ok(())
}

#[test]
fn tunnels_of_others_reach_the_stack_byte_for_byte() -> Result<()> {
    let cluster = shared();
    for family in Family::ALL {
        let node = cluster.bed().node(2)?;
        let pod = cluster.bed().pod("pod-2a")?.addresses().of(family);
        for sender in [cluster.bed().client(), cluster.bed().node(1)?.namespace()] {
            let source = cluster.bed().client_addresses().of(family);
            let packet = Frame::ip(source, pod).udp(4000, 80).payload("an overlay's").build();
            let packet = &packet[ETHERNET_HEADER..];
            let received = receive_encapsulated(node.namespace(), family)?;
            send_encapsulated(sender, node.addresses().of(family), packet)?;
            assert_eq!(received.join()?, packet, "{family} from {}", sender.name());
        }
    }
    Ok(())
}

#[test]
fn a_director_with_a_backend_of_its_own_serves_it_and_sends_on_the_rest() -> Result<()> {
    let cluster = shared();
    let service = dsr_service(&cluster, "mixed", 23, &["pod-1a", "pod-3b"])?;
    cluster.apply(&service, &[1, 3])?;
    for family in Family::ALL {
        let frontend = SocketAddr::new(vip(23).of(family), 80);
        let mut capture = Capture::start(cluster.bed().router(), &["node1", "node2", "node3"])?;
        let mut seen = [false; 2];
        for _ in 0..60 {
            let answer = ask(cluster.bed().client(), Protocol::Tcp, frontend)?;
            let is_local = answer.sighting.backend == "pod-1a";
            let expected =
                if is_local { Trail::local("node1") } else { Trail::direct_return("node1", "node3") };
            assert_eq!(Trail::of(capture.packets()?, answer.client, frontend), expected, "{answer:?}");
            seen[usize::from(is_local)] = true;
        }
        assert_eq!(seen, [true; 2], "both backends answer");
    }
    Ok(())
}

#[test]
fn any_node_can_be_the_director() -> Result<()> {
    let cluster = shared();
    let service = dsr_service(&cluster, "director", 24, &["pod-2b"])?;
    cluster.apply(&service, &[2, 3])?;
    for address in vip(24).both() {
        cluster.bed().route_to(address, 3)?;
    }
    cluster.expect(&Walk::to(
        service.name(),
        vip(24),
        80,
        &["pod-2b"],
        Trail::direct_return("node3", "node2"),
    ))
}

#[test]
fn node_ports_reach_pods_on_other_nodes_which_answer_the_client_themselves() -> Result<()> {
    let cluster = shared();
    let service = cluster.service("direct-ports", 62, &["pod-2a"])?.node_ports(31620);
    let service = service.annotation("millrace.dev/forwarding", "dsr");
    cluster.apply(&service, &[2, 3])?;
    let node = cluster.bed().node(3)?.addresses();
    cluster.expect(&Walk::to(
        service.name(),
        node,
        31620,
        &["pod-2a"],
        Trail::direct_return("node3", "node2"),
    ))
}

#[test]
fn large_uploads_fit_the_tunnel_and_large_downloads_go_directly_to_the_client() -> Result<()> {
    let cluster = shared();
    let service = dsr_service(&cluster, "large", 25, &["pod-2a"])?;
    cluster.apply(&service, &[1, 2])?;
    expect_large_bodies(&cluster, vip(25))
}

#[test]
fn connections_and_datagrams_survive_changes_of_the_backends() -> Result<()> {
    let cluster = shared();
    let few = dsr_service(&cluster, "scaled", 26, &["pod-2a", "pod-2b"])?;
    let many = dsr_service(&cluster, "scaled", 26, &["pod-1b", "pod-2a", "pod-2b", "pod-3a"])?;
    let nodes = [1, 2, 3];
    cluster.apply(&few, &nodes)?;
    let target = SocketAddr::new(vip(26).of(Family::V4), 80);
    let connections = LongConnections::open(cluster.bed().client(), target, 20, 20)?;
    let stream = Stream::start(cluster.bed().client(), target, Duration::from_millis(1))?;
    for service in [&many, &few, &many, &few] {
        cluster.apply(service, &nodes)?;
    }
    assert_eq!(connections.stop()?, 40);
    expect_no_loss(&cluster, stream)?;
    Ok(())
}
