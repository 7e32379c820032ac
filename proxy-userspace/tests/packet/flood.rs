//! A flood of SYNs from everywhere, with many more unconfirmed connections than there is room for.
//! Established connections, even silent ones, lose nothing, and genuine clients are served.

use std::net::{IpAddr, SocketAddr};

use millrace_lab::frame::{Frame, flag};
use millrace_lab::program::{Bed, BedBuilder, Endpoint, FlowTable, Service, Sizes, known_hop};
use proxy_common::selection::Slot;
use proxy_common::verdict::Reason;
use proxy_common::way::{PEER_NODE, PEER_SELF};

use crate::case::{Case, Tunnel, each_ingress, each_tunnel};

each_ingress! {
    a_flood_of_a_translated_service_disturbs_no_established_connection
    a_flood_of_a_local_service_disturbs_no_established_connection
    forged_handshakes_disturb_no_silent_connection
}

each_tunnel! {
    a_flood_of_a_direct_return_service_disturbs_no_established_connection
}

/// The room for established entries of each family. The room for unconfirmed ones is a quarter of
/// it.
const ROOM: u32 = 1 << 11;
/// Four times as many connections as there is room for unconfirmed entries.
const FLOOD: u32 = ROOM;
/// The number of silent connections during the flood.
const SILENT: u16 = 40;
/// The number of SYNs of the flood between the packets of a genuine client.
const BETWEEN: u32 = 64;

fn builder() -> BedBuilder {
    Bed::builder().sizes(Sizes { flows: ROOM, ..Sizes::default() })
}

/// Returns the SYN `number`, each of another client.
fn forged(case: Case, number: u32) -> Frame {
    let address = match case.client().ip() {
        IpAddr::V4(address) => IpAddr::from((u32::from(address) & 0xff00_0000 | number).to_be_bytes()),
        IpAddr::V6(address) => {
            IpAddr::from((u128::from(address) & !0xffff_ffff | u128::from(number)).to_be_bytes())
        }
    };
    case.tcp(flag::SYN).with_source(SocketAddr::new(address, 1024 + (number % 50000) as u16))
}

/// Runs the flood. After every few SYNs a genuine client opens a connection, and sends its ACK
/// after as many more.
fn flood(mut syn: impl FnMut(&Frame), case: Case, mut open: impl FnMut(u16), mut answer: impl FnMut(u16)) {
    for (round, first) in (0..FLOOD).step_by(BETWEEN as usize).enumerate() {
        let port = 50000 + round as u16;
        (first..first + BETWEEN / 2).for_each(|number| syn(&forged(case, number)));
        open(port);
        (first + BETWEEN / 2..first + BETWEEN).for_each(|number| syn(&forged(case, number)));
        answer(port);
    }
}

fn a_flood_of_a_translated_service_disturbs_no_established_connection(case: Case) {
    let bed = builder().load();
    for (number, bits) in [(1, PEER_SELF | PEER_NODE), (2, PEER_NODE)] {
        bed.peer(case.family.node(number), bits);
    }
    bed.service().external(case.vip()).backend_remote(case.remote_pod(1), 0).install();
    bed.hop(case.remote_pod(1), known_hop(case.family.node(1)));
    let source = |port, flags| {
        bed.beat();
        let outcome = case.arrives(&bed, &case.tcp_from(port, flags));
        outcome.assert_counted(Reason::SentSnat);
        outcome.frame().source()
    };
    let silent: Vec<_> = (1..=SILENT).map(|port| source(port, flag::SYN)).collect();
    bed.answer_all();
    let established: Vec<_> = (1..=SILENT).map(|port| source(port, flag::ACK)).collect();
    assert_eq!(silent, established);
    let syn = |frame: &Frame| {
        // A forged SYN may find no port and be dropped. Both outcomes are right.
        case.arrives(&bed, frame);
    };
    let opened = std::cell::Cell::new(None);
    flood(
        syn,
        case,
        |port| opened.set(Some(source(port, flag::SYN))),
        |port| {
            assert_eq!(Some(source(port, flag::ACK)), opened.get(), "its port was not given away");
        },
    );
    assert_eq!((1..=SILENT).map(|port| source(port, flag::ACK)).collect::<Vec<_>>(), silent);
}

fn a_flood_of_a_local_service_disturbs_no_established_connection(case: Case) {
    let bed = builder().load();
    let service =
        bed.service().external(case.vip()).backend_local(case.pod(1)).backend_local(case.pod(2)).install();
    let reaches = |port, flags, backend: Endpoint| {
        let frame = case.tcp_from(port, flags);
        case.is_delivered(&bed, &frame, &frame.clone().with_destination(backend.at), Reason::ServedLocal);
    };
    let owner = |port| service.choice(&case.tcp_from(port, flag::SYN));
    for flags in [flag::SYN, flag::ACK] {
        (1..=SILENT).for_each(|port| reaches(port, flags, owner(port)));
        bed.answer_all();
    }
    let syn = |frame: &Frame| drop(case.arrives(&bed, frame));
    flood(
        syn,
        case,
        |port| reaches(port, flag::SYN, owner(port)),
        |port| {
            bed.answer_all();
            reaches(port, flag::ACK, owner(port));
            assert!(bed.flow_of(FlowTable::Established, &case.tcp_from(port, flag::ACK)).is_some());
        },
    );
    // The present owner of new connections makes no difference.
    let other = |port| service.endpoints.iter().copied().find(|endpoint| *endpoint != owner(port)).unwrap();
    for port in 1..=SILENT {
        service.set_slot(&bed, &case.tcp_from(port, flag::ACK), Slot::settled_on(other(port).reference));
    }
    (1..=SILENT).for_each(|port| reaches(port, flag::ACK, owner(port)));
}

