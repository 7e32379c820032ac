//! Addresses of Services: ports that nothing serves, and echo requests.

use millrace_lab::frame::{Extension, Frame, Icmp, Layer, flag};
use millrace_lab::program::{Bed, Hook, Verdict};
use proxy_common::verdict::Reason;
use proxy_common::vip::{VIP_CLUSTER_IP, VIP_EXTERNAL, VIP_INSIDE_ONLY};

use crate::case::{Case, Family, each_client, each_family, each_ingress};

each_ingress! {
    an_address_for_clients_inside_does_not_answer_clients_outside
}

each_family! {
    an_address_for_clients_inside_answers_pods
}

each_client! {
    an_unknown_port_of_a_cluster_ip_is_refused
    an_unknown_port_of_an_external_address_is_refused_only_where_that_is_set
    with_refusals_off_every_unknown_port_is_left_to_the_stack
    an_address_of_no_service_is_left_to_the_stack_despite_the_filter
    an_unknown_port_is_refused_so_often_and_dropped_after_that
    a_known_port_is_served_beside_the_refusals
    a_protocol_that_no_service_has_is_refused_at_its_address
    an_unknown_protocol_to_another_address_is_left_to_the_stack
    an_echo_request_to_a_services_address_is_answered
    an_echo_request_with_refusals_off_is_answered
    echo_requests_that_must_not_be_answered_are_untouched
    other_messages_to_a_services_address_are_untouched
    a_truncated_echo_request_is_untouched
}

impl Case {
    fn unknown_ports(self) -> [Frame; 3] {
        let to = |frame: Frame| frame.with_destination((self.vip().ip(), 81).into());
        [to(self.tcp(flag::SYN)), to(self.tcp(flag::ACK)), to(self.udp())]
    }

    /// Returns a bed with a Service at the address that refuses these kinds of packets.
    fn bed_with_vip(self, kinds: u32, refused: u32) -> Bed {
        let bed = Bed::builder().reject_unknown(refused).load();
        bed.service().external(self.vip()).backend_local(self.pod(1)).install();
        bed.vip(self.vip().ip(), kinds);
        bed
    }

    #[track_caller]
    fn is_refused_with_an_error(self, bed: &Bed, frame: &Frame) {
        let error = frame.icmp_error(self.vip().ip(), self.family.port_unreachable());
        self.arrives(bed, frame).assert_sent(&error).assert_counted(Reason::UnknownPort);
    }

    /// Returns an echo request, and its echo.
    pub fn echo(self, payload: &'static [u8]) -> (Frame, Frame) {
        let (request, reply) = if self.family == Family::V4 { (8, 0) } else { (128, 129) };
        let ip = Frame::ip(self.client().ip(), self.vip().ip()).with_hop_limit(57);
        let message = |kind| Icmp { kind, code: 0, rest: [0x12, 0x34, 0, 7] };
        let sent = ip.clone().layer(message(request)).payload(payload);
        let answered = ip.layer(message(reply)).payload(payload).reply().with_hop_limit(64);
        (sent, answered)
    }
}

fn an_unknown_port_of_a_cluster_ip_is_refused(case: Case) {
    let bed = case.bed_with_vip(VIP_CLUSTER_IP, VIP_CLUSTER_IP);
    for frame in case.unknown_ports() {
        case.is_refused_with_an_error(&bed, &frame);
    }
}

fn an_unknown_port_of_an_external_address_is_refused_only_where_that_is_set(case: Case) {
    let all = case.bed_with_vip(VIP_EXTERNAL, VIP_CLUSTER_IP | VIP_EXTERNAL);
    let cluster_ips = case.bed_with_vip(VIP_EXTERNAL, VIP_CLUSTER_IP);
    for frame in case.unknown_ports() {
        case.is_refused_with_an_error(&all, &frame);
        case.arrives(&cluster_ips, &frame).assert_untouched().assert_counted(Reason::NotOurs);
    }
}

fn with_refusals_off_every_unknown_port_is_left_to_the_stack(case: Case) {
    let bed = case.bed_with_vip(VIP_CLUSTER_IP, 0);
    for frame in case.unknown_ports() {
        case.arrives(&bed, &frame).assert_untouched().assert_counted(Reason::NotOurs);
    }
}

