//! Mode changes of the node: which mode owns which connection.

use millrace_lab::frame::{Frame, flag};
use millrace_lab::program::{Bed, Endpoint, FlowTable};
use proxy_common::config::{SHARE_NEWER, SHARE_OLDER, SHARE_TURNED};
use proxy_common::flow::{FLOW_CLOSING, FLOW_ENCAPSULATE};
use proxy_common::selection::BackendRef;
use proxy_common::verdict::Reason;
use proxy_common::vip::VIP_CLUSTER_IP;

use crate::case::{Case, Tunnel, each_client, each_ingress, each_tunnel};

each_client! {
    the_newer_mode_serves_new_connections
    the_newer_mode_passes_connections_that_it_does_not_know
    the_newer_mode_passes_connections_although_no_backend_serves_new_ones
    the_newer_mode_takes_over_a_port_that_is_used_again
    the_older_mode_passes_new_connections
    the_older_mode_goes_on_with_its_connections
    the_older_mode_gives_no_connection_to_a_forged_syn
    the_older_mode_forgets_a_connection_that_has_ended_when_its_port_is_used_again
    the_older_mode_refuses_nothing
}

each_ingress! {
    the_newer_mode_passes_errors_about_connections_that_it_does_not_know
    the_older_mode_leaves_source_ranges_to_the_newer_one
}

each_tunnel! {
    a_newer_director_records_new_connections_although_no_slot_changed
    a_newer_director_passes_connections_that_it_does_not_know
    an_older_director_serves_connections_without_entries
    an_older_director_knows_what_began_later
    after_a_reversed_change_unknown_connections_belong_to_the_first_mode
}

fn serve(case: Case, bed: &Bed) {
    bed.service().external(case.vip()).backend_local(case.pod(1)).install();
    bed.service().udp().external(case.vip()).backend_local(case.pod(1)).install();
}

fn bed(case: Case, share: u32) -> Bed {
    let bed = Bed::builder().share(share).load();
    serve(case, &bed);
    bed
}

/// Returns a bed in the older mode, after the connections of `before`.
fn older_after(case: Case, before: impl Fn(&Bed)) -> Bed {
    let former = Bed::new();
    serve(case, &former);
    before(&former);
    let bed = bed(case, SHARE_OLDER);
    bed.take_flows_of(&former);
    bed
}

#[track_caller]
fn is_served(case: Case, bed: &Bed, frame: &Frame) {
    let delivered = frame.clone().with_destination(case.pod(1));
    case.is_delivered(bed, frame, &delivered, case.served());
}

#[track_caller]
fn is_passed(case: Case, bed: &Bed, frame: &Frame) {
    case.arrives(bed, frame).assert_untouched().assert_counted(Reason::NotOurs);
}

fn handshake(case: Case, bed: &Bed) {
    is_served(case, bed, &case.tcp(flag::SYN));
    bed.answer_all();
    is_served(case, bed, &case.tcp(flag::ACK));
}

fn entries(bed: &Bed) -> usize {
    bed.flows(FlowTable::New).len() + bed.flows(FlowTable::Established).len()
}

fn the_newer_mode_serves_new_connections(case: Case) {
    let bed = bed(case, SHARE_NEWER);
    handshake(case, &bed);
    is_served(case, &bed, &case.tcp(flag::FIN | flag::ACK));
    is_served(case, &bed, &case.udp());
    let reply = case.udp().with_destination(case.pod(1)).reply();
    bed.send(case.way_out(), &reply).assert_passed(&case.udp().reply()).assert_counted(Reason::Reply);
}

fn the_newer_mode_passes_connections_that_it_does_not_know(case: Case) {
    let bed = bed(case, SHARE_NEWER);
    for flags in [flag::ACK, flag::PSH | flag::ACK, flag::FIN | flag::ACK, flag::RST] {
        is_passed(case, &bed, &case.tcp(flags));
    }
    assert_eq!(entries(&bed), 0);
}

fn the_newer_mode_passes_connections_although_no_backend_serves_new_ones(case: Case) {
    let bed = Bed::builder().share(SHARE_NEWER).load();
    bed.service().external(case.vip()).install();
    is_passed(case, &bed, &case.tcp(flag::ACK));
    case.arrives(&bed, &case.tcp(flag::SYN)).assert_counted(Reason::NoEndpoint);
}

