//! IPv4 packets without DF that don't fit. TC makes two of each, and both come in again.

use std::time::Duration;

use millrace_lab::capture::{Capture, Direction};
use millrace_lab::frame::{DEVICE_MAC, Frame, Layer, flag};
use millrace_lab::program::{Bed, Endpoint, Hook, NEXT_HOP_MAC, Outcome, known_hop, resolved_way};
use proxy_common::hop::Hop;
use proxy_common::verdict::Reason;
use proxy_common::way::{PEER_NODE, PEER_SELF, Way};

use crate::case::{Case, Encapsulation, Family, Tunnel};
use crate::fragments::datagrams;
use crate::network::{connect_to_nodes, in_an_empty_namespace};
use crate::snat::Node;

const ID: u16 = 4711;
const MTU: u16 = 1400;
const LIMIT: Duration = Duration::from_secs(10);
const TC: Case = Case { hook: Hook::TcIngress, family: Family::V4 };
const XDP: Case = Case { hook: Hook::XdpIngress, family: Family::V4 };

/// Returns all tunnels for packets of a case.
fn tunnels(case: Case) -> impl Iterator<Item = Tunnel> {
    [Family::V4, Family::V6].into_iter().flat_map(move |outer| {
        [Encapsulation::Ipip, Encapsulation::Fou].map(|encapsulation| Tunnel { case, outer, encapsulation })
    })
}

/// The director of a Service over TCP and UDP, with a backend on a node behind a way of [`MTU`]
/// bytes.
struct Director {
    tunnel: Tunnel,
    bed: Bed,
    backend: Endpoint,
}

impl Director {
    fn new(tunnel: Tunnel) -> Self {
        Self::with_room(tunnel, MTU)
    }

    fn with_room(tunnel: Tunnel, mtu: u16) -> Self {
        let (bed, case) = (tunnel.bed(), tunnel.case);
        for (number, bits) in [(1, PEER_SELF | PEER_NODE), (2, PEER_NODE)] {
            bed.peer(tunnel.outer.node(number), bits);
        }
        let way = bed.way(Way { mtu, ..resolved_way(tunnel.outer.node(1), tunnel.outer.node(2)) });
        bed.service().udp().dsr().external(case.vip()).backend_remote(case.remote_pod(1), way).install();
        let service =
            bed.service().dsr().external(case.vip()).backend_remote(case.remote_pod(1), way).install();
        Self { tunnel, bed, backend: service.endpoints[0] }
    }

    /// Returns the bytes of the first fragment's payload.
    fn kept(&self) -> usize {
        usize::from(MTU - self.tunnel.overhead() - 20) & !7
    }

    fn arrives(&self, frame: &Frame) -> Outcome {
        self.tunnel.case.arrives(&self.bed, frame)
    }

    #[track_caller]
    fn is_cut(&self, frame: &Frame, halves: &[Frame; 2]) {
        is_cut(&self.bed, frame, halves);
    }
}

/// Checks that a frame becomes these two: the first one comes in by itself, and the run leaves the
/// other.
#[track_caller]
fn is_cut(bed: &Bed, frame: &Frame, [first, second]: &[Frame; 2]) {
    let mut capture = Capture::start_here(&["lo"]).unwrap();
    TC.arrives(bed, frame).assert_counted(Reason::Fragmented).assert_sent(second);
    capture.wait_for(LIMIT, |captured| captured.direction == Direction::In).unwrap();
    let received: Vec<Vec<u8>> = capture.packets().unwrap().iter().map(|one| one.frame.clone()).collect();
    assert_eq!(received, [first.build().to_vec()]);
}

/// Runs a check in a namespace where frames to the loopback device come in, and go nowhere.
fn where_frames_come_in_again(check: impl FnOnce() + Send) {
    in_an_empty_namespace(|| {
        connect_to_nodes(TC.family.node(1));
        check();
    });
}

/// Returns a packet of `length` bytes without DF.
fn divisible(frame: Frame, length: usize) -> Frame {
    let headers = frame.clone().payload(Vec::new()).build().len() - 14;
    let payload: Vec<u8> = (0..length - headers).map(|index| (index % 251) as u8).collect();
    let mut frame = frame.payload(payload);
    header(&mut frame).id = ID;
    frame
}

fn header(frame: &mut Frame) -> &mut millrace_lab::frame::Ipv4 {
    match frame.innermost_mut() {
        Layer::Ipv4(ip) => ip,
        other => panic!("{other:?} is no IPv4 header"),
    }
}

/// Returns the two parts of a packet or fragment. The first has `kept` bytes behind its header.
fn halves(frame: &Frame, kept: usize) -> [Frame; 2] {
    let own = header(&mut frame.clone()).clone();
    let mut halves: [Frame; 2] = frame.fragments(own.id.into(), kept).try_into().unwrap();
    for half in &mut halves {
        header(half).fragment_offset += own.fragment_offset;
    }
    header(&mut halves[1]).more_fragments = own.more_fragments;
    halves
}