fn an_address_of_no_service_is_left_to_the_stack_despite_the_filter(case: Case) {
    let bed = case.bed_with_vip(VIP_CLUSTER_IP, VIP_CLUSTER_IP);
    bed.forget_vip(case.vip().ip());
    for frame in case.unknown_ports().into_iter().chain([case.echo(b"ping").0]) {
        case.arrives(&bed, &frame).assert_untouched().assert_counted(Reason::NotOurs);
    }
}

fn an_unknown_port_is_refused_so_often_and_dropped_after_that(case: Case) {
    let bed = case.bed_with_vip(VIP_CLUSTER_IP, VIP_CLUSTER_IP);
    case.exhaust_icmp(&bed);
    for frame in case.unknown_ports() {
        case.arrives(&bed, &frame).assert_dropped(Reason::UnknownPort);
    }
}

fn a_known_port_is_served_beside_the_refusals(case: Case) {
    let bed = case.bed_with_vip(VIP_CLUSTER_IP, VIP_CLUSTER_IP);
    let syn = case.tcp(flag::SYN);
    case.is_delivered(&bed, &syn, &syn.clone().with_destination(case.pod(1)), case.served());
}

fn an_echo_request_to_a_services_address_is_answered(case: Case) {
    for kind in [VIP_CLUSTER_IP, VIP_EXTERNAL] {
        let bed = case.bed_with_vip(kind, VIP_CLUSTER_IP);
        for payload in [&b""[..], b"odd", &[0xa5; 56], &[0; 1400]] {
            let (sent, answered) = case.echo(payload);
            let outcome = case.arrives(&bed, &sent);
            outcome.assert_sent(&answered).assert_counted(Reason::Echo);
            let back = if case.hook == Hook::XdpIngress { Verdict::Transmit } else { Verdict::Redirect };
            assert_eq!(outcome.verdict, back);
        }
    }
}

fn an_echo_request_with_refusals_off_is_answered(case: Case) {
    let bed = case.bed_with_vip(VIP_EXTERNAL, 0);
    let (sent, answered) = case.echo(b"ping");
    case.arrives(&bed, &sent).assert_sent(&answered).assert_counted(Reason::Echo);
}

fn echo_requests_that_must_not_be_answered_are_untouched(case: Case) {
    let bed = case.bed_with_vip(VIP_EXTERNAL, VIP_CLUSTER_IP);
    let (sent, _) = case.echo(b"ping");
    let unspecified = case.family.pick("0.0.0.0", "::");
    let multicast = case.family.pick("224.0.0.1", "ff02::1");
    let mut with_header = sent.clone();
    if case.family == Family::V6 {
        with_header.layers.insert(1, Extension::destination_options(1).into());
    } else if let millrace_lab::frame::Layer::Ipv4(ip) = with_header.innermost_mut() {
        ip.options = vec![7, 4, 4, 1].into();
    }
    for frame in [
        Frame { destination_mac: [0xff; 6], ..sent.clone() },
        sent.clone().with_source((unspecified, 0).into()),
        sent.with_source((multicast, 0).into()),
        with_header,
    ] {
        case.arrives(&bed, &frame).assert_untouched().assert_counted(Reason::NotOurs);
    }
}

/// Returns a bed with a ClusterIP for clients inside the cluster only, and packets to it besides
/// those to the Service's own port.
fn closed(case: Case) -> (Bed, [Frame; 5]) {
    let bed = case.bed_with_vip(VIP_CLUSTER_IP | VIP_INSIDE_ONLY, VIP_CLUSTER_IP);
    let [syn, ack, datagram] = case.unknown_ports();
    (bed, [syn, ack, datagram, of_protocol(case, 47), case.echo(b"ping").0])
}

