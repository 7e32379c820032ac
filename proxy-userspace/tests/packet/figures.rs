//! Figures of Services and endpoints, and recorded events.

use millrace_lab::frame::{Frame, flag};
use millrace_lab::program::{Bed, monotonic_seconds};
use proxy_common::event::{CAPTURED_BYTES, Event, EventKind, Monitor, USUAL_RATE, services_bit};
use proxy_common::figures::{BackendConnections, Connections};
use proxy_common::selection::BackendRef;
use proxy_common::verdict::Reason;

use crate::case::{Case, Family, each_client, each_ingress};

each_client! {
    a_connection_counts_when_it_is_opened_established_and_reset
    a_backend_that_refuses_is_counted
    a_connection_counts_for_its_backend_and_not_for_the_next_one_with_its_id
    every_eighth_port_is_timed
    events_of_connections_are_recorded_while_somebody_watches
}

each_ingress! {
    a_drop_counts_for_its_service_and_is_recorded_with_its_frame
    a_refusal_is_recorded_once_and_as_it_came_in
    a_packet_left_to_the_stack_is_no_drop_and_hides_none
    drops_beyond_the_rate_are_counted_and_left_out
    what_is_watched_is_recorded_at_its_rate_and_other_drops_at_the_usual_one
}

/// The client's port, which is timed.
const TIMED: u16 = 40000;

/// Opens a connection from a port: the backend answers with this number. Returns the frame that it got.
fn open(case: Case, bed: &Bed, port: u16) -> Frame {
    let delivered = case.arrives(bed, &case.tcp_from(port, flag::SYN)).frame();
    let answer = delivered.clone().reply().with_flags(flag::SYN | flag::ACK).with_sequence(1000);
    bed.send(case.way_out(), &answer);
    delivered
}

fn acknowledge(case: Case, bed: &Bed, port: u16) {
    case.arrives(bed, &case.tcp_from(port, flag::ACK).with_acknowledgement(1001));
}

/// Counts since the start of a test: the beds of all tests have their maps in turn.
struct Since<'a> {
    bed: &'a Bed,
    service: u32,
    before: Connections,
}

impl<'a> Since<'a> {
    fn now(bed: &'a Bed, service: u32) -> Self {
        Self { bed, service, before: bed.connections(service) }
    }

    #[track_caller]
    fn is(&self, opened: u64, established: u64, refused: u64, reset: u64) {
        let now = self.bed.connections(self.service);
        let found = Connections {
            opened: now.opened - self.before.opened,
            established: now.established - self.before.established,
            refused: now.refused - self.before.refused,
            reset: now.reset - self.before.reset,
        };
        assert_eq!(found, Connections { opened, established, refused, reset });
    }
}

fn a_connection_counts_when_it_is_opened_established_and_reset(case: Case) {
    let bed = Bed::new();
    let service = bed.service().external(case.vip()).backend_local(case.pod(1)).install();
    let since = Since::now(&bed, service.id);
    let delivered = open(case, &bed, TIMED);
    case.arrives(&bed, &case.tcp_from(TIMED, flag::SYN));
    since.is(1, 0, 0, 0);
    acknowledge(case, &bed, TIMED);
    acknowledge(case, &bed, TIMED);
    since.is(1, 1, 0, 0);
    bed.send(case.way_out(), &delivered.reply().with_flags(flag::RST));
    since.is(1, 1, 0, 1);
}

fn a_backend_that_refuses_is_counted(case: Case) {
    let bed = Bed::new();
    let service = bed.service().external(case.vip()).backend_local(case.pod(1)).install();
    let since = Since::now(&bed, service.id);
    let delivered = case.arrives(&bed, &case.tcp_from(TIMED, flag::SYN)).frame();
    let refusal = delivered.reply().with_flags(flag::RST | flag::ACK);
    bed.send(case.way_out(), &refusal).assert_counted(Reason::Reply);
    since.is(1, 0, 1, 0);
    bed.send(case.way_out(), &refusal);
    since.is(1, 0, 1, 0);
}

