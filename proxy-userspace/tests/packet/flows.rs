//! Flow entries: their tables, their states, and their expiry.

use millrace_lab::frame::{FIRST_NUMBER, Frame, flag};
use millrace_lab::program::{Bed, FlowEntry, FlowTable};
use proxy_common::flow::{
    FLOW_CLOSING, FLOW_DATAGRAM, FLOW_ESTABLISHED, FLOW_REPLY, FLOW_REWRITE_DESTINATION, FLOW_REWRITE_SOURCE,
    FLOW_SYN,
};
use proxy_common::selection::Slot;
use proxy_common::timeouts::{FLOW_RENEWAL, Timeouts};
use proxy_common::verdict::Reason;

use crate::case::{Case, each_client};

each_client! {
    a_syn_makes_two_embryos
    the_clients_next_packet_promotes_the_connection
    a_backends_answer_alone_promotes_nothing
    a_client_that_has_not_seen_the_backends_answer_promotes_nothing
    a_datagram_is_promoted_by_the_second_one
    fins_of_both_sides_close_the_connection
    a_client_may_ask_the_backend_itself_by_the_port_of_a_connection_that_is_over
    a_half_closed_connection_stays_established
    a_reset_closes_the_connection_at_once
    later_packets_renew_a_closing_connection
    a_syn_reopens_a_closing_connection_at_the_current_owner
    entries_expire_after_the_time_of_their_state
    a_reply_of_an_expired_connection_is_not_ours
    an_entry_of_a_replaced_backend_counts_as_none
    an_entry_of_a_backend_that_is_gone_counts_as_none
    two_frontends_of_one_backend_distinguish_the_same_client_port
    a_reset_closes_a_connection_whose_port_was_translated
    a_forged_reset_is_forgotten_with_the_next_packet
    a_connection_met_in_the_middle_is_an_established_embryo
    a_reset_of_an_unknown_connection_leaves_no_entry
    an_entry_that_holds_another_client_is_not_believed
    an_evicted_reply_entry_comes_back_with_the_renewal
    a_packet_writes_its_time_only_into_an_entry_that_is_old_enough
}

/// Returns a bed with a Service with one backend on this node.
pub fn bed_with_service(case: Case) -> Bed {
    let bed = Bed::new();
    bed.service().external(case.vip()).backend_local(case.pod(1)).install();
    bed.service().udp().external(case.vip()).backend_local(case.pod(1)).install();
    bed
}

/// Sends the client's packet and returns its entry, wherever it is.
#[track_caller]
pub fn client_entry(case: Case, bed: &Bed, frame: &Frame) -> FlowEntry {
    case.arrives(bed, frame).assert_counted(case.served());
    entry_of(bed, frame)
}

#[track_caller]
fn entry_of(bed: &Bed, frame: &Frame) -> FlowEntry {
    let found = bed.flow_of(FlowTable::Established, frame).or_else(|| bed.flow_of(FlowTable::New, frame));
    found.unwrap_or_else(|| panic!("no entry for {} > {}", frame.source(), frame.destination()))
}

/// Sends the backend's answer to a client's packet.
#[track_caller]
pub fn backend_answers(case: Case, bed: &Bed, flags: u8) {
    let reply = case.tcp(flags).with_destination(case.pod(1)).reply();
    bed.send(case.way_out(), &reply).assert_counted(Reason::Reply);
}

/// SYN, SYN-ACK, ACK.
#[track_caller]
pub fn handshake(case: Case, bed: &Bed) {
    case.arrives(bed, &case.tcp(flag::SYN)).assert_counted(case.served());
    backend_answers(case, bed, flag::SYN | flag::ACK);
    case.arrives(bed, &case.tcp(flag::ACK)).assert_counted(case.served());
}

/// Returns the numbers of entries in FLOWS_NEW and FLOWS.
pub fn table_sizes(bed: &Bed) -> (usize, usize) {
    (bed.flows(FlowTable::New).len(), bed.flows(FlowTable::Established).len())
}

