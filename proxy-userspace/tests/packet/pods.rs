//! Packets of pods whose sockets no hook sees.
//!
//! Tests of clients outside also cover the common behaviour. This file has the rest: all backends
//! are reached by translation, wherever they are, and the pod itself may be one.

use std::net::SocketAddr;

use millrace_lab::frame::{Frame, Layer, chunk, flag, protocol};
use millrace_lab::program::{Bed, FlowTable, Hook, Ingress, ServiceBuilder, Verdict};
use nix::net::if_::if_nametoindex;
use proxy_common::config::{DEFAULT_MARK, DEFAULT_SNAT_PORTS};
use proxy_common::flow::FLOW_CLOSING;
use proxy_common::selection::Slot;
use proxy_common::verdict::Reason;

use crate::case::{CLIENT_PORT, Case, Family, VIP_PORT, each_family};
use crate::network::{connect_to_nodes, in_an_empty_namespace};
use crate::snat::Node;

each_family! {
    a_backend_on_another_node_is_translated_to_and_its_reply_back
    datagrams_to_the_backend_itself_are_answered_by_it_again
    direct_server_return_does_not_apply_to_pods
    external_policy_local_does_not_apply_to_pods
    internal_policy_local_keeps_to_this_node
    internal_policy_local_drops_where_this_node_has_no_backend
    a_node_port_is_reached_at_a_nodes_address
    a_node_port_on_loopback_is_not_for_pods
    a_packet_that_a_lower_device_has_served_is_not_looked_up_again
    tunnels_of_pods_are_their_own
    a_pod_that_reaches_itself_gets_its_packets_back_from_the_frontend
    a_pods_datagrams_to_itself_come_back_too
    a_pods_association_with_itself_comes_back_too
    a_pod_that_reaches_itself_keeps_its_port_and_itself
    a_pod_that_reaches_itself_closes_what_it_opened
    connections_of_a_pod_to_itself_have_ports_of_their_own
    a_pods_error_about_its_own_packet_comes_back_to_it
    a_packet_that_only_looks_like_a_reply_of_a_pod_to_itself_is_untouched
    a_pod_with_the_address_of_a_client_outside_gets_none_of_its_packets
    a_pod_that_is_refused_too_often_does_not_silence_others
}

/// A pod of this node, and its packets.
#[derive(Clone, Copy)]
struct Pod {
    case: Case,
    at: SocketAddr,
}

impl Pod {
    fn new(family: Family) -> Self {
        let case = Case { hook: Hook::TcPodIn, family };
        Self { case, at: SocketAddr::new(case.pod(7).ip(), CLIENT_PORT) }
    }

    fn tcp(self, flags: u8) -> Frame {
        self.case.tcp(flags).with_source(self.at)
    }

    fn udp(self) -> Frame {
        self.case.udp().with_source(self.at)
    }

    /// Checks that its packet is translated for a backend and passed to the stack.
    #[track_caller]
    fn reaches(self, bed: &Bed, frame: &Frame, backend: SocketAddr) {
        self.case.is_delivered(bed, frame, &frame.clone().with_destination(backend), Reason::ServedPod);
    }

    /// Returns the pod itself as an endpoint.
    fn server(self) -> SocketAddr {
        SocketAddr::new(self.at.ip(), 8080)
    }

    fn bed_with_itself(self) -> Bed {
        let bed = Bed::new();
        for protocol in [protocol::TCP, protocol::UDP, protocol::SCTP] {
            self.serves(bed.service().protocol(protocol)).install();
        }
        bed
    }