/// Each forged SYN is answered by its backend, and the answer is acknowledged blindly.
fn forged_handshakes_disturb_no_silent_connection(case: Case) {
    let bed = builder().load();
    let service =
        bed.service().external(case.vip()).backend_local(case.pod(1)).backend_remote(case.remote_pod(1), 0);
    let service = service.install();
    bed.hop(case.remote_pod(1), known_hop(case.family.node(1)));
    for (number, bits) in [(1, PEER_SELF | PEER_NODE), (2, PEER_NODE)] {
        bed.peer(case.family.node(number), bits);
    }
    let ends = |frame: &Frame| {
        bed.beat();
        let outcome = case.arrives(&bed, frame);
        let sent = outcome.frame();
        (sent.source(), sent.destination())
    };
    let silent = |flags| (1..=SILENT).map(|port| ends(&case.tcp_from(port, flags))).collect::<Vec<_>>();
    let begun = silent(flag::SYN);
    bed.answer_all();
    assert_eq!(silent(flag::ACK), begun);
    for first in (0..FLOOD).step_by(BETWEEN as usize) {
        let forged = |number| forged(case, number);
        (first..first + BETWEEN).for_each(|number| drop(case.arrives(&bed, &forged(number))));
        bed.answer_all();
        for number in first..first + BETWEEN {
            let guess = number.wrapping_mul(0x9e37_79b1) | 1 << 31;
            let answer = forged(number).with_flags(flag::ACK).with_acknowledgement(guess);
            case.arrives(&bed, &answer);
        }
    }
    assert_eq!(bed.flows(FlowTable::Established).len(), 2 * usize::from(SILENT), "none was promoted");
    // The present owner of new connections makes no difference.
    for port in 1..=SILENT {
        let [one, other] = [service.endpoints[0], service.endpoints[1]];
        let now = if begun[usize::from(port) - 1].1 == one.at { other } else { one };
        service.set_slot(&bed, &case.tcp_from(port, flag::ACK), Slot::settled_on(now.reference));
    }
    assert_eq!(silent(flag::ACK), begun);
}

/// A director with unsettled slots only. It has entries for all connections.
struct Director {
    bed: Bed,
    tunnel: Tunnel,
    service: Service,
}

impl Director {
    /// The agent lives, however long the flood takes on this machine.
    fn sends(&self, frame: &Frame, number: usize) {
        self.bed.beat();
        let owner = self.service.endpoints[number];
        let expected = self.tunnel.forwarded(frame, 2 + number as u8, owner.hint);
        self.tunnel.case.arrives(&self.bed, frame).assert_sent(&expected).assert_counted(Reason::SentDsr);
    }

    /// Makes `current` and `settled` the owners of a frame's slot.
    fn unsettle(&self, frame: &Frame, [current, settled]: [usize; 2]) {
        let [current, settled] = [current, settled].map(|number| self.service.endpoints[number].reference);
        self.service.set_slot(&self.bed, frame, Slot::unsettled(current, settled));
    }
}

fn a_flood_of_a_direct_return_service_disturbs_no_established_connection(tunnel: Tunnel) {
    let (bed, case) = (tunnel.load(builder()), tunnel.case);
    let (to_old, to_new) = (tunnel.way(&bed, 2), tunnel.way(&bed, 3));
    let service = bed
        .service()
        .dsr()
        .external(case.vip())
        .backend_remote(case.remote_pod(1), to_old)
        .backend_remote(case.remote_pod(2), to_new)
        .install();
    let director = Director { bed, tunnel, service };
    let frame = |port, flags| case.tcp_from(port, flags);
    for port in 1..=SILENT {
        director.unsettle(&frame(port, flag::SYN), [1, 0]);
        director.sends(&frame(port, flag::SYN), 1);
        director.sends(&frame(port, flag::ACK), 1);
    }
    let syn = |forged: &Frame| {
        director.unsettle(forged, [0, 0]);
        director.sends(forged, 0);
    };
    let open = |port| {
        director.unsettle(&frame(port, flag::SYN), [1, 0]);
        director.sends(&frame(port, flag::SYN), 1);
    };
    flood(syn, case, open, |port| {
        director.unsettle(&frame(port, flag::ACK), [0, 0]);
        director.sends(&frame(port, flag::ACK), 1);
    });
    for port in 1..=SILENT {
        director.unsettle(&frame(port, flag::ACK), [0, 0]);
        director.sends(&frame(port, flag::ACK), 1);
    }
}