fn a_syn_makes_two_embryos(case: Case) {
    let bed = bed_with_service(case);
    let syn = case.tcp(flag::SYN);
    let forward = client_entry(case, &bed, &syn);
    let reply = entry_of(&bed, &syn.clone().with_destination(case.pod(1)).reply());
    assert_eq!(table_sizes(&bed), (2, 0));
    assert_eq!((forward.state, forward.flags), (FLOW_SYN, FLOW_REWRITE_DESTINATION));
    assert_eq!((forward.new_destination, forward.backend), (case.pod(1), bed.backend_local(case.pod(1))));
    assert_eq!((reply.state, reply.flags), (FLOW_SYN, FLOW_REWRITE_SOURCE | FLOW_REPLY));
    assert_eq!(
        (reply.new_source, reply.backend, reply.service),
        (case.vip(), forward.backend, forward.service)
    );
}

fn the_clients_next_packet_promotes_the_connection(case: Case) {
    let bed = bed_with_service(case);
    handshake(case, &bed);
    assert_eq!(table_sizes(&bed), (0, 2));
    assert!(bed.flows(FlowTable::Established).iter().all(|entry| entry.state == FLOW_ESTABLISHED));
}

fn a_backends_answer_alone_promotes_nothing(case: Case) {
    let bed = bed_with_service(case);
    case.arrives(&bed, &case.tcp(flag::SYN));
    backend_answers(case, &bed, flag::SYN | flag::ACK);
    // A repeated SYN is no answer either.
    case.arrives(&bed, &case.tcp(flag::SYN));
    assert_eq!(table_sizes(&bed), (2, 0));
}

fn a_datagram_is_promoted_by_the_second_one(case: Case) {
    let bed = bed_with_service(case);
    let state = client_entry(case, &bed, &case.udp()).state;
    assert_eq!((state, table_sizes(&bed)), (FLOW_DATAGRAM, (2, 0)));
    let state = client_entry(case, &bed, &case.udp()).state;
    assert_eq!((state, table_sizes(&bed)), (FLOW_DATAGRAM, (0, 2)));
}

fn fins_of_both_sides_close_the_connection(case: Case) {
    let bed = bed_with_service(case);
    handshake(case, &bed);
    backend_answers(case, &bed, flag::FIN | flag::ACK);
    assert_eq!(client_entry(case, &bed, &case.tcp(flag::FIN | flag::ACK)).state, FLOW_CLOSING);
    assert!(bed.flows(FlowTable::Established).iter().all(|entry| entry.state == FLOW_CLOSING));
}

fn a_client_may_ask_the_backend_itself_by_the_port_of_a_connection_that_is_over(case: Case) {
    let bed = bed_with_service(case);
    handshake(case, &bed);
    backend_answers(case, &bed, flag::FIN | flag::ACK);
    client_entry(case, &bed, &case.tcp(flag::FIN | flag::ACK));
    for flags in [flag::SYN | flag::ACK, flag::ACK] {
        let reply = case.tcp(flags).with_destination(case.pod(1)).reply();
        bed.send(case.way_out(), &reply).assert_passed(&reply).assert_counted(Reason::NotOurs);
    }
    assert_eq!(table_sizes(&bed), (0, 0));
    // And by the frontend again.
    handshake(case, &bed);
    assert_eq!(table_sizes(&bed), (0, 2));
}

fn a_half_closed_connection_stays_established(case: Case) {
    let bed = bed_with_service(case);
    handshake(case, &bed);
    assert_eq!(client_entry(case, &bed, &case.tcp(flag::FIN | flag::ACK)).state, FLOW_ESTABLISHED);
    // A download continues after the client's last data.
    for _ in 0..3 {
        bed.age_flows(Timeouts::default().closing + 60);
        backend_answers(case, &bed, flag::ACK);
        assert_eq!(client_entry(case, &bed, &case.tcp(flag::ACK)).state, FLOW_ESTABLISHED);
    }
}

fn a_reset_closes_the_connection_at_once(case: Case) {
    let bed = bed_with_service(case);
    handshake(case, &bed);
    backend_answers(case, &bed, flag::RST);
    assert_eq!(entry_of(&bed, &case.tcp(flag::ACK)).state, FLOW_CLOSING);

    let bed = bed_with_service(case);
    handshake(case, &bed);
    assert_eq!(client_entry(case, &bed, &case.tcp(flag::RST)).state, FLOW_CLOSING);
}

