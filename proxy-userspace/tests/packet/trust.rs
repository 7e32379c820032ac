//! Forged tunnels: encapsulated packets of pods and processes of a node never leave it as another
//! node's tunnel.

use std::net::{IpAddr, SocketAddr};

use millrace_lab::frame::{Extension, Frame, Icmp, Layer, flag, protocol};
use millrace_lab::program::{Bed, DEVICE, Hook, Ingress, Outcome};
use proxy_common::config::{DEFAULT_MARK, SHARE_OLDER, TAKES_FOU, TAKES_IPIP, TAKES_POD_PACKETS};
use proxy_common::hop::Device;
use proxy_common::verdict::Reason;
use proxy_common::vip::{VIP_EXTERNAL, VIP_ON_NODE};
use proxy_common::way::{FOU_PORT, PEER_NODE, PEER_SELF};

use crate::case::{Case, Encapsulation, Family, TARGET_PORT, Tunnel, each_tunnel};

each_tunnel! {
    tunnels_of_a_pod_or_a_process_for_a_frontend_do_not_leave
    tunnels_of_our_programs_carry_their_mark_and_leave
    a_mark_alone_is_no_proof
    one_nodes_tunnel_to_another_is_forwarded_and_a_strangers_is_not
    tunnels_without_a_packet_for_us_leave_byte_for_byte
    a_pods_packet_in_ip_for_the_kernel_of_a_node_does_not_leave
    a_forged_error_about_a_client_does_not_leave
    fragments_of_a_forged_tunnel_are_not_decapsulated
    source_ranges_hold_on_the_backends_node
    a_node_port_at_an_address_of_no_node_object_is_not_decapsulated
    during_a_mode_change_tunnels_of_ipvs_leave
}

/// Installs a DSR Service on node 1, with a backend on node 2. The pods' devices are not in
/// DEVICES.
fn install(tunnel: Tunnel, bed: &Bed) {
    let case = tunnel.case;
    for family in [Family::V4, Family::V6] {
        for (number, bits) in [(1, PEER_SELF | PEER_NODE), (2, PEER_NODE), (3, PEER_NODE)] {
            bed.peer(family.node(number), bits);
        }
    }
    let way = tunnel.way(bed, 2);
    bed.service().dsr().external(case.vip()).backend_remote(case.remote_pod(2), way).install();
    let node_port = SocketAddr::new(case.family.node(1), 30080);
    bed.service().dsr().node_ports().external(node_port).backend_remote(case.remote_pod(2), way).install();
    bed.vip(case.vip().ip(), VIP_EXTERNAL);
}

fn uplink(bed: &Bed) {
    bed.insert::<u32, Device>("DEVICES", DEVICE, Device::default());
}

/// Runs the egress program on a frame, from a pod's device unless that is an uplink.
#[track_caller]
fn leaves(bed: &Bed, frame: &Frame, mark: u32) -> Outcome {
    bed.run_with(Hook::TcEgress, &frame.build(), Ingress { mark, ..Ingress::default() })
}

/// Returns the sources of a forger: masqueraded, its own, another node's.
fn forgers(tunnel: Tunnel) -> [IpAddr; 3] {
    let pod = Case { family: tunnel.outer, ..tunnel.case }.pod(1).ip();
    [tunnel.outer.node(1), pod, tunnel.outer.node(3)]
}