    fn serves(self, service: ServiceBuilder<'_>) -> ServiceBuilder<'_> {
        service.external(self.case.vip()).backend_local(self.server())
    }

    /// Checks that its packet comes back to it from the frontend. Returns the source.
    #[track_caller]
    fn gets_back(self, bed: &Bed, frame: &Frame) -> SocketAddr {
        let outcome = self.case.arrives(bed, frame);
        let source = outcome.frame().source();
        assert_eq!(source.ip(), self.case.vip().ip(), "{outcome}");
        assert!(DEFAULT_SNAT_PORTS.contains(&source.port()), "{outcome}");
        let given = frame.clone().with_source(source).with_destination(self.server());
        outcome.assert_sent(&turned(given)).assert_counted(Reason::Hairpin);
        assert_eq!(outcome.verdict, Verdict::Redirect);
        // On the way to the pod, it is no reply.
        bed.run(Hook::TcPodOut, &outcome.run.frame).assert_untouched();
        source
    }

    /// Checks that its reply to a returned packet from `source` comes back as a reply to `frame`.
    #[track_caller]
    fn answers_itself(self, bed: &Bed, frame: &Frame, source: SocketAddr) {
        let reply = frame.clone().with_source(source).with_destination(self.server());
        let reply = turned(reply.reply());
        let restored = turned(reply.clone().with_source(self.case.vip()).with_destination(self.at));
        let outcome = self.case.arrives(bed, &reply);
        outcome.assert_sent(&restored).assert_counted(Reason::Reply);
        bed.run(Hook::TcPodOut, &outcome.run.frame).assert_untouched();
    }
}

/// A pod's device is one sender, whatever sources its packets have.
fn a_pod_that_is_refused_too_often_does_not_silence_others(family: Family) {
    let (pod, bed) = (Pod::new(family), Bed::new());
    bed.service().external(pod.case.vip()).install();
    in_an_empty_namespace(move || {
        connect_to_nodes(family.node(1));
        let [loud, other] = ["wire", "far-end"].map(|name| if_nametoindex(name).unwrap());
        let from =
            |number: u8| pod.tcp(flag::SYN).with_source((pod.case.pod(number).ip(), CLIENT_PORT).into());
        let is_told = |hook, device, number| {
            let ingress = Ingress { device, ..Ingress::default() };
            let outcome = bed.run_with(hook, &from(number).build(), ingress);
            outcome.assert_counted(Reason::NoEndpoint);
            outcome.verdict.is_sent()
        };
        bed.exhaust_icmp_of_pod(loud);
        assert!(!is_told(Hook::TcPodIn, loud, 1) && !is_told(Hook::TcPodIn, loud, 2));
        assert!(is_told(Hook::TcPodIn, other, 1) && is_told(Hook::TcIngress, loud, 1));
        // A pod with a forged outside address does not take that address's tokens either.
        bed.exhaust_icmp(pod.case.pod(1).ip());
        assert!(is_told(Hook::TcPodIn, other, 1) && !is_told(Hook::TcIngress, loud, 1));
    });
}

/// Returns a frame on its way back to the sending neighbour.
fn turned(frame: Frame) -> Frame {
    let (source, destination) = (frame.source_mac, frame.destination_mac);
    frame.with_macs(destination, source)
}

fn a_backend_on_another_node_is_translated_to_and_its_reply_back(family: Family) {
    let (pod, bed) = (Pod::new(family), Bed::new());
    let backend = pod.case.remote_pod(1);
    bed.service().external(pod.case.vip()).backend_remote(backend, 1).install();
    bed.service().udp().external(pod.case.vip()).backend_remote(backend, 1).install();
    for sent in [pod.tcp(flag::SYN), pod.tcp(flag::ACK), pod.udp(), pod.udp()] {
        pod.reaches(&bed, &sent, backend);
        let reply = sent.clone().with_destination(backend).reply();
        bed.send(Hook::TcPodOut, &reply).assert_passed(&sent.reply()).assert_counted(Reason::Reply);
        // On the way in, no program takes it for anything else.
        for hook in [Hook::XdpIngress, Hook::TcIngress] {
            bed.send(hook, &reply).assert_untouched().assert_counted(Reason::NotOurs);
        }
    }
}

/// The source port is the one that asked the Service, as with members of a gossip that found each
/// other by it.
fn datagrams_to_the_backend_itself_are_answered_by_it_again(family: Family) {
    let (pod, bed) = (Pod::new(family), Bed::new());
    let backend = pod.case.pod(1);
    bed.service().udp().external(pod.case.vip()).backend_local(backend).install();
    let (asked, direct) = (pod.udp(), pod.udp().with_destination(backend));
    for _ in 0..2 {
        pod.reaches(&bed, &asked, backend);
        let reply = direct.clone().reply();
        bed.send(Hook::TcPodOut, &reply).assert_passed(&asked.clone().reply()).assert_counted(Reason::Reply);
        bed.send(Hook::TcPodIn, &direct).assert_untouched().assert_counted(Reason::NotOurs);
        bed.send(Hook::TcPodOut, &reply).assert_untouched().assert_counted(Reason::NotOurs);
    }
}

fn direct_server_return_does_not_apply_to_pods(family: Family) {
    let (pod, bed) = (Pod::new(family), Bed::new());
    let service = bed.service().dsr().external(pod.case.vip()).backend_remote(pod.case.remote_pod(1), 1);
    service.install();
    pod.reaches(&bed, &pod.tcp(flag::SYN), pod.case.remote_pod(1));
}

fn external_policy_local_does_not_apply_to_pods(family: Family) {
    let (pod, bed) = (Pod::new(family), Bed::new());
    let service = bed.service().policy_local().external(pod.case.vip());
    service.backend_remote(pod.case.remote_pod(1), 1).install();
    pod.reaches(&bed, &pod.tcp(flag::SYN), pod.case.remote_pod(1));
}

fn internal_policy_local_keeps_to_this_node(family: Family) {
    let (pod, bed) = (Pod::new(family), Bed::new());
    let service = bed.service().cluster_ip().internal_policy_local().external(pod.case.vip());
    service.backend_remote(pod.case.remote_pod(1), 1).backend_local(pod.case.pod(1)).install();
    for port in 40000..40016 {
        let syn = pod.tcp(flag::SYN).with_source((pod.at.ip(), port).into());
        pod.reaches(&bed, &syn, pod.case.pod(1));
    }
}

fn internal_policy_local_drops_where_this_node_has_no_backend(family: Family) {
    let (pod, bed) = (Pod::new(family), Bed::new());
    let service = bed.service().cluster_ip().internal_policy_local().external(pod.case.vip());
    service.backend_remote(pod.case.remote_pod(1), 1).install();
    pod.case.arrives(&bed, &pod.tcp(flag::SYN)).assert_dropped(Reason::NoLocalEndpoint);
}

fn a_node_port_is_reached_at_a_nodes_address(family: Family) {
    let (pod, bed) = (Pod::new(family), Bed::new());
    let node_port = SocketAddr::new(family.node(1), 30080);
    bed.service().node_ports().external(node_port).backend_remote(pod.case.remote_pod(1), 1).install();
    let syn = pod.tcp(flag::SYN).with_destination(node_port);
    pod.reaches(&bed, &syn, pod.case.remote_pod(1));
    // Another node serves its own NodePorts.
    let elsewhere = syn.with_destination((family.node(2), 30080).into());
    pod.case.arrives(&bed, &elsewhere).assert_untouched().assert_counted(Reason::NotOurs);
}

fn a_node_port_on_loopback_is_not_for_pods(family: Family) {
    let (pod, bed) = (Pod::new(family), Bed::new());
    let loopback = SocketAddr::new(family.pick("127.0.0.1", "::1"), 30080);
    let service = bed.service().node_ports().node_only().external(loopback);
    service.backend_local(pod.case.pod(1)).install();
    let syn = pod.tcp(flag::SYN).with_destination(loopback);
    pod.case.arrives(&bed, &syn).assert_untouched().assert_counted(Reason::NotOurs);
}

fn a_packet_that_a_lower_device_has_served_is_not_looked_up_again(family: Family) {
    let (pod, bed) = (Pod::new(family), Bed::new());
    bed.service().external(pod.case.vip()).backend_local(pod.case.pod(1)).install();
    let ingress = Ingress { mark: DEFAULT_MARK, ..Ingress::default() };
    let outcome = bed.run_with(Hook::TcPodIn, &pod.tcp(flag::SYN).build(), ingress);
    outcome.assert_untouched();
    assert_eq!(outcome.counts.packets(), 0);
}

fn tunnels_of_pods_are_their_own(family: Family) {
    let (pod, bed) = (Pod::new(family), Bed::new());
    bed.service().dsr().external(pod.case.vip()).backend_local(pod.case.pod(1)).install();
    let inner = pod.case.tcp(flag::SYN);
    let around = |destination| inner.clone().encapsulated(Layer::ip(pod.at.ip(), destination));
    for frame in [around(family.node(1)), around(family.node(2)), around(family.node(1)).in_udp(7, 5555)] {
        pod.case.arrives(&bed, &frame).assert_untouched().assert_counted(Reason::NotOurs);
    }
}

fn a_pod_that_reaches_itself_gets_its_packets_back_from_the_frontend(family: Family) {
    let pod = Pod::new(family);
    let bed = pod.bed_with_itself();
    let source = pod.gets_back(&bed, &pod.tcp(flag::SYN));
    pod.answers_itself(&bed, &pod.tcp(flag::SYN | flag::ACK), source);
    for flags in [flag::ACK, flag::PSH | flag::ACK, flag::FIN | flag::ACK] {
        assert_eq!(pod.gets_back(&bed, &pod.tcp(flags)), source);
        pod.answers_itself(&bed, &pod.tcp(flags), source);
    }
}

fn a_pods_datagrams_to_itself_come_back_too(family: Family) {
    let pod = Pod::new(family);
    let bed = pod.bed_with_itself();
    let source = pod.gets_back(&bed, &pod.udp());
    for _ in 0..3 {
        pod.answers_itself(&bed, &pod.udp(), source);
        assert_eq!(pod.gets_back(&bed, &pod.udp()), source);
    }
    assert_eq!(bed.flows(FlowTable::Established).len(), 2, "both directions, promoted");
}

fn a_pods_association_with_itself_comes_back_too(family: Family) {
    let pod = Pod::new(family);
    let bed = pod.bed_with_itself();
    let packet = |kind| {
        let frame = Frame::ip(pod.at.ip(), pod.case.vip().ip());
        frame.sctp(CLIENT_PORT, VIP_PORT, kind).payload(vec![7; 12])
    };
    let source = pod.gets_back(&bed, &packet(chunk::INIT));
    pod.answers_itself(&bed, &packet(chunk::INIT_ACK), source);
    assert_eq!(pod.gets_back(&bed, &packet(chunk::DATA)), source);
}

fn a_pod_that_reaches_itself_keeps_its_port_and_itself(family: Family) {
    let (pod, bed) = (Pod::new(family), Bed::new());
    let service = pod.serves(bed.service()).install();
    let source = pod.gets_back(&bed, &pod.tcp(flag::SYN));
    pod.answers_itself(&bed, &pod.tcp(flag::SYN | flag::ACK), source);
    service.set_slot(&bed, &pod.tcp(flag::SYN), Slot::settled_on(bed.backend_local(pod.case.pod(1))));
    assert_eq!(pod.gets_back(&bed, &pod.tcp(flag::ACK)), source);
    let other = pod.tcp(flag::SYN).with_source((pod.at.ip(), CLIENT_PORT + 1).into());
    pod.reaches(&bed, &other, pod.case.pod(1));
}

fn a_pod_that_reaches_itself_closes_what_it_opened(family: Family) {
    let pod = Pod::new(family);
    let bed = pod.bed_with_itself();
    let source = pod.gets_back(&bed, &pod.tcp(flag::SYN));
    pod.answers_itself(&bed, &pod.tcp(flag::SYN | flag::ACK), source);
    pod.gets_back(&bed, &pod.tcp(flag::ACK));
    pod.gets_back(&bed, &pod.tcp(flag::FIN | flag::ACK));
    pod.answers_itself(&bed, &pod.tcp(flag::FIN | flag::ACK), source);
    let entries = bed.flows(FlowTable::Established);
    assert_eq!(entries.len(), 2);
    assert!(entries.iter().all(|entry| entry.state == FLOW_CLOSING), "{entries:?}");
}

fn connections_of_a_pod_to_itself_have_ports_of_their_own(family: Family) {
    let pod = Pod::new(family);
    let bed = pod.bed_with_itself();
    let from = |port| pod.tcp(flag::SYN).with_source((pod.at.ip(), port).into());
    let mut sources: Vec<SocketAddr> = (40000..40032).map(|port| pod.gets_back(&bed, &from(port))).collect();
    sources.sort_unstable();
    sources.dedup();
    assert_eq!(sources.len(), 32);
}

fn a_pods_error_about_its_own_packet_comes_back_to_it(family: Family) {
    let pod = Pod::new(family);
    let bed = pod.bed_with_itself();
    let sent = pod.udp();
    let source = pod.gets_back(&bed, &sent);
    let unreachable = family.port_unreachable();
    let given = turned(sent.clone().with_source(source).with_destination(pod.server()));
    let told = given.icmp_error(pod.at.ip(), unreachable);
    let expected = sent.icmp_error(pod.case.vip().ip(), unreachable);
    pod.case.arrives(&bed, &told).assert_sent(&expected).assert_counted(Reason::IcmpError);
}

/// The packet goes to a port of `--snat-ports`, from a pod that is a backend.
fn a_packet_that_only_looks_like_a_reply_of_a_pod_to_itself_is_untouched(family: Family) {
    let pod = Pod::new(family);
    let bed = pod.bed_with_itself();
    let source = pod.gets_back(&bed, &pod.tcp(flag::SYN));
    let reply = Frame::ip(pod.at.ip(), source.ip());
    let others = [
        reply.clone().tcp(8080, source.port() ^ 1, flag::ACK),
        reply.clone().tcp(8081, source.port(), flag::ACK),
        reply.udp(8080, source.port()),
        Frame::ip(pod.case.pod(1).ip(), source.ip()).tcp(8080, source.port(), flag::ACK),
    ];
    for frame in others {
        pod.case.arrives(&bed, &frame).assert_untouched().assert_counted(Reason::NotOurs);
    }
}

/// The client's connection is translated to another node's backend, from an address of this node.
fn a_pod_with_the_address_of_a_client_outside_gets_none_of_its_packets(family: Family) {
    let outside = Node::new(Case { hook: Hook::XdpIngress, family });
    let case = Case { hook: Hook::TcPodIn, family };
    outside.forwards(&case.tcp(flag::SYN));
    for flags in [flag::SYN, flag::ACK] {
        case.arrives(&outside.bed, &case.tcp(flags)).assert_dropped(Reason::ReplyKeyInUse);
    }
    outside.forwards(&case.tcp(flag::ACK));
}