fn later_packets_renew_a_closing_connection(case: Case) {
    let bed = bed_with_service(case);
    handshake(case, &bed);
    backend_answers(case, &bed, flag::FIN | flag::ACK);
    let before = client_entry(case, &bed, &case.tcp(flag::FIN | flag::ACK)).last_seen;
    let nearly = Timeouts::default().closing - 2;
    bed.age_flows(nearly);
    let after = client_entry(case, &bed, &case.tcp(flag::ACK));
    assert_eq!(after.state, FLOW_CLOSING);
    assert!(after.last_seen >= before, "renewed: {} after {before}", after.last_seen);
    let reply = entry_of(&bed, &case.tcp(flag::ACK).with_destination(case.pod(1)).reply());
    assert_eq!(reply.last_seen, after.last_seen, "both directions are renewed together");
}

fn a_syn_reopens_a_closing_connection_at_the_current_owner(case: Case) {
    let bed = Bed::new();
    let service =
        bed.service().external(case.vip()).backend_local(case.pod(1)).backend_local(case.pod(2)).install();
    let syn = case.tcp(flag::SYN);
    service.set_slot(&bed, &syn, Slot::settled_on(bed.backend_local(case.pod(1))));
    handshake(case, &bed);
    case.arrives(&bed, &case.tcp(flag::RST));
    service.set_slot(&bed, &syn, Slot::settled_on(bed.backend_local(case.pod(2))));
    case.is_delivered(&bed, &syn, &syn.clone().with_destination(case.pod(2)), case.served());
    let entry = bed.flow_of(FlowTable::New, &syn).unwrap();
    assert_eq!((entry.state, entry.new_destination), (FLOW_SYN, case.pod(2)));
    assert_eq!(bed.flow_of(FlowTable::Established, &syn), None, "the closed one is gone");
}

/// These time-outs are short enough for a machine that started a minute ago: no entry can be older
/// than the clock.
const TIMES: Timeouts = Timeouts { syn: 12, established: 24, closing: 6, datagram: 12 };

fn entries_expire_after_the_time_of_their_state(case: Case) {
    let establish: fn(Case, &Bed) = |case, bed| handshake(case, bed);
    let open: fn(Case, &Bed) = |case, bed| drop(case.arrives(bed, &case.tcp(flag::SYN)));
    let reset: fn(Case, &Bed) = |case, bed| {
        handshake(case, bed);
        case.arrives(bed, &case.tcp(flag::RST));
    };
    for (prepare, seconds) in [(open, TIMES.syn), (establish, TIMES.established), (reset, TIMES.closing)] {
        for (age, expected) in [(seconds - 2, case.pod(1)), (seconds + 2, case.pod(2))] {
            let bed = Bed::builder().timeouts(TIMES).load();
            let (one, two) = (bed.backend_local(case.pod(1)), bed.backend_local(case.pod(2)));
            let service = bed
                .service()
                .external(case.vip())
                .backend_local(case.pod(1))
                .backend_local(case.pod(2))
                .install();
            let data = case.tcp(flag::ACK);
            service.set_slot(&bed, &data, Slot::settled_on(one));
            prepare(case, &bed);
            service.set_slot(&bed, &data, Slot::settled_on(two));
            bed.age_flows(age);
            case.is_delivered(&bed, &data, &data.clone().with_destination(expected), case.served());
        }
    }
}

fn a_reply_of_an_expired_connection_is_not_ours(case: Case) {
    let bed = Bed::builder().timeouts(TIMES).load();
    bed.service().external(case.vip()).backend_local(case.pod(1)).install();
    handshake(case, &bed);
    bed.age_flows(TIMES.established + 2);
    let reply = case.tcp(flag::ACK).with_destination(case.pod(1)).reply();
    bed.send(case.way_out(), &reply).assert_untouched().assert_counted(Reason::NotOurs);
}

fn an_entry_of_a_replaced_backend_counts_as_none(case: Case) {
    let bed = Bed::new();
    let service =
        bed.service().external(case.vip()).backend_local(case.pod(1)).backend_local(case.pod(2)).install();
    let data = case.tcp(flag::ACK);
    service.set_slot(&bed, &data, Slot::settled_on(bed.backend_local(case.pod(1))));
    handshake(case, &bed);
    // The id now names another endpoint. Connections of the old one must not reach it.
    bed.replace_backend(case.pod(1), case.pod(7));
    service.set_slot(&bed, &data, Slot::settled_on(bed.backend_local(case.pod(2))));
    case.is_delivered(&bed, &data, &data.clone().with_destination(case.pod(2)), case.served());
}