fn tunnels_of_a_pod_or_a_process_for_a_frontend_do_not_leave(tunnel: Tunnel) {
    let bed = tunnel.bed();
    install(tunnel, &bed);
    let case = tunnel.case;
    let pod = Case { family: tunnel.outer, ..case }.remote_pod(2).ip();
    let of_node = |number| SocketAddr::new(case.family.node(number), 30080);
    let inner = [
        case.tcp(flag::SYN),
        case.tcp(flag::ACK),
        case.tcp(flag::SYN).with_destination(of_node(1)),
        case.tcp(flag::SYN).with_destination(of_node(3)),
    ];
    for from in forgers(tunnel) {
        for to in [tunnel.outer.node(2), pod] {
            for frame in &inner {
                let forged = tunnel.between(frame, (from, to), 77);
                leaves(&bed, &forged, 0).assert_dropped(Reason::ForgedTunnel);
            }
        }
    }
    // Later fragments inside have no ports.
    let pieces = case.tcp(flag::ACK).payload(vec![0xa5; 3000]).fragments(7, 1400);
    for piece in pieces {
        leaves(&bed, &tunnel.around(&piece, 1, 2, 0), 0).assert_dropped(Reason::ForgedTunnel);
    }
    // Packets behind more headers than ours are dropped, too: a pod would decapsulate those as
    // well.
    let mut longer = tunnel.around(&inner[0], 1, 2, 0);
    if tunnel.outer == Family::V6 {
        longer.layers.insert(1, Layer::from(Extension::hop_by_hop(1)));
        leaves(&bed, &longer, 0).assert_dropped(Reason::ForgedTunnel);
    }
    // The tunnel does not leave inside another tunnel either. A device of the other node, or of its pod,
    // would remove the outer tunnel first.
    for to in [case.family.node(2), case.remote_pod(2).ip()] {
        let nested = inner[0].clone().encapsulated(Layer::ip(case.family.node(1), to));
        for nested in [nested.clone(), nested.in_udp(4000, FOU_PORT)] {
            leaves(&bed, &tunnel.around(&nested, 1, 2, 0), 0).assert_dropped(Reason::ForgedTunnel);
        }
    }
    // The tunnel does not reach a pod of this node either.
    bed.send(Hook::TcPodOut, &tunnel.between(&inner[0], (forgers(tunnel)[1], pod), 0))
        .assert_dropped(Reason::ForgedTunnel);
}

fn tunnels_of_our_programs_carry_their_mark_and_leave(tunnel: Tunnel) {
    let bed = tunnel.bed();
    install(tunnel, &bed);
    uplink(&bed);
    let sent = tunnel.case.arrives(&bed, &tunnel.case.tcp(flag::SYN));
    sent.assert_counted(Reason::SentDsr);
    if tunnel.case.hook == Hook::XdpIngress {
        // The packet meets no program on its way out.
        return;
    }
    assert_eq!(sent.run.mark & DEFAULT_MARK, DEFAULT_MARK, "{sent}");
    leaves(&bed, &sent.frame(), sent.run.mark).assert_untouched().assert_counted(Reason::NotOurs);
    // Without a mark, only the incoming device tells.
    let bed = tunnel.load(Bed::builder().mark(0, 0));
    install(tunnel, &bed);
    uplink(&bed);
    let sent = tunnel.case.arrives(&bed, &tunnel.case.tcp(flag::SYN)).frame();
    leaves(&bed, &sent, 0).assert_untouched().assert_counted(Reason::NotOurs);
}

/// The owner of a socket of the node, or of a macvlan device, may set it.
fn a_mark_alone_is_no_proof(tunnel: Tunnel) {
    let bed = tunnel.bed();
    install(tunnel, &bed);
    let forged = tunnel.around(&tunnel.case.tcp(flag::SYN), 1, 2, 0);
    leaves(&bed, &forged, DEFAULT_MARK).assert_dropped(Reason::ForgedTunnel);
    uplink(&bed);
    // This packet came from outside, and is masqueraded here.
    leaves(&bed, &forged, 0).assert_dropped(Reason::ForgedTunnel);
    leaves(&bed, &forged, DEFAULT_MARK).assert_untouched();
}

fn one_nodes_tunnel_to_another_is_forwarded_and_a_strangers_is_not(tunnel: Tunnel) {
    let bed = tunnel.bed();
    install(tunnel, &bed);
    uplink(&bed);
    let syn = tunnel.case.tcp(flag::SYN);
    leaves(&bed, &tunnel.around(&syn, 3, 2, 0), 0).assert_untouched().assert_counted(Reason::NotOurs);
    leaves(&bed, &tunnel.around(&syn, 66, 2, 0), 0).assert_dropped(Reason::ForgedTunnel);
}

