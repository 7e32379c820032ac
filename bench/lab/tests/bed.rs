//! The bed without a proxy: packets cross it by plain routing.

use std::net::SocketAddr;
use std::time::Duration;

use millrace_lab::frame::Frame;
use millrace_lab::net::read_sysctl;
use millrace_lab::topology::{Bed, Family, Shape, Wire};
use millrace_lab::traffic::{
    Connection, LongConnections, Protocol, Server, Stream, ask, receive_encapsulated, send_encapsulated,
};

const PORT: u16 = 8080;

#[test]
fn a_client_reaches_every_pod_and_host_by_both_protocols_and_families() {
    let bed = Bed::new(Shape::default()).unwrap();
    for node in bed.nodes() {
        let _host = Server::on_node(node, PORT).unwrap();
        for pod in node.pods() {
            let _server = Server::in_pod(pod, PORT).unwrap();
            for (family, protocol) in Family::ALL.into_iter().flat_map(|f| Protocol::ALL.map(|p| (f, p))) {
                let target = SocketAddr::new(pod.addresses().of(family), PORT);
                let answer = ask(bed.client(), protocol, target).unwrap();
                assert_eq!(answer.sighting.backend, pod.name());
                assert_eq!(answer.client.ip(), bed.client_addresses().of(family));
                assert!(answer.kept_client(), "{answer:?}");
            }
        }
        let target = SocketAddr::new(node.addresses().of(Family::V4), PORT);
        let answer = ask(bed.client(), Protocol::Tcp, target).unwrap();
        assert_eq!(answer.sighting.backend, format!("host-{}", node.name()));
    }
}

#[test]
fn large_bodies_cross_both_kinds_of_wire() {
    for wire in [Wire::Plain, Wire::Offloaded] {
        let bed = Bed::new(Shape { nodes: 1, pods: 1, wire }).unwrap();
        let pod = bed.node(1).unwrap().pod(0).unwrap();
        let _server = Server::in_pod(pod, PORT).unwrap();
        for family in Family::ALL {
            let target = SocketAddr::new(pod.addresses().of(family), PORT);
            let bytes = 3_000_000;
            let answers = bed.client().run(async move || {
                let mut connection = Connection::open(target).await?;
                Ok((connection.upload(bytes).await?.sighting.received, connection.download(bytes).await?))
            });
            assert_eq!(answers.unwrap(), (bytes, bytes), "{wire:?} {family}");
        }
    }
}

#[test]
fn streams_and_long_connections_tell_a_server_that_went_from_one_that_stayed() {
    let bed = Bed::new(Shape { nodes: 1, pods: 2, wire: Wire::Plain }).unwrap();
    let node = bed.node(1).unwrap();
    let servers = [Server::in_pod(node.pod(0).unwrap(), PORT), Server::in_pod(node.pod(1).unwrap(), PORT)];
    let [first, second] = servers.map(Result::unwrap);
    let target = |pod: usize| SocketAddr::new(node.pod(pod).unwrap().addresses().of(Family::V4), PORT);

    let kept = Stream::start(bed.client(), target(0), Duration::from_millis(1)).unwrap();
    let cut = Stream::start(bed.client(), target(1), Duration::from_millis(1)).unwrap();
    let connections = LongConnections::open(bed.client(), target(0), 3, 3).unwrap();
    let cut_connections = LongConnections::open(bed.client(), target(1), 1, 1).unwrap();
    drop(second);
    assert!(cut_connections.stop().is_err(), "a server that is gone cuts its connections");
    assert_eq!(connections.stop().unwrap(), 6);

    let delivery = kept.stop().unwrap();
    assert!(delivery.sent > 0 && delivery.lost.is_empty(), "{delivery:?}");
    assert_eq!(delivery.backends["pod-1a"], delivery.sent);
    assert!(!cut.stop().unwrap().lost.is_empty());
    drop(first);
}

#[test]
fn a_node_filters_by_reverse_path_and_its_uplink_can_be_replaced() {
    let bed = Bed::new(Shape { nodes: 2, pods: 1, wire: Wire::Plain }).unwrap();
    let node = bed.node(1).unwrap();
    let filter = node.namespace().run(async || read_sysctl("net/ipv4/conf/eth0/rp_filter")).unwrap();
    assert_eq!(filter, "1");

    let pod = node.pod(0).unwrap();
    let other = bed.node(2).unwrap().pod(0).unwrap();
    let _server = Server::in_pod(pod, PORT).unwrap();
    bed.delete_uplink(1).unwrap();
    bed.restore_uplink(1).unwrap();
    for family in Family::ALL {
        let target = SocketAddr::new(pod.addresses().of(family), PORT);
        assert!(ask(bed.client(), Protocol::Tcp, target).unwrap().kept_client());
        assert!(ask(other.namespace(), Protocol::Udp, target).unwrap().kept_client());
    }
}

#[test]
fn encapsulated_packets_reach_a_nodes_stack_unchanged() {
    let bed = Bed::new(Shape { nodes: 1, pods: 0, wire: Wire::Plain }).unwrap();
    let node = bed.node(1).unwrap();
    for family in Family::ALL {
        let client = bed.client_addresses().of(family);
        let frame = Frame::ip(client, client).udp(1, 2).payload("inner").build();
        let inner = &frame[14..];
        let received = receive_encapsulated(node.namespace(), family).unwrap();
        send_encapsulated(bed.client(), node.addresses().of(family), inner).unwrap();
        assert_eq!(received.join().unwrap(), inner, "{family}");
    }
}