fn the_newer_mode_takes_over_a_port_that_is_used_again(case: Case) {
    let bed = bed(case, SHARE_NEWER);
    is_passed(case, &bed, &case.tcp(flag::ACK));
    handshake(case, &bed);
}

fn the_older_mode_passes_new_connections(case: Case) {
    let bed = bed(case, SHARE_OLDER);
    for flags in [flag::SYN, flag::SYN, flag::ACK, flag::ACK, flag::FIN | flag::ACK] {
        is_passed(case, &bed, &case.tcp(flags));
    }
    is_passed(case, &bed, &case.tcp_from(40001, flag::ACK));
    is_passed(case, &bed, &case.udp());
}

fn the_older_mode_goes_on_with_its_connections(case: Case) {
    let bed = older_after(case, |bed| handshake(case, bed));
    is_served(case, &bed, &case.tcp(flag::ACK));
    let delivered = case.tcp(flag::ACK).with_destination(case.pod(1));
    let reply = bed.send(case.way_out(), &delivered.reply());
    reply.assert_passed(&case.tcp(flag::ACK).reply()).assert_counted(Reason::Reply);
    // Datagrams belong to the new mode.
    let bed = older_after(case, |bed| is_served(case, bed, &case.udp()));
    is_passed(case, &bed, &case.udp());
}

fn the_older_mode_gives_no_connection_to_a_forged_syn(case: Case) {
    let bed = older_after(case, |bed| handshake(case, bed));
    is_served(case, &bed, &case.tcp(flag::SYN));
    is_served(case, &bed, &case.tcp(flag::ACK));
}

fn the_older_mode_forgets_a_connection_that_has_ended_when_its_port_is_used_again(case: Case) {
    let bed = older_after(case, |bed| {
        handshake(case, bed);
        is_served(case, bed, &case.tcp(flag::RST));
    });
    assert!(bed.flows(FlowTable::Established).iter().all(|entry| entry.state == FLOW_CLOSING));
    for flags in [flag::SYN, flag::ACK, flag::ACK] {
        is_passed(case, &bed, &case.tcp(flags));
    }
}

fn the_older_mode_refuses_nothing(case: Case) {
    let bed = Bed::builder().share(SHARE_OLDER).load();
    bed.service().external(case.vip()).install();
    bed.vip(case.vip().ip(), VIP_CLUSTER_IP);
    is_passed(case, &bed, &case.tcp(flag::SYN));
    let (client, vip) = (case.client().ip(), case.vip().ip());
    is_passed(case, &bed, &Frame::ip(client, vip).tcp(40000, 81, flag::SYN));
    is_passed(case, &bed, &Frame::ip(client, vip).udp(40000, 81));
    is_passed(case, &bed, &case.echo(b"ping").0);
}

fn the_newer_mode_passes_errors_about_connections_that_it_does_not_know(case: Case) {
    let bed = bed(case, SHARE_NEWER);
    is_passed(
        case,
        &bed,
        &case.tcp(flag::ACK).reply().icmp_error(case.client().ip(), case.port_unreachable()),
    );
    is_passed(case, &bed, &case.tcp(flag::ACK));
}

fn the_older_mode_leaves_source_ranges_to_the_newer_one(case: Case) {
    let bed = Bed::builder().share(SHARE_OLDER).load();
    let other = case.family.node(9);
    bed.service().external(case.vip()).backend_local(case.pod(1)).source_range(other, 32).install();
    is_passed(case, &bed, &case.tcp(flag::SYN));
    is_passed(case, &bed, &case.tcp(flag::ACK));
}

/// Returns a director with a backend behind node 2.
fn director(tunnel: Tunnel, share: u32) -> (Bed, Endpoint) {
    let bed = tunnel.load(Bed::builder().share(share));
    let (case, way) = (tunnel.case, tunnel.way(&bed, 2));
    let service = bed.service().dsr().external(case.vip()).backend_remote(case.remote_pod(1), way).install();
    (bed, service.endpoints[0])
}