fn a_connection_counts_for_its_backend_and_not_for_the_next_one_with_its_id(case: Case) {
    let bed = Bed::new();
    let service = bed.service().external(case.vip()).backend_local(case.pod(1)).install();
    let backend = service.endpoints[0].reference;
    let map = if case.family == Family::V4 { "BACKEND_CONNECTIONS4" } else { "BACKEND_CONNECTIONS6" };
    let former = BackendConnections {
        reference: BackendRef::new(backend.id(), 99).0,
        opened: 7,
        ..BackendConnections::default()
    };
    bed.set::<BackendConnections>(map, backend.id(), former);
    open(case, &bed, TIMED);
    acknowledge(case, &bed, TIMED);
    let found: BackendConnections = bed.get(map, backend.id());
    assert_eq!(
        found,
        BackendConnections { reference: backend.0, opened: 1, established: 1, refused: 0, reset: 0 }
    );
}

fn every_eighth_port_is_timed(case: Case) {
    let bed = Bed::new();
    let service = bed.service().external(case.vip()).backend_local(case.pod(1)).install();
    let before = bed.handshakes(service.id);
    for port in TIMED..TIMED + 16 {
        open(case, &bed, port);
    }
    assert_eq!(bed.handshakes(service.id) - before, 2);
}

fn watched(monitor: Monitor) -> Monitor {
    let until = u32::try_from(monotonic_seconds() + 60).unwrap();
    Monitor { until, ..monitor }
}

fn events_of_connections_are_recorded_while_somebody_watches(case: Case) {
    let bed = Bed::new();
    let service = bed.service().external(case.vip()).backend_local(case.pod(1)).install();
    let before = bed.recordings();
    open(case, &bed, TIMED);
    assert_eq!(bed.events_since(&before), [], "nobody watches");
    let kinds = EventKind::Opened.bit() | EventKind::Established.bit();
    bed.set::<Monitor>("MONITOR", 0, watched(Monitor { kinds, rate: 100, ..Monitor::USUAL }));
    open(case, &bed, TIMED + 1);
    acknowledge(case, &bed, TIMED + 1);
    let events = bed.events_since(&before);
    let kinds: Vec<_> = events.iter().map(Event::kind).collect();
    assert_eq!(kinds, [Some(EventKind::Opened), Some(EventKind::Established)]);
    for event in &events {
        assert_eq!((event.service, event.backend), (service.id, service.endpoints[0].reference.0));
        assert_eq!((event.source_port, event.protocol), ((TIMED + 1).to_be(), 6));
        assert_eq!((event.destination_port, event.captured), (case.vip().port().to_be(), 0));
    }
}

fn without_local_backend(case: Case, bed: &Bed) -> u32 {
    bed.service().policy_local().external(case.vip()).backend_remote(case.remote_pod(1), 1).install().id
}

/// The bytes of a frame that an event holds.
fn captured(event: &Event) -> Vec<u8> {
    let bytes: Vec<u8> = event.frame.iter().flat_map(|word| word.to_ne_bytes()).collect();
    bytes[..event.captured.into()].to_vec()
}

fn a_drop_counts_for_its_service_and_is_recorded_with_its_frame(case: Case) {
    let bed = Bed::new();
    let service = without_local_backend(case, &bed);
    let (drops, before) = (bed.service_drops(service, Reason::NoLocalEndpoint), bed.recordings());
    let short = case.tcp(flag::SYN);
    let long = case.tcp(flag::ACK).payload(vec![7; 600]);
    for frame in [&short, &long] {
        case.arrives(&bed, frame).assert_dropped(Reason::NoLocalEndpoint);
    }
    assert_eq!(bed.service_drops(service, Reason::NoLocalEndpoint) - drops, 2);
    let events = bed.events_since(&before);
    assert_eq!(events.len(), 2, "{events:?}");
    for (event, frame) in events.iter().zip([short.build(), long.build()]) {
        assert_eq!((event.kind(), event.reason()), (Some(EventKind::Drop), Some(Reason::NoLocalEndpoint)));
        assert_eq!((event.service, event.program), (service, case.hook.counted_as() as u8));
        assert_eq!(event.length as usize, frame.len());
        assert_eq!(captured(event), frame[..frame.len().min(CAPTURED_BYTES)]);
    }
}

