//! The program on the kernel's tracepoint, with packets that the kernel really drops.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use millrace::dataplane::ebpf::kernel_drops::{KernelDropView, KernelDrops, Watched};
use millrace_lab::frame::{Frame, Layer};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, sendto, socket,
};
use proxy_common::addr::mapped;
use proxy_common::kernel_drop::Place;

use crate::case::Family;
use crate::network::{connect_to_nodes, in_an_empty_namespace};

const UDP: u16 = 17;
/// A port without a socket. Each test has its own ones: the program sees the packets of all network namespaces.
/// A busy kernel drops a packet a little later, so none of them is watched after packets to it that were not.
const CLOSED: u16 = 9999;

fn place(address: IpAddr, port: u16, protocol: u16) -> Place {
    Place { address: mapped(address), port: port.to_be(), protocol }
}

/// Sends datagrams of three bytes to an address of this machine.
fn send(to: SocketAddr, count: usize) -> SocketAddr {
    let socket = UdpSocket::bind((to.ip(), 0)).unwrap();
    for _ in 0..count {
        socket.send_to(b"abc", to).unwrap();
    }
    socket.local_addr().unwrap()
}

/// Reads until so many drops are told or left out.
fn read(drops: &mut KernelDrops, wanted: usize) -> (Vec<KernelDropView>, usize) {
    let (mut told, mut left_out) = (Vec::new(), 0);
    let end = Instant::now() + Duration::from_secs(20);
    while told.len() + left_out < wanted && Instant::now() < end {
        let (views, more) = drops.read().unwrap();
        told.extend(views);
        left_out += usize::try_from(more).unwrap();
        std::thread::sleep(Duration::from_millis(10));
    }
    (told, left_out)
}

#[test]
fn the_kernel_accepts_the_program_and_tells_reason_function_device_and_packet() {
    for family in [Family::V4, Family::V6] {
        in_an_empty_namespace(|| {
            let own = family.node(1);
            connect_to_nodes(own);
            let places = BTreeMap::from([(place(own, CLOSED, UDP), 7)]);
            let mut drops = KernelDrops::start(&Watched { places, mark: (0, 0), rate: 100 }).unwrap();
            // Nobody asked for this one.
            send(SocketAddr::new(own, CLOSED - 1), 1);
            let from = send(SocketAddr::new(own, CLOSED), 1);
            let (told, left_out) = read(&mut drops, 1);
            assert_eq!((told.len(), left_out), (1, 0), "{told:?}");
            let drop = &told[0];
            assert_eq!((drop.reason.as_str(), drop.place, drop.device), ("NO_SOCKET", 7, 1), "{drop:?}");
            assert!(drop.function.contains("udp"), "{drop:?}");
            let namespace = std::fs::metadata("/proc/thread-self/ns/net").unwrap().ino();
            assert_eq!(u64::from(drop.namespace), namespace);
            let header = if family == Family::V4 { 20 } else { 40 };
            assert_eq!(drop.packet.len(), header + 8 + 3);
            assert_eq!(drop.packet[header..header + 2], from.port().to_be_bytes());
            assert_eq!(&drop.packet[header + 8..], b"abc");
        });
    }
}

#[test]
fn places_may_change_and_the_rest_of_a_rate_is_counted() {
    in_an_empty_namespace(|| {
        let own = Family::V4.node(1);
        connect_to_nodes(own);
        let mut drops = KernelDrops::start(&Watched { rate: 2, ..Watched::default() }).unwrap();
        send(SocketAddr::new(own, 7001), 1);
        drops.watch(&BTreeMap::from([(place(own, 7002, UDP), 9)])).unwrap();
        send(SocketAddr::new(own, 7002), 40);
        let (told, left_out) = read(&mut drops, 40);
        assert!(!told.is_empty() && left_out > 0, "{} told, {left_out} left out", told.len());
        assert_eq!(told.len() + left_out, 40);
        assert!(told.iter().all(|drop| drop.place == 9), "{told:?}");

        drops.watch(&BTreeMap::from([(place(own, 7003, UDP), 5)])).unwrap();
        send(SocketAddr::new(own, 7002), 3);
        // A second with a rate of its own.
        std::thread::sleep(Duration::from_secs(1));
        send(SocketAddr::new(own, 7003), 1);
        let (told, _) = read(&mut drops, 1);
        assert_eq!(told.iter().map(|drop| drop.place).collect::<Vec<_>>(), [5]);
    });
}

#[test]
fn a_packet_in_a_tunnel_is_told_and_one_that_is_cut_off_does_no_harm() {
    const INSIDE: u16 = 9321;
    const ETHERNET: usize = 14;
    const OUTER: usize = 20;
    const UDP_HEADER: usize = 8;
    in_an_empty_namespace(|| {
        let (own, pod, pod6) = (Family::V4.node(1), Family::V4.node(7), Family::V6.node(7));
        connect_to_nodes(own);
        let places = BTreeMap::from([(place(pod, INSIDE, UDP), 4), (place(pod6, INSIDE, UDP), 6)]);
        let mut drops = KernelDrops::start(&Watched { places, mark: (0, 0), rate: 1000 }).unwrap();
        let socket =
            socket(AddressFamily::Inet, SockType::Raw, SockFlag::empty(), SockProtocol::Raw).unwrap();
        let IpAddr::V4(here) = own else { panic!("{own}") };
        // No tunnel is here, so the kernel drops what is in one. It fills in the length and the checksum.
        let send = |packet: &[u8]| {
            let to = SockaddrIn::from(SocketAddrV4::new(here, 0));
            sendto(socket.as_raw_fd(), packet, &to, MsgFlags::empty()).unwrap();
        };
        for inner in [pod, pod6] {
            let frame = Frame::ip(inner, inner).udp(40000, INSIDE).encapsulated(Layer::ip(own, own));
            let packet = frame.build().slice(ETHERNET..);
            for length in OUTER..packet.len() - UDP_HEADER {
                send(&packet[..length]);
            }
            send(&packet);
        }
        let (told, left_out) = read(&mut drops, 2);
        let places = told.iter().map(|drop| drop.place).collect::<Vec<_>>();
        assert_eq!((places, left_out), (vec![4, 6], 0), "{told:?}");
        assert!(told.iter().all(|drop| drop.reason == "IP_NOPROTO"), "{told:?}");
        assert_eq!(told[0].packet.len(), 20 + 20 + 8);
    });
}
