//! The client's identity: source ranges, sources inside the cluster, session affinity.

use std::net::{IpAddr, SocketAddr};

use millrace_lab::frame::{Frame, flag};
use millrace_lab::program::{Bed, FlowTable, Service, ServiceBuilder, known_hop, resolved_way};
use proxy_common::affinity::Affinity;
use proxy_common::backend::{BACKEND_EXISTS, BACKEND_LOCAL, BACKEND_SERVING};
use proxy_common::selection::{BackendRef, Slot};
use proxy_common::verdict::Reason;

use crate::case::{CLIENT_PORT, Case, Family, VIP_PORT, each_client, each_ingress};

each_client! {
    a_client_inside_a_source_range_is_served
    a_client_outside_every_source_range_is_dropped
    a_source_range_is_one_service_s_own
    source_ranges_are_checked_before_the_endpoints
    a_client_outside_is_dropped_in_mid_connection_too
    a_client_keeps_its_backend_when_its_slot_gets_another_owner
    a_client_keeps_its_backend_over_all_frontends_of_a_service_port
    an_affinity_ends_with_its_time
    connections_that_begin_at_once_after_an_affinity_has_ended_go_to_one_backend
    a_client_with_only_a_syn_has_no_affinity
    a_client_of_datagrams_has_an_affinity_from_the_first_one_on
    each_new_connection_renews_an_affinity_and_no_other_packet_does
    a_backend_that_is_gone_is_chosen_anew
    a_backend_that_left_the_list_is_chosen_anew_though_it_is_ready
    a_backend_that_terminates_is_kept_while_the_list_has_it
    an_affinity_of_another_service_is_not_believed
}

each_ingress! {
    a_director_checks_the_source_ranges_before_it_encapsulates
    a_client_inside_the_cluster_gets_the_cluster_list_of_a_local_frontend
    another_node_gets_the_local_list_of_a_local_frontend_but_counts_as_inside
    a_client_inside_the_cluster_gets_the_only_list_of_a_frontend
    a_client_inside_the_cluster_keeps_to_the_local_list_of_a_cluster_ip
    a_frontend_for_clients_inside_the_cluster_serves_no_others
    source_ranges_hold_for_clients_inside_the_cluster_as_well
    an_affinity_does_not_leave_the_local_list
    a_director_with_affinity_keeps_a_client_s_backend_and_its_connections
    a_director_chooses_again_if_no_hint_names_the_clients_backend
}

