//! A slot whose owner changed (rules 1 to 4): the connections on the director.

use millrace_lab::frame::{Frame, flag};
use millrace_lab::program::{Bed, Endpoint, FlowTable, Service};
use proxy_common::backend::{BACKEND_EXISTS, BACKEND_SERVING};
use proxy_common::flow::FLOW_ENCAPSULATE;
use proxy_common::selection::{BackendRef, Slot};
use proxy_common::timeouts::{FLOW_HALF_CLOSED, Timeouts};
use proxy_common::verdict::Reason;

use crate::case::{Tunnel, each_tunnel};

each_tunnel! {
    a_syn_goes_to_the_current_owner_and_is_remembered
    a_packet_without_an_entry_goes_to_the_settled_owner_and_is_remembered
    a_packet_follows_its_entry_with_any_owner_of_the_slot
    the_current_owner_gets_everything_if_the_settled_one_is_gone
    an_entry_of_a_backend_that_is_gone_is_not_followed
    a_datagram_without_an_entry_goes_to_the_settled_owner_only_while_that_is_ready
    datagrams_leave_a_backend_that_serves_no_more_and_connections_stay
    a_connection_moves_between_this_node_and_another_with_the_slot
    a_connection_that_began_elsewhere_is_not_taken_for_one_of_a_backend_here
    connections_go_on_while_no_backend_serves_new_ones
    a_download_goes_on_though_its_client_has_closed_its_side_and_is_silent
    a_late_packet_does_not_revive_a_connection_that_the_client_has_closed_and_reset
}

struct Director {
    bed: Bed,
    tunnel: Tunnel,
    service: Service,
    /// Behind a way to node 2.
    old: Endpoint,
    /// Behind a way to node 3.
    new: Endpoint,
}

impl Director {
    /// Returns a director whose slots all belong to the old owner and are settled.
    fn new(tunnel: Tunnel) -> Self {
        Self::with(tunnel, Bed::service)
    }

    fn with(tunnel: Tunnel, start: impl Fn(&Bed) -> millrace_lab::program::ServiceBuilder<'_>) -> Self {
        let (bed, case) = (tunnel.bed(), tunnel.case);
        let (to_old, to_new) = (tunnel.way(&bed, 2), tunnel.way(&bed, 3));
        let service = start(&bed)
            .dsr()
            .external(case.vip())
            .backend_remote(case.remote_pod(1), to_old)
            .backend_remote(case.remote_pod(2), to_new)
            .install();
        let (old, new) = (service.endpoints[0], service.endpoints[1]);
        Self { bed, tunnel, service, old, new }
    }

    fn set_slot(&self, frame: &Frame, slot: Slot) {
        self.service.set_slot(&self.bed, frame, slot);
    }

    fn unsettle(&self, frame: &Frame) {
        self.set_slot(frame, Slot::unsettled(self.new.reference, self.old.reference));
    }

    #[track_caller]
    fn sends(&self, frame: &Frame, owner: Endpoint) {
        let node = if owner == self.old { 2 } else { 3 };
        let expected = self.tunnel.forwarded(frame, node, owner.hint);
        self.tunnel.case.arrives(&self.bed, frame).assert_sent(&expected).assert_counted(Reason::SentDsr);
    }

    #[track_caller]
    fn remembers(&self, frame: &Frame, owner: Endpoint) {
        let found =
            self.bed.flow_of(FlowTable::New, frame).or(self.bed.flow_of(FlowTable::Established, frame));
        let entry = found.unwrap();
        assert_eq!((entry.backend, entry.flags), (owner.reference, FLOW_ENCAPSULATE));
    }
}

fn a_syn_goes_to_the_current_owner_and_is_remembered(tunnel: Tunnel) {
    let director = Director::new(tunnel);
    let syn = tunnel.case.tcp(flag::SYN);
    director.unsettle(&syn);
    director.sends(&syn, director.new);
    director.remembers(&syn, director.new);
    director.sends(&tunnel.case.tcp(flag::ACK), director.new);
}

