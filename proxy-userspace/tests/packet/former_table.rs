//! Connections by Direct Server Return after a change of their Service: another table, or SNAT.

use millrace_lab::frame::{Frame, flag};
use millrace_lab::program::{Bed, Endpoint, FlowTable, Service, ServiceBuilder, known_hop};
use proxy_common::flow::{FLOW_DECAPSULATED, FLOW_ENCAPSULATE};
use proxy_common::selection::BackendRef;
use proxy_common::verdict::Reason;
use proxy_common::way::{PEER_NODE, PEER_SELF};

use crate::case::{Tunnel, each_tunnel};

each_tunnel! {
    a_connection_without_an_entry_goes_by_the_former_table_and_is_remembered
    a_new_connection_and_a_datagram_go_by_the_table_of_now
    an_owner_of_the_former_table_that_is_gone_gets_nothing
    a_connection_that_began_elsewhere_is_not_taken_for_one_of_the_former_owner_here
    after_policy_cluster_older_connections_go_by_the_cluster_list
    an_empty_list_still_has_its_former_table
    once_dsr_has_ended_older_connections_go_on_and_new_ones_leave_from_this_node
    once_dsr_has_ended_this_node_still_takes_what_directors_send
}

/// Indices of the endpoints.
const OLD: usize = 0;
const NEW: usize = 1;