fn tunnels_without_a_packet_for_us_leave_byte_for_byte(tunnel: Tunnel) {
    let bed = tunnel.bed();
    install(tunnel, &bed);
    let case = tunnel.case;
    // A Service without answers of another node, and an overlay between pods.
    let at = SocketAddr::new(case.vip().ip(), 81);
    bed.service().external(at).backend_local(case.pod(1)).install();
    let echo = Icmp { kind: if case.family == Family::V4 { 8 } else { 128 }, code: 0, rest: [0, 1, 0, 1] };
    let syn = case.tcp(flag::SYN);
    let ping = Frame::ip(case.client().ip(), case.vip().ip()).layer(echo).payload(&b"ping"[..]);
    let to_node = SocketAddr::new(case.family.node(3), 22);
    let inner = [
        syn.clone().with_destination(at),
        syn.clone().with_destination(case.remote_pod(2)),
        syn.clone().with_destination(to_node),
        case.udp(),
        ping,
        Frame::ip(case.client().ip(), case.remote_pod(2).ip()).payload(vec![0; 40]),
        // A pod's own tunnels, to a pod and to a node, in one to a node.
        syn.clone().encapsulated(Layer::ip(case.pod(1).ip(), case.remote_pod(2).ip())),
        syn.clone().encapsulated(Layer::ip(case.pod(1).ip(), case.family.node(2))),
    ];
    for frame in &inner {
        let tunnelled = tunnel.around(frame, 1, 2, 0);
        leaves(&bed, &tunnelled, 0).assert_untouched().assert_counted(Reason::NotOurs);
    }
    // This tunnel of our programs is in an overlay between nodes. The overlay's device forgets that the
    // packet came in by an uplink.
    let ours = syn.clone().encapsulated(Layer::ip(case.family.node(1), case.family.node(2)));
    let own = Ingress { is_own: true, ..Ingress::default() };
    let of_device = bed.run_with(Hook::TcEgress, &tunnel.around(&ours, 1, 2, 0).build(), own);
    of_device.assert_untouched().assert_counted(Reason::NotOurs);
    // Fragments of an overlay's packet.
    let overlay = case.tcp(flag::ACK).with_destination(case.remote_pod(2)).payload(vec![0xa5; 3000]);
    let far_vip = Case { family: tunnel.outer, ..case }.vip().ip();
    bed.vip(far_vip, VIP_EXTERNAL);
    for ends in [tunnel.outer.node(2), far_vip].map(|to| (tunnel.outer.node(1), to)) {
        for piece in outer_fragments(&tunnel.between(&overlay, ends, 0)) {
            leaves(&bed, &piece, 0).assert_untouched().assert_counted(Reason::NotOurs);
        }
    }
    // Tunnels without a packet, or with half of one.
    let whole = tunnel.around(&syn, 1, 2, 0).build();
    let outer = 14 + usize::from(tunnel.overhead());
    for length in [outer, outer + 1, outer + 19] {
        let outcome = bed.run(Hook::TcEgress, &whole[..length]);
        outcome.assert_untouched().assert_counted(Reason::NotOurs);
    }
    let layer = Layer::ip(tunnel.outer.node(1), tunnel.outer.node(2));
    let other_port = syn.encapsulated(layer).in_udp(4000, FOU_PORT + 1);
    leaves(&bed, &other_port, 0).assert_untouched().assert_counted(Reason::NotOurs);
}