fn a_packet_without_an_entry_goes_to_the_settled_owner_and_is_remembered(tunnel: Tunnel) {
    let director = Director::new(tunnel);
    let data = tunnel.case.tcp(flag::ACK);
    director.unsettle(&data);
    director.sends(&data, director.old);
    director.remembers(&data, director.old);
    director.sends(&data, director.old);
}

fn a_packet_follows_its_entry_with_any_owner_of_the_slot(tunnel: Tunnel) {
    let director = Director::new(tunnel);
    let (syn, data) = (tunnel.case.tcp(flag::SYN), tunnel.case.tcp(flag::ACK));
    director.unsettle(&syn);
    director.sends(&syn, director.new);
    // Back to the old owner: the bit stays, and so does the connection.
    director.set_slot(&data, Slot::unsettled(director.old.reference, director.old.reference));
    director.sends(&data, director.new);
    director.sends(&tunnel.case.tcp(flag::FIN | flag::ACK), director.new);
}

fn the_current_owner_gets_everything_if_the_settled_one_is_gone(tunnel: Tunnel) {
    let director = Director::new(tunnel);
    let data = tunnel.case.tcp(flag::ACK);
    director.unsettle(&data);
    director.bed.retire_backend(director.old.at);
    director.sends(&data, director.new);
}

fn an_entry_of_a_backend_that_is_gone_is_not_followed(tunnel: Tunnel) {
    let director = Director::new(tunnel);
    let data = tunnel.case.tcp(flag::ACK);
    director.unsettle(&data);
    director.sends(&data, director.old);
    director.bed.retire_backend(director.old.at);
    director.sends(&data, director.new);
    director.remembers(&data, director.new);
}

fn a_datagram_without_an_entry_goes_to_the_settled_owner_only_while_that_is_ready(tunnel: Tunnel) {
    let director = Director::with(tunnel, |bed| bed.service().udp());
    let datagram = tunnel.case.udp();
    director.unsettle(&datagram);
    director.sends(&datagram, director.old);
    director.bed.forget_flows();
    director.bed.set_backend_flags(director.old.at, BACKEND_EXISTS);
    director.sends(&datagram, director.new);
}

fn datagrams_leave_a_backend_that_serves_no_more_and_connections_stay(tunnel: Tunnel) {
    for udp in [true, false] {
        let director = Director::with(tunnel, |bed| if udp { bed.service().udp() } else { bed.service() });
        let frame = if udp { tunnel.case.udp() } else { tunnel.case.tcp(flag::ACK) };
        director.unsettle(&frame);
        director.sends(&frame, director.old);
        director.sends(&frame, director.old);
        // The old owner terminates and serves its connections. Then it exists, and serves none.
        director.bed.set_backend_flags(director.old.at, BACKEND_EXISTS | BACKEND_SERVING);
        director.sends(&frame, director.old);
        director.bed.set_backend_flags(director.old.at, BACKEND_EXISTS);
        let keeper = if udp { director.new } else { director.old };
        director.sends(&frame, keeper);
        director.remembers(&frame, keeper);
        director.sends(&frame, keeper);
    }
}

/// Returns a Service with a backend on this node and one behind a way to node 2.
fn service_here_and_there(tunnel: Tunnel, bed: &Bed) -> (Service, [Endpoint; 2]) {
    let (case, way) = (tunnel.case, tunnel.way(bed, 2));
    let service = bed
        .service()
        .dsr()
        .external(case.vip())
        .backend_local(case.pod(1))
        .backend_remote(case.remote_pod(1), way)
        .install();
    let endpoints = [service.endpoints[0], service.endpoints[1]];
    (service, endpoints)
}

fn a_connection_moves_between_this_node_and_another_with_the_slot(tunnel: Tunnel) {
    let (bed, case) = (tunnel.bed(), tunnel.case);
    let (service, [here, there]) = service_here_and_there(tunnel, &bed);
    let data = case.tcp(flag::ACK);
    // The connection is opened here. The slot then goes to the other node, and connections stay.
    service.set_slot(&bed, &data, Slot::settled_on(here.reference));
    case.arrives(&bed, &case.tcp(flag::SYN)).assert_counted(Reason::ServedLocal);
    service.set_slot(&bed, &data, Slot::unsettled(there.reference, here.reference));
    case.is_delivered(&bed, &data, &data.clone().with_destination(case.pod(1)), Reason::ServedLocal);
    let other = case.tcp_from(40001, flag::SYN);
    service.set_slot(&bed, &other, Slot::unsettled(there.reference, here.reference));
    case.arrives(&bed, &other).assert_sent(&tunnel.forwarded(&other, 2, there.hint));
}