fn dsr(service: ServiceBuilder<'_>) -> ServiceBuilder<'_> {
    service.dsr()
}

fn dsr_ends(service: ServiceBuilder<'_>) -> ServiceBuilder<'_> {
    service.dsr_ends()
}

/// A director, node 1.
struct Director {
    bed: Bed,
    tunnel: Tunnel,
    service: Service,
}

impl Director {
    /// Returns a director whose slots belong to the new owner, and belonged to the old one before.
    fn new(tunnel: Tunnel, change: impl for<'a> Fn(ServiceBuilder<'a>) -> ServiceBuilder<'a>) -> Self {
        let (bed, case) = (tunnel.bed(), tunnel.case);
        for (number, bits) in [(1, PEER_SELF | PEER_NODE), (2, PEER_NODE), (3, PEER_NODE)] {
            bed.peer(case.family.node(number), bits);
        }
        let (to_old, to_new) = (tunnel.way(&bed, 2), tunnel.way(&bed, 3));
        let mut service = change(bed.service())
            .external(case.vip())
            .backend_remote(case.remote_pod(1), to_old)
            .backend_remote(case.remote_pod(2), to_new)
            .install();
        service.replace_table(&bed, NEW, OLD);
        Self { bed, tunnel, service }
    }

    fn endpoint(&self, index: usize) -> Endpoint {
        self.service.endpoints[index]
    }

    #[track_caller]
    fn sends(&self, frame: &Frame, index: usize) {
        let node = if index == OLD { 2 } else { 3 };
        let expected = self.tunnel.forwarded(frame, node, self.endpoint(index).hint);
        self.tunnel.case.arrives(&self.bed, frame).assert_sent(&expected).assert_counted(Reason::SentDsr);
    }

    #[track_caller]
    fn remembers(&self, frame: &Frame) -> BackendRef {
        let found =
            self.bed.flow_of(FlowTable::New, frame).or(self.bed.flow_of(FlowTable::Established, frame));
        let entry = found.unwrap();
        assert_eq!(entry.flags, FLOW_ENCAPSULATE);
        entry.backend
    }
}

fn a_connection_without_an_entry_goes_by_the_former_table_and_is_remembered(tunnel: Tunnel) {
    let mut director = Director::new(tunnel, dsr);
    let data = tunnel.case.tcp(flag::ACK);
    director.sends(&data, OLD);
    assert_eq!(director.remembers(&data), director.endpoint(OLD).reference);
    director.sends(&data, OLD);
    // Its slot does not settle while an entry disagrees. The entry alone leads it then.
    director.service.forget_table(&director.bed, NEW);
    director.service.unsettle(&director.bed, NEW, NEW);
    director.sends(&data, OLD);
    director.sends(&tunnel.case.tcp_from(40001, flag::ACK), NEW);
}

fn a_new_connection_and_a_datagram_go_by_the_table_of_now(tunnel: Tunnel) {
    let director = Director::new(tunnel, dsr);
    director.sends(&tunnel.case.tcp(flag::SYN), NEW);
    director.sends(&tunnel.case.tcp(flag::ACK), NEW);
    let director = Director::new(tunnel, |service| service.dsr().udp());
    director.sends(&tunnel.case.udp(), NEW);
}

fn an_owner_of_the_former_table_that_is_gone_gets_nothing(tunnel: Tunnel) {
    let director = Director::new(tunnel, dsr);
    director.bed.retire_backend(director.endpoint(OLD).at);
    director.sends(&tunnel.case.tcp(flag::ACK), NEW);
}

fn a_connection_that_began_elsewhere_is_not_taken_for_one_of_the_former_owner_here(tunnel: Tunnel) {
    let (bed, case) = (tunnel.bed(), tunnel.case);
    let way = tunnel.way(&bed, 3);
    let mut service = bed
        .service()
        .dsr()
        .external(case.vip())
        .backend_local(case.pod(1))
        .backend_remote(case.remote_pod(2), way)
        .install();
    service.replace_table(&bed, NEW, OLD);
    let data = case.tcp(flag::ACK);
    case.arrives(&bed, &data).assert_sent(&tunnel.forwarded(&data, 3, service.endpoints[NEW].hint));
}

fn after_policy_cluster_older_connections_go_by_the_cluster_list(tunnel: Tunnel) {
    let (bed, case) = (tunnel.bed(), tunnel.case);
    let way = tunnel.way(&bed, 3);
    let service = bed
        .service()
        .dsr()
        .was_cluster()
        .external(case.vip())
        .backend_local(case.pod(1))
        .backend_remote(case.remote_pod(2), way)
        .install();
    // The slots of the Cluster list belong to both backends in turn.
    let there = service.cluster_endpoints[1];
    let port = (40000..41000).find(|port| service.cluster_choice(&case.tcp_from(*port, flag::ACK)) == there);
    let [syn, data] = [flag::SYN, flag::ACK].map(|flags| case.tcp_from(port.unwrap(), flags));
    case.arrives(&bed, &data).assert_sent(&tunnel.forwarded(&data, 3, there.hint));
    case.arrives(&bed, &data).assert_sent(&tunnel.forwarded(&data, 3, there.hint));
    bed.forget_flows();
    case.is_delivered(&bed, &syn, &syn.clone().with_destination(case.pod(1)), Reason::ServedLocal);
}

fn an_empty_list_still_has_its_former_table(tunnel: Tunnel) {
    let director = Director::new(tunnel, dsr);
    director.service.empty(&director.bed);
    director.sends(&tunnel.case.tcp(flag::ACK), OLD);
    let syn = tunnel.case.tcp_from(40001, flag::SYN);
    tunnel.case.arrives(&director.bed, &syn).assert_counted(Reason::NoEndpoint);
}

fn once_dsr_has_ended_older_connections_go_on_and_new_ones_leave_from_this_node(tunnel: Tunnel) {
    let case = tunnel.case;
    let director = Director::new(tunnel, dsr_ends);
    director.bed.hop(case.remote_pod(2), known_hop(case.family.node(1)));
    let data = case.tcp(flag::ACK);
    director.sends(&data, OLD);
    director.remembers(&data);
    director.sends(&data, OLD);
    let syn = case.tcp_from(40001, flag::SYN);
    let outcome = case.arrives(&director.bed, &syn);
    outcome.assert_counted(Reason::SentSnat);
    assert_eq!(outcome.frame().source().ip(), case.family.node(1));
    assert_eq!(outcome.frame().destination(), case.remote_pod(2));
}

fn once_dsr_has_ended_this_node_still_takes_what_directors_send(tunnel: Tunnel) {
    let (bed, case) = (tunnel.bed(), tunnel.case);
    for (number, bits) in [(1, PEER_SELF | PEER_NODE), (2, PEER_NODE)] {
        bed.peer(tunnel.outer.node(number), bits);
    }
    let service = bed.service().dsr_ends().external(case.vip()).backend_local(case.pod(1)).install();
    let backend = service.endpoints[0];
    // One director has not seen the change yet, so it sends new connections, too.
    for flags in [flag::SYN, flag::ACK] {
        let frame = case.tcp(flags);
        let delivered = frame.clone().with_destination(backend.at);
        let directed = tunnel.around(&frame, 2, 1, backend.hint);
        case.is_delivered(&bed, &directed, &delivered, Reason::ServedDsr);
        bed.answer_all();
    }
    let entry = bed.flow_of(FlowTable::Established, &case.tcp(flag::ACK)).unwrap();
    assert_ne!(entry.flags & FLOW_DECAPSULATED, 0);
}