impl Case {
    /// Returns the client's prefix, which does not contain the other client.
    fn clients(self) -> (IpAddr, u32) {
        match self.family {
            Family::V4 => (self.family.pick("198.51.100.0", "::"), 24),
            Family::V6 => (self.family.pick("0.0.0.0", "2001:db8:51::"), 48),
        }
    }
    /// Returns a prefix without any client of this file.
    fn elsewhere(self) -> (IpAddr, u32) {
        match self.family {
            Family::V4 => (self.family.pick("192.0.2.0", "::"), 24),
            Family::V6 => (self.family.pick("0.0.0.0", "2001:db8:2::"), 48),
        }
    }
    fn stranger(self, flags: u8) -> Frame {
        let address = self.family.pick("198.51.101.10", "2001:db8:52::10");
        Frame::ip(address, self.vip().ip()).tcp(CLIENT_PORT, VIP_PORT, flags)
    }
    #[track_caller]
    fn reaches(self, bed: &Bed, frame: &Frame, backend: SocketAddr) {
        self.is_delivered(bed, frame, &frame.clone().with_destination(backend), self.served());
    }
    fn with_range(self, service: ServiceBuilder<'_>) -> ServiceBuilder<'_> {
        let (prefix, length) = self.clients();
        service.source_range(prefix, length)
    }
}

fn a_client_inside_a_source_range_is_served(case: Case) {
    let bed = Bed::new();
    case.with_range(bed.service()).external(case.vip()).backend_local(case.pod(1)).install();
    case.reaches(&bed, &case.tcp(flag::SYN), case.pod(1));
    // A prefix of full length is one client.
    let bed = Bed::new();
    let whole = if case.family == Family::V4 { 32 } else { 128 };
    let service = bed.service().source_range(case.client().ip(), whole);
    service.external(case.vip()).backend_local(case.pod(1)).install();
    case.reaches(&bed, &case.tcp(flag::SYN), case.pod(1));
    case.arrives(&bed, &case.stranger(flag::SYN)).assert_dropped(Reason::SourceRefused);
}

fn a_client_outside_every_source_range_is_dropped(case: Case) {
    let bed = Bed::new();
    case.with_range(bed.service()).external(case.vip()).backend_local(case.pod(1)).install();
    case.arrives(&bed, &case.stranger(flag::SYN)).assert_dropped(Reason::SourceRefused);
    assert!(bed.flows(FlowTable::New).is_empty());
}

fn a_source_range_is_one_service_s_own(case: Case) {
    let bed = Bed::new();
    let other = SocketAddr::new(case.family.pick("203.0.113.9", "2001:db8:113::9"), VIP_PORT);
    case.with_range(bed.service()).external(other).backend_local(case.pod(2)).install();
    let (elsewhere, length) = case.elsewhere();
    bed.service().source_range(elsewhere, length).external(case.vip()).backend_local(case.pod(1)).install();
    case.arrives(&bed, &case.tcp(flag::SYN)).assert_dropped(Reason::SourceRefused);
}

fn source_ranges_are_checked_before_the_endpoints(case: Case) {
    let bed = Bed::new();
    case.with_range(bed.service()).external(case.vip()).install();
    case.arrives(&bed, &case.stranger(flag::SYN)).assert_dropped(Reason::SourceRefused);
    case.arrives(&bed, &case.tcp(flag::SYN)).assert_counted(Reason::NoEndpoint);
}

fn a_client_outside_is_dropped_in_mid_connection_too(case: Case) {
    let bed = Bed::new();
    case.with_range(bed.service()).external(case.vip()).backend_local(case.pod(1)).install();
    case.reaches(&bed, &case.tcp(flag::SYN), case.pod(1));
    // The owner closes the Service to all clients.
    bed.clear_source_ranges();
    case.arrives(&bed, &case.tcp(flag::ACK)).assert_dropped(Reason::SourceRefused);
}

fn a_director_checks_the_source_ranges_before_it_encapsulates(case: Case) {
    let bed = Bed::new();
    let way = bed.way(resolved_way(case.family.node(1), case.family.node(2)));
    let remote = case.remote_pod(1);
    case.with_range(bed.service()).dsr().external(case.vip()).backend_remote(remote, way).install();
    case.arrives(&bed, &case.stranger(flag::SYN)).assert_dropped(Reason::SourceRefused);
    case.arrives(&bed, &case.tcp(flag::SYN)).assert_counted(Reason::SentDsr);
}

fn a_client_inside_the_cluster_gets_the_cluster_list_of_a_local_frontend(case: Case) {
    let bed = Bed::new();
    let service =
        bed.service().policy_local().external(case.vip()).backend_remote(case.remote_pod(1), 1).install();
    bed.hop(case.remote_pod(1), known_hop(case.family.node(1)));
    let before = bed.service_counter(service.cluster_id);
    case.arrives(&bed, &case.tcp(flag::SYN)).assert_dropped(Reason::NoLocalEndpoint);
    let (prefix, length) = case.clients();
    bed.cluster_source(prefix, length);
    case.arrives(&bed, &case.tcp(flag::SYN)).assert_counted(Reason::SentSnat);
    case.arrives(&bed, &case.stranger(flag::SYN)).assert_dropped(Reason::NoLocalEndpoint);
    assert_eq!(
        bed.service_counter(service.cluster_id).packets,
        before.packets + 1,
        "a dropped packet counts for no backend"
    );

    let bed = Bed::new();
    bed.cluster_source(prefix, length);
    let service = bed.service().policy_local().external(case.vip());
    let service = service.backend_local(case.pod(1)).backend_remote(case.remote_pod(1), 1).install();
    bed.hop(case.remote_pod(1), known_hop(case.family.node(1)));
    let before = bed.service_counter(service.cluster_id).packets;
    let reasons: Vec<bool> = (40000..40032)
        .map(|port| {
            case.arrives(&bed, &case.tcp_from(port, flag::SYN)).counts.of(Reason::SentSnat).packets > 0
        })
        .collect();
    assert!(reasons.contains(&true) && reasons.contains(&false), "both backends are in use: {reasons:?}");
    assert!(bed.service_counter(service.cluster_id).packets > before);
}

/// A node's address may stand for a pod that the node masquerades.
fn another_node_gets_the_local_list_of_a_local_frontend_but_counts_as_inside(case: Case) {
    let bed = Bed::new();
    bed.node_source(case.client().ip());
    let service = bed.service().policy_local().external(case.vip());
    service.backend_remote(case.remote_pod(1), 1).install();
    bed.hop(case.remote_pod(1), known_hop(case.family.node(1)));
    case.arrives(&bed, &case.tcp(flag::SYN)).assert_dropped(Reason::NoLocalEndpoint);

    let bed = Bed::new();
    bed.node_source(case.client().ip());
    let service = bed.service().policy_local().external(case.vip());
    service.backend_local(case.pod(1)).backend_remote(case.remote_pod(1), 1).install();
    for port in 40000..40016 {
        case.reaches(&bed, &case.tcp_from(port, flag::SYN), case.pod(1));
    }

    // A ClusterIP for clients inside the cluster only.
    let bed = Bed::new();
    bed.node_source(case.client().ip());
    bed.service().cluster_ip().inside_only().external(case.vip()).backend_local(case.pod(1)).install();
    case.reaches(&bed, &case.tcp(flag::SYN), case.pod(1));
}

fn a_client_inside_the_cluster_gets_the_only_list_of_a_frontend(case: Case) {
    let bed = Bed::new();
    let (prefix, length) = case.clients();
    bed.cluster_source(prefix, length);
    let service = bed.service().policy_local().without_cluster_list();
    service.external(case.vip()).backend_remote(case.remote_pod(1), 1).install();
    case.arrives(&bed, &case.tcp(flag::SYN)).assert_dropped(Reason::NoLocalEndpoint);
}

fn a_frontend_for_clients_inside_the_cluster_serves_no_others(case: Case) {
    let bed = Bed::new();
    bed.service().cluster_ip().inside_only().external(case.vip()).backend_local(case.pod(1)).install();
    case.arrives(&bed, &case.tcp(flag::SYN)).assert_dropped(Reason::SourceRefused);
    case.arrives(&bed, &case.tcp(flag::ACK)).assert_dropped(Reason::SourceRefused);
    let (prefix, length) = case.clients();
    bed.cluster_source(prefix, length);
    case.reaches(&bed, &case.tcp(flag::SYN), case.pod(1));
    case.arrives(&bed, &case.stranger(flag::SYN)).assert_dropped(Reason::SourceRefused);
}

fn a_client_inside_the_cluster_keeps_to_the_local_list_of_a_cluster_ip(case: Case) {
    let bed = Bed::new();
    let (prefix, length) = case.clients();
    bed.cluster_source(prefix, length);
    let service = bed.service().policy_local().cluster_ip().external(case.vip());
    service.backend_local(case.pod(1)).backend_remote(case.remote_pod(1), 1).install();
    for port in 40000..40016 {
        case.reaches(&bed, &case.tcp_from(port, flag::SYN), case.pod(1));
    }
}

fn source_ranges_hold_for_clients_inside_the_cluster_as_well(case: Case) {
    let bed = Bed::new();
    bed.cluster_source(case.client().ip(), 16);
    let (elsewhere, length) = case.elsewhere();
    let service = bed.service().policy_local().source_range(elsewhere, length).external(case.vip());
    service.backend_local(case.pod(1)).install();
    case.arrives(&bed, &case.tcp(flag::SYN)).assert_dropped(Reason::SourceRefused);
}

/// A service with affinity and two backends on this node, and the slot of the client.
struct Loyal {
    bed: Bed,
    case: Case,
    service: Service,
    kept: SocketAddr,
    other: SocketAddr,
}

impl Loyal {
    /// Opens the client's first connection.
    fn new(case: Case) -> Self {
        let bed = Bed::new();
        let service = bed.service().affinity().external(case.vip());
        let service = service.backend_local(case.pod(1)).backend_local(case.pod(2)).install();
        let kept = service.choice(&case.tcp(flag::SYN)).at;
        let other = if kept == case.pod(1) { case.pod(2) } else { case.pod(1) };
        let loyal = Self { bed, case, service, kept, other };
        loyal.opens(40000, kept);
        loyal
    }
    /// SYN, SYN-ACK, ACK.
    #[track_caller]
    fn opens(&self, port: u16, backend: SocketAddr) {
        self.case.reaches(&self.bed, &self.case.tcp_from(port, flag::SYN), backend);
        self.bed.answer_all();
        self.case.reaches(&self.bed, &self.case.tcp_from(port, flag::ACK), backend);
    }
    /// Opens the client's next connection and returns its backend.
    fn opens_somewhere(&self, port: u16) -> SocketAddr {
        let mut reached = None;
        for flags in [flag::SYN, flag::ACK] {
            let to = self.case.arrives(&self.bed, &self.case.tcp_from(port, flags)).frame().destination();
            assert_eq!(*reached.get_or_insert(to), to);
            self.bed.answer_all();
        }
        reached.unwrap()
    }
    fn gives_slot_to(&self, owner: SocketAddr) {
        let owner = self.bed.backend_local(owner);
        self.service.set_slot(&self.bed, &self.case.tcp(flag::SYN), Slot::settled_on(owner));
    }
}

fn a_client_keeps_its_backend_when_its_slot_gets_another_owner(case: Case) {
    let loyal = Loyal::new(case);
    loyal.gives_slot_to(loyal.other);
    loyal.opens(40001, loyal.kept);
    loyal.opens(40002, loyal.kept);
    loyal.bed.rewrite_affinity(|entry| entry.backend = BackendRef::NONE.0);
    loyal.opens(40003, loyal.other);
    loyal.gives_slot_to(loyal.kept);
    loyal.opens(40004, loyal.other);
}

fn a_client_keeps_its_backend_over_all_frontends_of_a_service_port(case: Case) {
    let bed = Bed::new();
    let second = SocketAddr::new(case.family.pick("203.0.113.2", "2001:db8:113::2"), 81);
    let service = bed.service().affinity().external(case.vip()).external(second);
    let service = service.backend_local(case.pod(1)).backend_local(case.pod(2)).install();
    let syn = case.tcp(flag::SYN);
    let kept = service.choice(&syn).at;
    let other = if kept == case.pod(1) { case.pod(2) } else { case.pod(1) };
    case.reaches(&bed, &syn, kept);
    bed.answer_all();
    case.reaches(&bed, &case.tcp(flag::ACK), kept);
    service.set_slot(&bed, &syn, Slot::settled_on(bed.backend_local(other)));
    case.reaches(&bed, &Frame::ip(case.client().ip(), second.ip()).tcp(40001, 81, flag::SYN), kept);
}

fn an_affinity_ends_with_its_time(case: Case) {
    let loyal = Loyal::new(case);
    loyal.gives_slot_to(loyal.other);
    // The fixture's services have 10800 seconds.
    loyal.bed.rewrite_affinity(|entry| entry.last_used = entry.last_used.wrapping_sub(10_700));
    loyal.opens(40001, loyal.kept);
    // After the time-out any backend may be chosen, not only the slot's owner.
    loyal.gives_slot_to(loyal.kept);
    let mut reached = Vec::new();
    for port in 40002..40100 {
        let expire =
            |entry: &mut Affinity| entry.last_used = entry.last_used.wrapping_sub(10_900 + u32::from(port));
        loyal.bed.rewrite_affinity(expire);
        reached.push(loyal.opens_somewhere(port));
        let last = *reached.last().unwrap();
        loyal.opens(port + 1000, last);
    }
    assert!([loyal.kept, loyal.other].iter().all(|backend| reached.contains(backend)), "{reached:?}");
}

fn connections_that_begin_at_once_after_an_affinity_has_ended_go_to_one_backend(case: Case) {
    for seconds in 10_900..10_920 {
        let loyal = Loyal::new(case);
        loyal.bed.rewrite_affinity(|entry| entry.last_used = entry.last_used.wrapping_sub(seconds));
        let to = |port| case.arrives(&loyal.bed, &case.tcp_from(port, flag::SYN)).frame().destination();
        assert_eq!(to(40001), to(40002));
    }
}

fn a_client_with_only_a_syn_has_no_affinity(case: Case) {
    let bed = Bed::new();
    let service = bed.service().affinity().external(case.vip());
    let service = service.backend_local(case.pod(1)).backend_local(case.pod(2)).install();
    let backend = service.choice(&case.tcp(flag::SYN)).at;
    case.reaches(&bed, &case.tcp(flag::SYN), backend);
    // The ACK is forged, because no backend has answered.
    case.reaches(&bed, &case.tcp(flag::ACK), backend);
    assert_eq!(bed.affinities(), []);
    bed.answer_all();
    case.reaches(&bed, &case.tcp(flag::ACK), backend);
    assert_eq!(bed.affinities().len(), 1);
}

fn a_client_of_datagrams_has_an_affinity_from_the_first_one_on(case: Case) {
    let bed = Bed::new();
    let service = bed.service().udp().affinity().external(case.vip());
    let service = service.backend_local(case.pod(1)).backend_local(case.pod(2)).install();
    case.reaches(&bed, &case.udp(), service.choice(&case.udp()).at);
    assert_eq!(bed.affinities().len(), 1);
}

fn each_new_connection_renews_an_affinity_and_no_other_packet_does(case: Case) {
    let loyal = Loyal::new(case);
    let time = || loyal.bed.affinities().first().unwrap().last_used;
    let begin = time();
    let age = |seconds: u32| {
        loyal.bed.rewrite_affinity(|entry| entry.last_used = entry.last_used.wrapping_sub(seconds));
    };
    age(100);
    loyal.case.reaches(&loyal.bed, &case.tcp(flag::ACK), loyal.kept);
    // A connection that is met in its middle is no new one.
    loyal.case.reaches(&loyal.bed, &case.tcp_from(40009, flag::ACK), loyal.kept);
    assert_eq!(time(), begin.wrapping_sub(100));
    loyal.opens(40001, loyal.kept);
    assert!(time() >= begin);
    assert_eq!(loyal.bed.affinities().len(), 1);
}

fn a_backend_that_is_gone_is_chosen_anew(case: Case) {
    let loyal = Loyal::new(case);
    loyal.gives_slot_to(loyal.other);
    loyal.bed.retire_backend(loyal.kept);
    loyal.opens(40001, loyal.other);
    // The backend's id belongs to another endpoint later.
    let loyal = Loyal::new(case);
    loyal.gives_slot_to(loyal.other);
    loyal.bed.replace_backend(loyal.kept, case.pod(7));
    loyal.opens(40001, loyal.other);
}

fn a_backend_that_left_the_list_is_chosen_anew_though_it_is_ready(case: Case) {
    let loyal = Loyal::new(case);
    loyal.gives_slot_to(loyal.other);
    loyal.service.forget_member(&loyal.bed, loyal.bed.backend_local(loyal.kept));
    loyal.opens(40001, loyal.other);
    loyal.opens(40002, loyal.other);
}

fn a_backend_that_terminates_is_kept_while_the_list_has_it(case: Case) {
    let loyal = Loyal::new(case);
    loyal.gives_slot_to(loyal.other);
    for pod in [loyal.kept, loyal.other] {
        loyal.bed.set_backend_flags(pod, BACKEND_EXISTS | BACKEND_LOCAL | BACKEND_SERVING);
    }
    loyal.opens(40001, loyal.kept);
    loyal.service.forget_member(&loyal.bed, loyal.bed.backend_local(loyal.kept));
    loyal.opens(40002, loyal.other);
}

fn an_affinity_does_not_leave_the_local_list(case: Case) {
    let bed = Bed::new();
    let way = bed.way(resolved_way(case.family.node(1), case.family.node(2)));
    let service = bed.service().affinity().policy_local().external(case.vip());
    service.backend_local(case.pod(1)).backend_remote(case.remote_pod(1), way).install();
    case.reaches(&bed, &case.tcp(flag::SYN), case.pod(1));
    bed.answer_all();
    case.reaches(&bed, &case.tcp(flag::ACK), case.pod(1));
    assert_eq!(bed.affinities().len(), 1);
    let remote = bed.backend_remote(case.remote_pod(1), way);
    bed.rewrite_affinity(|entry| entry.backend = remote.0);
    case.reaches(&bed, &case.tcp_from(40001, flag::SYN), case.pod(1));
}

fn an_affinity_of_another_service_is_not_believed(case: Case) {
    let loyal = Loyal::new(case);
    loyal.gives_slot_to(loyal.other);
    loyal.bed.rewrite_affinity(|entry| entry.service += 1);
    loyal.opens(40001, loyal.other);
}

fn a_director_with_affinity_keeps_a_client_s_backend_and_its_connections(case: Case) {
    let bed = Bed::new();
    let ways = [2, 3].map(|node| bed.way(resolved_way(case.family.node(1), case.family.node(node))));
    let service = bed.service().dsr().affinity().external(case.vip());
    let service = service.backend_remote(case.remote_pod(1), ways[0]);
    let service = service.backend_remote(case.remote_pod(2), ways[1]).install();
    let syn = case.tcp(flag::SYN);
    let first = service.choice(&syn);
    let other = service.endpoints.iter().find(|endpoint| **endpoint != first).unwrap();
    let goes_to_first = |frame: &Frame| {
        let outcome = case.arrives(&bed, frame);
        outcome.assert_counted(Reason::SentDsr);
        let entry = bed.flow_of(FlowTable::Established, frame).or(bed.flow_of(FlowTable::New, frame));
        assert_eq!(entry.unwrap().backend, first.reference);
    };
    goes_to_first(&syn);
    service.set_slot(&bed, &syn, Slot::settled_on(other.reference));
    goes_to_first(&case.tcp(flag::ACK));
    goes_to_first(&case.tcp_from(40001, flag::SYN));
    goes_to_first(&case.tcp_from(40001, flag::ACK));
}

fn a_director_chooses_again_if_no_hint_names_the_clients_backend(case: Case) {
    let bed = Bed::new();
    let way = bed.way(resolved_way(case.family.node(1), case.family.node(2)));
    let service = bed.service().dsr().affinity().external(case.vip());
    let service = service.backend_remote(case.remote_pod(1), way).backend_remote(case.remote_pod(2), way);
    let service = service.install();
    let syn = case.tcp(flag::SYN);
    let first = service.choice(&syn);
    let other = service.endpoints.iter().find(|endpoint| **endpoint != first).unwrap();
    case.arrives(&bed, &syn).assert_counted(Reason::SentDsr);
    case.arrives(&bed, &case.tcp(flag::ACK)).assert_counted(Reason::SentDsr);
    assert_eq!(bed.affinities().len(), 1);
    service.set_slot(&bed, &syn, Slot::settled_on(other.reference));
    bed.set_backend_hint(first.at, 0);
    let next = case.tcp_from(40001, flag::SYN);
    case.arrives(&bed, &next).assert_counted(Reason::SentDsr);
    assert_eq!(bed.flow_of(FlowTable::New, &next).unwrap().backend, other.reference);
}