fn a_connection_that_began_elsewhere_is_not_taken_for_one_of_a_backend_here(tunnel: Tunnel) {
    let (bed, case) = (tunnel.bed(), tunnel.case);
    let (service, [here, there]) = service_here_and_there(tunnel, &bed);
    let data = case.tcp(flag::ACK);
    for slot in
        [Slot::unsettled(there.reference, here.reference), Slot::unsettled(here.reference, there.reference)]
    {
        bed.forget_flows();
        service.set_slot(&bed, &data, slot);
        case.arrives(&bed, &data).assert_sent(&tunnel.forwarded(&data, 2, there.hint));
    }
    // There is no other owner.
    bed.forget_flows();
    bed.retire_backend(there.at);
    service.set_slot(&bed, &data, Slot::unsettled(there.reference, here.reference));
    case.is_delivered(&bed, &data, &data.clone().with_destination(case.pod(1)), Reason::ServedLocal);
}

fn connections_go_on_while_no_backend_serves_new_ones(tunnel: Tunnel) {
    let director = Director::new(tunnel);
    let case = tunnel.case;
    director.service.vacate(&director.bed);
    let [data, other] = [case.tcp(flag::ACK), case.tcp_from(40001, flag::ACK)];
    for frame in [&data, &other] {
        director.set_slot(frame, Slot::unsettled(BackendRef::NONE, director.old.reference));
    }
    director.sends(&data, director.old);
    director.remembers(&data, director.old);
    director.bed.retire_backend(director.old.at);
    for refused in [&case.tcp_from(40002, flag::SYN), &case.tcp_from(40001, flag::SYN), &other, &data] {
        director.set_slot(refused, Slot::unsettled(BackendRef::NONE, BackendRef::NONE));
        case.arrives(&director.bed, refused).assert_counted(Reason::NoEndpoint);
    }
}

fn a_download_goes_on_though_its_client_has_closed_its_side_and_is_silent(tunnel: Tunnel) {
    let director = Director::new(tunnel);
    let (syn, acknowledgement) = (tunnel.case.tcp(flag::SYN), tunnel.case.tcp(flag::ACK));
    director.unsettle(&syn);
    director.sends(&syn, director.new);
    director.sends(&acknowledgement, director.new);
    director.sends(&tunnel.case.tcp(flag::FIN | flag::ACK), director.new);
    // The backend is slow. Only the entry leads the client's later acknowledgements to it.
    for _ in 0..3 {
        director.bed.age_flows(FLOW_HALF_CLOSED - 40);
        director.sends(&acknowledgement, director.new);
    }
    // Nothing follows a RST, whatever was under way.
    director.sends(&tunnel.case.tcp(flag::RST), director.new);
    director.bed.age_flows(2);
    director.sends(&acknowledgement, director.new);
    director.sends(&tunnel.case.tcp(flag::RST), director.new);
    director.bed.age_flows(Timeouts::default().closing + 2);
    director.sends(&acknowledgement, director.old);
}

fn a_late_packet_does_not_revive_a_connection_that_the_client_has_closed_and_reset(tunnel: Tunnel) {
    let director = Director::new(tunnel);
    let (syn, acknowledgement) = (tunnel.case.tcp(flag::SYN), tunnel.case.tcp(flag::ACK));
    director.unsettle(&acknowledgement);
    director.sends(&acknowledgement, director.old);
    director.sends(&tunnel.case.tcp(flag::FIN | flag::ACK), director.old);
    director.sends(&tunnel.case.tcp(flag::RST), director.old);
    director.bed.age_flows(2);
    director.sends(&acknowledgement, director.old);
    // The client's port opens another connection, which belongs to the current owner.
    director.sends(&syn, director.new);
}