fn a_refusal_is_recorded_once_and_as_it_came_in(case: Case) {
    let bed = Bed::new();
    let service = bed.service().external(case.vip()).install().id;
    let (drops, before) = (bed.service_drops(service, Reason::NoEndpoint), bed.recordings());
    let frame = case.tcp(flag::SYN);
    case.arrives(&bed, &frame).assert_counted(Reason::NoEndpoint);
    let events = bed.events_since(&before);
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(captured(&events[0]), frame.build(), "not the answer");
    assert_eq!(bed.service_drops(service, Reason::NoEndpoint) - drops, 1);
    // The next drop is recorded, too, without the Service of this one.
    bed.vip(case.vip().ip(), proxy_common::vip::VIP_CLUSTER_IP);
    let other = Frame::ip(case.client().ip(), case.vip().ip()).tcp(40000, 9999, flag::SYN);
    case.arrives(&bed, &other).assert_counted(Reason::UnknownPort);
    let events = bed.events_since(&before);
    assert_eq!(events.iter().map(|event| event.service).collect::<Vec<_>>(), [service, 0]);
}

/// An external address may have ports that the stack serves.
fn a_packet_left_to_the_stack_is_no_drop_and_hides_none(case: Case) {
    let bed = Bed::new();
    let service = without_local_backend(case, &bed);
    bed.vip(case.vip().ip(), proxy_common::vip::VIP_EXTERNAL);
    let (drops, before) = (bed.service_drops(service, Reason::NoLocalEndpoint), bed.recordings());
    let other = Frame::ip(case.client().ip(), case.vip().ip()).tcp(40000, 9999, flag::SYN);
    case.arrives(&bed, &other).assert_untouched().assert_counted(Reason::NotOurs);
    assert_eq!(bed.events_since(&before), []);
    case.arrives(&bed, &case.tcp(flag::SYN)).assert_dropped(Reason::NoLocalEndpoint);
    assert_eq!(bed.service_drops(service, Reason::NoLocalEndpoint) - drops, 1);
    assert_eq!(bed.events_since(&before).len(), 1);
}

fn drops_beyond_the_rate_are_counted_and_left_out(case: Case) {
    const FRAMES: u64 = 60;
    let bed = Bed::new();
    let service = without_local_backend(case, &bed);
    let drops = bed.service_drops(service, Reason::NoLocalEndpoint);
    let (recorded, lost) = dropped(case, &bed, FRAMES);
    assert_eq!(bed.service_drops(service, Reason::NoLocalEndpoint) - drops, FRAMES);
    assert_eq!(recorded + lost, FRAMES);
    assert!(recorded >= u64::from(USUAL_RATE), "{recorded}");
}

/// Sends so many packets that are dropped, and returns the events and the number of those left out.
fn dropped(case: Case, bed: &Bed, packets: u64) -> (u64, u64) {
    let before = bed.recordings();
    for _ in 0..packets {
        case.arrives(bed, &case.tcp(flag::SYN)).assert_dropped(Reason::NoLocalEndpoint);
    }
    let now = bed.recordings();
    let sum = |count: fn(&proxy_common::event::Recording) -> u64| {
        now.iter().map(count).sum::<u64>() - before.iter().map(count).sum::<u64>()
    };
    (sum(|one| one.sequence), sum(|one| one.lost))
}

fn what_is_watched_is_recorded_at_its_rate_and_other_drops_at_the_usual_one(case: Case) {
    const FRAMES: u64 = 300;
    let bed = Bed::new();
    let service = without_local_backend(case, &bed);
    let all = Monitor { rate: 10_000, ..Monitor::USUAL };
    let wanted = Monitor { services: services_bit(service), ..all };
    bed.set::<Monitor>("MONITOR", 0, watched(wanted));
    assert_eq!(dropped(case, &bed, FRAMES), (FRAMES, 0));
    let opened = Monitor { kinds: EventKind::Opened.bit(), ..all };
    let reason = Monitor { reasons: 1 << Reason::NoWay as u32, ..all };
    let other = Monitor { services: services_bit(service + 1), ..all };
    for unwanted in [opened, reason, other] {
        bed.set::<Monitor>("MONITOR", 0, watched(unwanted));
        let (recorded, lost) = dropped(case, &bed, FRAMES);
        assert!((u64::from(USUAL_RATE)..FRAMES).contains(&recorded), "{recorded}: {unwanted:?}");
        assert_eq!(lost, 0, "nobody who watches misses them: {unwanted:?}");
        // Neither uses up the rate of the other.
        bed.set::<Monitor>("MONITOR", 0, watched(wanted));
        assert_eq!(dropped(case, &bed, FRAMES), (FRAMES, 0));
        // The usual ones of this second are used up.
        std::thread::sleep(std::time::Duration::from_millis(1100));
    }
}