#[track_caller]
fn is_sent(tunnel: Tunnel, bed: &Bed, frame: &Frame, to: Endpoint) {
    let sent = tunnel.forwarded(frame, 2, to.hint);
    tunnel.case.arrives(bed, frame).assert_sent(&sent).assert_counted(Reason::SentDsr);
}

fn a_newer_director_records_new_connections_although_no_slot_changed(tunnel: Tunnel) {
    let (bed, backend) = director(tunnel, SHARE_NEWER);
    for flags in [flag::SYN, flag::ACK, flag::ACK, flag::FIN | flag::ACK] {
        is_sent(tunnel, &bed, &tunnel.case.tcp(flags), backend);
    }
    let entry = bed.flow_of(FlowTable::Established, &tunnel.case.tcp(flag::ACK)).unwrap();
    assert_eq!((entry.backend, entry.flags & FLOW_ENCAPSULATE), (backend.reference, FLOW_ENCAPSULATE));
}

fn a_newer_director_passes_connections_that_it_does_not_know(tunnel: Tunnel) {
    let (bed, _) = director(tunnel, SHARE_NEWER);
    is_passed(tunnel.case, &bed, &tunnel.case.tcp(flag::ACK));
    is_passed(tunnel.case, &bed, &tunnel.case.tcp(flag::RST));
    let reply = tunnel.case.tcp(flag::ACK).reply();
    let error = reply.icmp_error(tunnel.case.client().ip(), tunnel.case.port_unreachable());
    is_passed(tunnel.case, &bed, &error);
    assert_eq!(entries(&bed), 0);
}

fn an_older_director_serves_connections_without_entries(tunnel: Tunnel) {
    let (bed, backend) = director(tunnel, SHARE_OLDER);
    is_sent(tunnel, &bed, &tunnel.case.tcp(flag::ACK), backend);
    is_sent(tunnel, &bed, &tunnel.case.tcp(flag::FIN | flag::ACK), backend);
    assert_eq!(entries(&bed), 0);
}

fn an_older_director_knows_what_began_later(tunnel: Tunnel) {
    let (bed, _) = director(tunnel, SHARE_OLDER);
    for flags in [flag::SYN, flag::SYN, flag::ACK, flag::ACK] {
        is_passed(tunnel.case, &bed, &tunnel.case.tcp(flags));
    }
    let entry = bed.flow_of(FlowTable::Established, &tunnel.case.tcp(flag::ACK)).unwrap();
    assert_eq!(entry.backend, BackendRef::NONE);
    let reply = tunnel.case.tcp(flag::ACK).reply();
    is_passed(
        tunnel.case,
        &bed,
        &reply.icmp_error(tunnel.case.client().ip(), tunnel.case.port_unreachable()),
    );
    is_passed(tunnel.case, &bed, &tunnel.case.tcp(flag::FIN | flag::ACK));
}

fn after_a_reversed_change_unknown_connections_belong_to_the_first_mode(tunnel: Tunnel) {
    let case = tunnel.case;
    let reply = case.tcp(flag::ACK).reply();
    let error = reply.icmp_error(case.client().ip(), case.port_unreachable());
    // The change went from IPVS to eBPF and back. This mode has entered all its connections.
    let (bed, _) = director(tunnel, SHARE_OLDER | SHARE_TURNED);
    is_passed(case, &bed, &case.tcp(flag::ACK));
    is_passed(case, &bed, &error);
    // The change went from eBPF to IPVS and back. This mode has recorded the beginning of IPVS' connections.
    let (older, _) = director(tunnel, SHARE_OLDER);
    is_passed(case, &older, &case.tcp_from(40001, flag::SYN));
    is_passed(case, &older, &case.tcp_from(40001, flag::ACK));
    let (bed, backend) = director(tunnel, SHARE_NEWER | SHARE_TURNED);
    bed.take_flows_of(&older);
    is_sent(tunnel, &bed, &case.tcp(flag::ACK), backend);
    is_passed(case, &bed, &case.tcp_from(40001, flag::ACK));
    let entry = bed.flow_of(FlowTable::New, &case.tcp(flag::ACK)).unwrap();
    assert_eq!(entry.backend, backend.reference);
}