fn an_entry_of_a_backend_that_is_gone_counts_as_none(case: Case) {
    let bed = Bed::new();
    let service =
        bed.service().external(case.vip()).backend_local(case.pod(1)).backend_local(case.pod(2)).install();
    let data = case.tcp(flag::ACK);
    service.set_slot(&bed, &data, Slot::settled_on(bed.backend_local(case.pod(1))));
    handshake(case, &bed);
    bed.retire_backend(case.pod(1));
    case.arrives(&bed, &data).assert_dropped(Reason::NoBackend);
    service.set_slot(&bed, &data, Slot::settled_on(bed.backend_local(case.pod(2))));
    case.is_delivered(&bed, &data, &data.clone().with_destination(case.pod(2)), case.served());
}

/// The client's port opens another frontend of the same backend. The replies would be equal, so the
/// backend knows the second connection by another port.
fn two_frontends_of_one_backend_distinguish_the_same_client_port(case: Case) {
    let bed = bed_with_service(case);
    let second = (case.vip().ip(), 81).into();
    bed.service().external(second).backend_local(case.pod(1)).install();
    bed.service().udp().external(second).backend_local(case.pod(1)).install();
    handshake(case, &bed);
    case.arrives(&bed, &case.udp()).assert_counted(case.served());
    for (first, opening) in [(case.tcp(flag::ACK), case.tcp(flag::SYN)), (case.udp(), case.udp())] {
        let opening = opening.with_destination(second);
        let port = other_port(opening.source().port());
        let known_as = (opening.source().ip(), port).into();
        let delivered = opening.clone().with_source(known_as).with_destination(case.pod(1));
        for _ in 0..3 {
            case.is_delivered(&bed, &opening, &delivered, case.served());
            bed.send(case.way_out(), &delivered.clone().reply()).assert_passed(&opening.clone().reply());
        }
        let reply = first.clone().with_destination(case.pod(1)).reply();
        bed.send(case.way_out(), &reply).assert_passed(&first.reply());
    }
}

fn a_reset_closes_a_connection_whose_port_was_translated(case: Case) {
    let bed = bed_with_service(case);
    let second = (case.vip().ip(), 81).into();
    bed.service().external(second).backend_local(case.pod(1)).install();
    handshake(case, &bed);
    for flags in [flag::SYN, flag::ACK] {
        case.arrives(&bed, &case.tcp(flags).with_destination(second)).assert_counted(case.served());
    }
    let data = case.tcp(flag::ACK).with_destination(second);
    let known_as = (data.source().ip(), other_port(data.source().port())).into();
    let reset =
        data.clone().with_flags(flag::RST).with_source(known_as).with_destination(case.pod(1)).reply();
    bed.send(case.way_out(), &reset).assert_counted(Reason::Reply);
    assert_eq!(entry_of(&bed, &data).state, FLOW_CLOSING, "the backend's RST reaches the client's entry");
    assert_eq!(entry_of(&bed, &case.tcp(flag::ACK)).state, FLOW_ESTABLISHED, "the other connection's stays");
}

/// Returns the first port that is tried for a client whose own is taken.
fn other_port(own: u16) -> u16 {
    own.wrapping_add(0x6d2b) | 0x0400
}

fn a_forged_reset_is_forgotten_with_the_next_packet(case: Case) {
    let bed = bed_with_service(case);
    handshake(case, &bed);
    case.arrives(&bed, &case.tcp(flag::RST));
    bed.age_flows(1);
    assert_eq!(client_entry(case, &bed, &case.tcp(flag::ACK)).state, FLOW_ESTABLISHED);
    assert!(bed.flows(FlowTable::Established).iter().all(|entry| entry.state == FLOW_ESTABLISHED));
}

fn a_connection_met_in_the_middle_is_an_established_embryo(case: Case) {
    let bed = bed_with_service(case);
    let state = client_entry(case, &bed, &case.tcp(flag::ACK)).state;
    assert_eq!((state, table_sizes(&bed)), (FLOW_ESTABLISHED, (2, 0)));
    // A backend answers a packet without a connection by a RST.
    backend_answers(case, &bed, flag::RST);
    client_entry(case, &bed, &case.tcp(flag::ACK));
    assert_eq!(table_sizes(&bed), (2, 0));
    backend_answers(case, &bed, flag::ACK);
    client_entry(case, &bed, &case.tcp(flag::ACK).with_acknowledgement(FIRST_NUMBER + (2 << 20)));
    assert_eq!(table_sizes(&bed), (2, 0));
    // The packet acknowledges fewer bytes than are under way.
    client_entry(case, &bed, &case.tcp(flag::ACK).with_acknowledgement(FIRST_NUMBER - 100_000));
    assert_eq!(table_sizes(&bed), (0, 2));
}