fn an_address_for_clients_inside_does_not_answer_clients_outside(case: Case) {
    let (bed, frames) = closed(case);
    for frame in &frames {
        case.arrives(&bed, frame).assert_dropped(Reason::SourceRefused);
    }
    bed.cluster_source(case.client().ip(), if case.family == Family::V4 { 32 } else { 128 });
    for frame in &case.unknown_ports() {
        case.is_refused_with_an_error(&bed, frame);
    }
    let (sent, answered) = case.echo(b"ping");
    case.arrives(&bed, &sent).assert_sent(&answered).assert_counted(Reason::Echo);
}

fn an_address_for_clients_inside_answers_pods(family: Family) {
    let case = Case { hook: Hook::TcPodIn, family };
    let (bed, _) = closed(case);
    for frame in &case.unknown_ports() {
        case.is_refused_with_an_error(&bed, frame);
    }
    let (sent, answered) = case.echo(b"ping");
    case.arrives(&bed, &sent).assert_sent(&answered).assert_counted(Reason::Echo);
}

fn other_messages_to_a_services_address_are_untouched(case: Case) {
    let bed = case.bed_with_vip(VIP_EXTERNAL, VIP_CLUSTER_IP);
    let ip = || Frame::ip(case.client().ip(), case.vip().ip());
    let kinds: &[(u8, u8)] = if case.family == Family::V4 {
        &[(0, 0), (8, 1), (13, 0), (40, 0)]
    } else {
        &[(129, 0), (128, 1), (135, 0), (136, 0), (200, 0)]
    };
    for (kind, code) in kinds.iter().copied() {
        let frame = ip().layer(Icmp { kind, code, rest: [0, 1, 0, 1] }).payload(&b"ping"[..]);
        case.arrives(&bed, &frame).assert_untouched().assert_counted(Reason::NotOurs);
    }
}

fn a_truncated_echo_request_is_untouched(case: Case) {
    let bed = case.bed_with_vip(VIP_EXTERNAL, VIP_CLUSTER_IP);
    let whole = case.echo(b"ping").0.build();
    let cut = (0..whole.len()).map(|length| &whole[..length]).filter(|frame| case.hook.takes(frame));
    for frame in cut {
        bed.run(case.hook, frame).assert_untouched().assert_counted(Reason::NotOurs);
    }
}

/// Returns a packet of an IP protocol.
pub fn of_protocol(case: Case, number: u8) -> Frame {
    let mut frame = Frame::ip(case.client().ip(), case.vip().ip()).payload(vec![0xa5; 24]);
    match frame.innermost_mut() {
        Layer::Ipv4(ip) => ip.protocol = Some(number),
        Layer::Ipv6(ip) => ip.protocol = Some(number),
        other => panic!("{other:?} is no IP header"),
    }
    frame
}

fn a_protocol_that_no_service_has_is_refused_at_its_address(case: Case) {
    let bed = case.bed_with_vip(VIP_CLUSTER_IP, VIP_CLUSTER_IP);
    let (icmp, quoted) = if case.family == Family::V4 {
        (Icmp { kind: 3, code: 2, rest: [0; 4] }, 28)
    } else {
        // The error points to the byte of the protocol.
        (Icmp { kind: 4, code: 1, rest: [0, 0, 0, 6] }, 48)
    };
    // Tunnels from an uplink may belong to others.
    let tunnels: &[u8] = if case.hook == Hook::TcPodIn { &[4, 41] } else { &[] };
    for number in [&[47, 88, 103, 136], tunnels].concat() {
        let frame = of_protocol(case, number);
        let error = frame.icmp_error_quoting(case.vip().ip(), icmp, quoted);
        case.arrives(&bed, &frame).assert_sent(&error).assert_counted(Reason::UnknownProtocol);
    }
}

fn an_unknown_protocol_to_another_address_is_left_to_the_stack(case: Case) {
    let off = case.bed_with_vip(VIP_CLUSTER_IP, 0);
    let external = case.bed_with_vip(VIP_EXTERNAL, VIP_CLUSTER_IP);
    let none = case.bed_with_vip(VIP_CLUSTER_IP, VIP_CLUSTER_IP);
    none.forget_vip(case.vip().ip());
    for bed in [off, external, none] {
        let frame = of_protocol(case, 47);
        case.arrives(&bed, &frame).assert_untouched().assert_counted(Reason::NotOurs);
    }
}