/// With `--pod-routes ipip`, the other node's kernel would take the header off and believe all that is in it.
fn a_pods_packet_in_ip_for_the_kernel_of_a_node_does_not_leave(tunnel: Tunnel) {
    let bed = tunnel.load(Bed::builder().takes(TAKES_IPIP | TAKES_FOU | TAKES_POD_PACKETS));
    install(tunnel, &bed);
    let case = tunnel.case;
    let to_pod = case.tcp(flag::SYN).with_destination(case.remote_pod(2));
    let bare = Frame::ip(case.client().ip(), case.remote_pod(2).ip()).payload(vec![0; 40]);
    let own = Ingress { is_own: true, ..Ingress::default() };
    let pod = Case { family: tunnel.outer, ..case }.remote_pod(2).ip();
    for inner in [to_pod, bare] {
        for from in forgers(tunnel) {
            let forged = tunnel.between(&inner, (from, tunnel.outer.node(2)), 77);
            let outcome = leaves(&bed, &forged, 0);
            match tunnel.encapsulation {
                Encapsulation::Ipip => outcome.assert_dropped(Reason::ForgedTunnel),
                // No kernel listens there.
                Encapsulation::Fou => outcome.assert_untouched(),
            };
            // The node's own tunnels leave, and those between pods.
            bed.run_with(Hook::TcEgress, &forged.build(), own).assert_untouched();
            leaves(&bed, &tunnel.between(&inner, (from, pod), 77), 0).assert_untouched();
        }
    }
}

fn a_forged_error_about_a_client_does_not_leave(tunnel: Tunnel) {
    let bed = tunnel.bed();
    install(tunnel, &bed);
    let case = tunnel.case;
    let refused = case.tcp(flag::ACK).reply().icmp_error(case.client().ip(), case.family.port_unreachable());
    assert_eq!(refused.destination().ip(), case.vip().ip());
    let forged = tunnel.around(&refused, 1, 2, 0);
    leaves(&bed, &forged, 0).assert_dropped(Reason::ForgedTunnel);
    // Other nodes take it too if a device of this one has the address.
    bed.vip(case.vip().ip(), VIP_ON_NODE);
    leaves(&bed, &forged, 0).assert_dropped(Reason::ForgedTunnel);
    bed.forget_vip(case.vip().ip());
    leaves(&bed, &forged, 0).assert_untouched();
}

/// The first fragment has the inner headers. The others reach no host that reassembles them.
fn fragments_of_a_forged_tunnel_are_not_decapsulated(tunnel: Tunnel) {
    let bed = Bed::builder().takes(TAKES_IPIP | TAKES_FOU).load();
    install(tunnel, &bed);
    let case = tunnel.case;
    let at = SocketAddr::new(case.vip().ip(), 81);
    let here = bed.service().dsr().external(at).backend_local(case.pod(1)).install().endpoints[0];
    let inner = case.tcp(flag::ACK).with_destination(at).payload(vec![0xa5; 3000]);
    let mut whole = tunnel.around(&inner, 2, 1, here.hint);
    if let Layer::Ipv4(ip) = whole.outermost_mut() {
        ip.dont_fragment = false;
    }
    let delivered = inner.with_destination(SocketAddr::new(here.at.ip(), TARGET_PORT));
    assert_eq!(delivered.destination(), here.at);
    for piece in outer_fragments(&whole) {
        let outcome = case.arrives(&bed, &piece);
        outcome.assert_untouched();
        assert_eq!(outcome.counts.of(Reason::ServedDsr).packets, 0, "{outcome}");
    }
}

/// Returns the outer packet, cut in two.
fn outer_fragments(whole: &Frame) -> Vec<Frame> {
    let mut bare = whole.clone();
    let body = {
        let bytes = whole.build();
        let header = if matches!(whole.outermost(), Layer::Ipv4(_)) { 20 } else { 40 };
        bytes.slice(14 + header..)
    };
    let protocol = match whole.layers.get(1) {
        Some(Layer::Udp(_)) => protocol::UDP,
        Some(Layer::Ipv4(_)) => protocol::IPIP,
        _ => protocol::IPV6,
    };
    bare.layers.truncate(1);
    let cut = 1400;
    [(0, true, body.slice(..cut)), (cut / 8, false, body.slice(cut..))]
        .into_iter()
        .map(|(offset, more, part)| {
            let mut piece = bare.clone().payload(part);
            let offset = u16::try_from(offset).unwrap();
            if let Layer::Ipv4(ip) = piece.outermost_mut() {
                (ip.fragment_offset, ip.more_fragments, ip.protocol) = (offset, more, Some(protocol));
            } else {
                let header = Extension { protocol: Some(protocol), ..Extension::fragment(offset, more, 9) };
                piece = piece.layer(header);
            }
            piece
        })
        .collect()
}