#[test]
fn a_packet_that_fits_no_tunnel_becomes_two_that_do() {
    where_frames_come_in_again(|| {
        for tunnel in tunnels(TC) {
            let director = Director::new(tunnel);
            let fits = usize::from(MTU - tunnel.overhead());
            for frame in [TC.udp(), TC.tcp(flag::ACK)] {
                for length in [fits + 1, fits + 8, 1500, 2 * director.kept() + 20] {
                    let frame = divisible(frame.clone(), length);
                    let halves = halves(&frame, director.kept());
                    director.is_cut(&frame, &halves);
                    for half in &halves {
                        director.arrives(half).assert_counted(Reason::SentDsr);
                    }
                }
                let frame = divisible(frame, fits);
                let sent = tunnel.forwarded(&frame, 2, director.backend.hint);
                director.arrives(&frame).assert_sent(&sent).assert_counted(Reason::SentDsr);
            }
        }
    });
}

#[test]
fn halves_leave_in_the_tunnel_of_their_packet() {
    where_frames_come_in_again(|| {
        for tunnel in tunnels(TC).filter(|tunnel| tunnel.encapsulation == Encapsulation::Ipip) {
            let director = Director::new(tunnel);
            let frame = divisible(TC.udp(), 1500);
            let halves = halves(&frame, director.kept());
            director.is_cut(&frame, &halves);
            for half in halves {
                let outer = tunnel.forwarded(&frame, 2, director.backend.hint).outermost().clone();
                let sent = half.clone().with_hop_limit(63).encapsulated(outer);
                let sent = sent.with_macs(DEVICE_MAC, NEXT_HOP_MAC);
                director.arrives(&half).assert_sent(&sent).assert_counted(Reason::SentDsr);
            }
        }
    });
}

#[test]
fn halves_leave_for_a_backend_that_is_reached_by_snat_from_one_port() {
    where_frames_come_in_again(|| {
        let node = Node::with(TC, Bed::builder(), datagrams);
        node.bed.hop(TC.remote_pod(1), Hop { mtu: MTU, ..known_hop(TC.family.node(1)) });
        let frame = divisible(TC.udp(), 1500);
        let halves = halves(&frame, usize::from(MTU - 20) & !7);
        is_cut(&node.bed, &frame, &halves);
        let first = TC.arrives(&node.bed, &halves[0]);
        let source = first.frame().source();
        assert_eq!(source.ip(), TC.family.node(1));
        let sent = node.forwarded(&frame, source).fragments(ID.into(), usize::from(MTU - 20) & !7);
        first.assert_sent(&sent[0]).assert_counted(Reason::SentSnat);
        TC.arrives(&node.bed, &halves[1]).assert_sent(&sent[1]).assert_counted(Reason::SentSnat);
    });
}

#[test]
fn a_fragment_is_cut_further() {
    where_frames_come_in_again(|| {
        for tunnel in tunnels(TC) {
            let director = Director::new(tunnel);
            // Three fragments. The last one is too large as well.
            for piece in divisible(TC.udp(), 20 + 2 * 1480 + 1450).fragments(ID.into(), 1480) {
                director.is_cut(&piece, &halves(&piece, director.kept()));
            }
        }
    });
}

#[test]
fn a_part_that_is_still_too_large_is_cut_again() {
    where_frames_come_in_again(|| {
        for tunnel in tunnels(TC) {
            let director = Director::new(tunnel);
            let (frame, kept) = (divisible(TC.udp(), 3400), director.kept());
            let expected = frame.fragments(ID.into(), kept);
            assert_eq!(expected.len(), 3);
            let mut rest = expected[1].clone().payload(frame.build().slice(34 + kept..));
            header(&mut rest).more_fragments = false;
            director.is_cut(&frame, &[expected[0].clone(), rest.clone()]);
            director.arrives(&expected[0]).assert_counted(Reason::SentDsr);
            director.is_cut(&rest, &halves(&rest, kept));
        }
    });
}

#[test]
fn xdp_leaves_packets_that_need_cutting_to_tc() {
    for tunnel in tunnels(XDP) {
        let director = Director::new(tunnel);
        for frame in [XDP.udp(), XDP.tcp(flag::ACK)] {
            let outcome = director.arrives(&divisible(frame, 1500));
            outcome.assert_untouched().assert_counted(Reason::HandedToTc);
        }
    }
}

#[test]
fn a_packet_that_can_not_be_cut_is_dropped() {
    where_frames_come_in_again(|| {
        for tunnel in tunnels(TC) {
            let director = Director::new(tunnel);
            let mut options = divisible(TC.udp(), 1450);
            header(&mut options).options = vec![1; 4].into();
            // This packet ends at an offset where no fragment can begin.
            let mut last = divisible(TC.udp(), 3000).fragments(ID.into(), 1480).swap_remove(0);
            director.arrives(&last).assert_counted(Reason::Fragmented);
            header(&mut last).fragment_offset = 0x1fff;
            for frame in [options, last] {
                director.arrives(&frame).assert_dropped(Reason::TooBig);
            }
            // Eight bytes and a header are the minimum.
            let director = Director::with_room(tunnel, tunnel.overhead() + 27);
            director.arrives(&divisible(TC.udp(), 1000)).assert_dropped(Reason::TooBig);
        }
    });
}

#[test]
fn a_packet_that_must_not_be_cut_is_not() {
    where_frames_come_in_again(|| {
        for tunnel in tunnels(TC) {
            let director = Director::new(tunnel);
            let mut frame = divisible(TC.udp(), 1500);
            header(&mut frame).dont_fragment = true;
            director.arrives(&frame).assert_counted(Reason::TooBig);
        }
    });
}