fn a_client_that_has_not_seen_the_backends_answer_promotes_nothing(case: Case) {
    let bed = bed_with_service(case);
    let sends = |number| {
        case.arrives(&bed, &case.tcp(flag::ACK).with_acknowledgement(number)).assert_counted(case.served());
        table_sizes(&bed)
    };
    case.arrives(&bed, &case.tcp(flag::SYN)).assert_counted(case.served());
    assert_eq!(sends(FIRST_NUMBER + 1), (2, 0), "the backend has not answered");
    backend_answers(case, &bed, flag::SYN | flag::ACK);
    let wrong = [0, FIRST_NUMBER, FIRST_NUMBER + 0x2_0000, FIRST_NUMBER ^ 1 << 31];
    assert!(wrong.iter().all(|number| sends(*number) == (2, 0)));
    // A repeated packet of the backend, or one about a sequence number out of its window, confirms
    // nothing new.
    backend_answers(case, &bed, flag::SYN | flag::ACK);
    let reply = case.tcp(flag::ACK).with_destination(case.pod(1)).reply();
    bed.send(case.way_out(), &reply.with_sequence(FIRST_NUMBER + 1)).assert_counted(Reason::Reply);
    assert!(wrong.iter().all(|number| sends(*number) == (2, 0)));
    assert_eq!(sends(FIRST_NUMBER + 1), (0, 2));
}

fn a_reset_of_an_unknown_connection_leaves_no_entry(case: Case) {
    let bed = bed_with_service(case);
    let reset = case.tcp(flag::RST);
    case.is_delivered(&bed, &reset, &reset.clone().with_destination(case.pod(1)), case.served());
    assert_eq!(table_sizes(&bed), (0, 0));
}

/// The view of a reader whose entry the LRU map gave to another connection meanwhile.
fn an_entry_that_holds_another_client_is_not_believed(case: Case) {
    let bed = Bed::new();
    let service =
        bed.service().external(case.vip()).backend_local(case.pod(1)).backend_local(case.pod(2)).install();
    let data = case.tcp(flag::ACK);
    service.set_slot(&bed, &data, Slot::settled_on(bed.backend_local(case.pod(1))));
    handshake(case, &bed);
    bed.rewrite_flows(|entry| {
        let other =
            if entry.flags & FLOW_REPLY != 0 { &mut entry.new_destination } else { &mut entry.new_source };
        other.set_port(other.port() ^ 1);
    });
    let reply = data.clone().with_destination(case.pod(1)).reply();
    bed.send(case.way_out(), &reply).assert_untouched().assert_counted(Reason::NotOurs);
    service.set_slot(&bed, &data, Slot::settled_on(bed.backend_local(case.pod(2))));
    case.is_delivered(&bed, &data, &data.clone().with_destination(case.pod(2)), case.served());
}

fn an_evicted_reply_entry_comes_back_with_the_renewal(case: Case) {
    let bed = bed_with_service(case);
    handshake(case, &bed);
    let data = case.tcp(flag::ACK);
    let reply = data.clone().with_destination(case.pod(1)).reply();
    let before = entry_of(&bed, &reply);
    bed.forget_flow(&reply);
    bed.age_flows(FLOW_RENEWAL + 1);
    client_entry(case, &bed, &data);
    let after = entry_of(&bed, &reply);
    assert_eq!((after.new_source, after.flags, after.state), (before.new_source, before.flags, before.state));
}

fn a_packet_writes_its_time_only_into_an_entry_that_is_old_enough(case: Case) {
    let bed = bed_with_service(case);
    handshake(case, &bed);
    let data = case.tcp(flag::ACK);
    let reply = data.clone().with_destination(case.pod(1)).reply();
    let times = || [entry_of(&bed, &data), entry_of(&bed, &reply)].map(|entry| entry.last_seen);
    bed.age_flows(FLOW_RENEWAL - 2);
    let before = times();
    client_entry(case, &bed, &data);
    assert_eq!(times(), before, "the entries are young");
    bed.age_flows(3);
    client_entry(case, &bed, &data);
    let after = times();
    assert!(after.iter().zip(before).all(|(after, before)| *after >= before + FLOW_RENEWAL - 2), "{after:?}");
}