/// `--nodeport-addresses` may have such addresses. No director sends on their packets, and other
/// nodes don't know them.
fn a_node_port_at_an_address_of_no_node_object_is_not_decapsulated(tunnel: Tunnel) {
    let case = tunnel.case;
    for (bits, is_taken) in [(0, false), (PEER_NODE | PEER_SELF, true)] {
        let bed = tunnel.bed();
        bed.peer(tunnel.outer.node(2), PEER_NODE);
        bed.peer(tunnel.outer.node(1), PEER_SELF | PEER_NODE);
        let at = SocketAddr::new(case.family.pick("10.9.0.2", "2001:db8:9::2"), 30080);
        bed.peer(at.ip(), bits);
        bed.service().dsr().node_ports().external(at).backend_local(case.pod(1)).install();
        let syn = case.tcp(flag::SYN).with_destination(at);
        let outcome = case.arrives(&bed, &tunnel.around(&syn, 2, 1, 0));
        if is_taken {
            outcome.assert_counted(Reason::ServedDsr);
        } else {
            outcome.assert_untouched().assert_counted(Reason::NotOurs);
        }
    }
}

fn source_ranges_hold_on_the_backends_node(tunnel: Tunnel) {
    let bed = tunnel.bed();
    install(tunnel, &bed);
    let case = tunnel.case;
    let at = SocketAddr::new(case.vip().ip(), 81);
    let (allowed, bits) = (case.client().ip(), if case.family == Family::V4 { 32 } else { 128 });
    let service = bed.service().dsr().external(at).source_range(allowed, bits);
    let here = service.backend_local(case.pod(1)).install().endpoints[0];
    let syn = case.tcp(flag::SYN).with_destination(at);
    let other = SocketAddr::new(case.family.pick("198.51.100.11", "2001:db8:51::11"), 40000);
    let refused = tunnel.around(&syn.clone().with_source(other), 2, 1, here.hint);
    case.arrives(&bed, &refused).assert_dropped(Reason::SourceRefused);
    let taken = tunnel.around(&syn, 2, 1, here.hint);
    case.is_delivered(&bed, &taken, &syn.with_destination(here.at), Reason::ServedDsr);
}

fn during_a_mode_change_tunnels_of_ipvs_leave(tunnel: Tunnel) {
    let bed = tunnel.load(Bed::builder().share(SHARE_OLDER));
    install(tunnel, &bed);
    let of_ipvs = tunnel.around(&tunnel.case.tcp(flag::SYN), 1, 2, 0);
    leaves(&bed, &of_ipvs, 0).assert_dropped(Reason::ForgedTunnel);
    uplink(&bed);
    leaves(&bed, &of_ipvs, 0).assert_untouched().assert_counted(Reason::NotOurs);
}

/// A frame that is segmented later has one header for packets that no program sees.
#[test]
fn a_train_of_datagrams_to_another_node_does_not_leave() {
    for family in [Family::V4, Family::V6] {
        let case = Case { hook: Hook::TcEgress, family };
        let tunnel = Tunnel { case, outer: family, encapsulation: Encapsulation::Fou };
        let bed = tunnel.bed();
        install(tunnel, &bed);
        let harmless = Frame::ip(family.node(1), family.node(2)).udp(4000, FOU_PORT).payload(vec![0; 2800]);
        let train = Ingress { segment: 1400, ..Ingress::default() };
        bed.run_with(Hook::TcEgress, &harmless.build(), train).assert_dropped(Reason::ForgedTunnel);
        leaves(&bed, &harmless, 0).assert_untouched();
        let outside =
            Frame::ip(family.node(1), case.client().ip()).udp(4000, FOU_PORT).payload(vec![0; 2800]);
        bed.run_with(Hook::TcEgress, &outside.build(), train).assert_untouched();
        // Another overlay has the port where no node takes FoU.
        let bed = Bed::builder().takes(TAKES_IPIP).load();
        install(tunnel, &bed);
        bed.run_with(Hook::TcEgress, &harmless.build(), train).assert_untouched();
    }
}
