//! Frames: some as of clients, directors and backends, most of those mutated, and some fully
//! random.

use std::net::SocketAddr;

use millrace_lab::frame::{Extension, Frame, Icmp, Layer, Sctp, SctpChecksum, Vlan, chunk, flag, protocol};
use millrace_lab::program::Hook;
use proxy_common::way::FOU_PORT;

use crate::random::Random;
use crate::world::{CLIENTS, NODES, PODS, PODS_ELSEWHERE, World, address, pods};

/// A generator of frames.
pub struct Generator {
    random: Random,
    templates: Vec<Vec<u8>>,
    frame: Vec<u8>,
}

/// Bytes at which length, version and protocol fields often break.
const EDGES: [u8; 13] = [0, 1, 4, 6, 17, 20, 40, 41, 0x45, 0x7f, 0x80, 132, 0xff];

impl Generator {
    /// Returns a generator with templates for the program.
    pub fn new(world: &World, hook: Hook, random: Random) -> Self {
        let frames = match hook {
            Hook::TcEgress | Hook::TcPodOut => replies(world),
            Hook::TcPodIn => {
                let own = own(world);
                let tunnels: Vec<Frame> = own.iter().flat_map(tunnels).collect();
                [clients(world), own, tunnels].concat()
            }
            Hook::XdpIngress | Hook::TcIngress => {
                let clients = clients(world);
                let tunnels: Vec<Frame> = clients.iter().flat_map(tunnels).collect();
                [clients, tunnels].concat()
            }
        };
        Self::of(frames.iter().flat_map(shapes).chain(errors(world, hook)), random)
    }

    /// Returns a generator of clients' frames and replies to translated ones alone, without tunnels and ICMP errors.
    pub fn of_clients(world: &World, hook: Hook, random: Random) -> Self {
        let own = if hook == Hook::TcPodIn { own(world) } else { Vec::new() };
        Self::of(clients(world).iter().chain(&own).flat_map(shapes), random)
    }

    fn of(frames: impl Iterator<Item = Frame>, random: Random) -> Self {
        Self { random, templates: frames.map(|frame| frame.build().to_vec()).collect(), frame: Vec::new() }
    }

    /// Returns the next frame.
    pub fn next_frame(&mut self) -> &[u8] {
        self.frame.clear();
        if self.random.below(20) == 0 {
            let length = 14 + self.random.below(140);
            self.frame.resize_with(length, || self.random.next() as u8);
            let ethertype = *self.random.pick(&[[0x08, 0x00], [0x86, 0xdd], [0x08, 0x06]]);
            self.frame[12..14].copy_from_slice(&ethertype);
            return &self.frame;
        }
        let template = self.random.below(self.templates.len());
        self.frame.extend_from_slice(&self.templates[template]);
        for _ in 0..self.random.below(4) {
            self.mutate();
        }
        &self.frame
    }

    fn mutate(&mut self) {
        let length = self.frame.len();
        if length < 16 {
            return;
        }
        // Most mutations change the headers: the first hundred bytes.
        let at = 12 + self.random.below(length.min(110) - 12);
        match self.random.below(8) {
            0 => self.frame[at] ^= 1 << self.random.below(8),
            1 => self.frame[at] = self.random.next() as u8,
            2 => self.frame[at] = *self.random.pick(&EDGES),
            3 => self.frame.truncate(14 + self.random.below(length - 14)),
            4 => {
                let more = self.random.below(64);
                self.frame.resize(length + more, 0xa5);
            }
            5 => self.frame[at] = self.frame[at].wrapping_add(1),
            6 => self.frame[at] = self.frame[at].wrapping_sub(1),
            _ => {
                let from = 12 + self.random.below(length - 13);
                let count = (1 + self.random.below(20)).min(length - at.max(from));
                self.frame.copy_within(from..from + count, at);
            }
        }
    }
}

/// Returns frames of clients to every frontend, and to other addresses.
fn clients(world: &World) -> Vec<Frame> {
    let mut frames = Vec::new();
    for frontend in &world.frontends {
        for (number, port) in [(1, 40000), (2, 40000), (200, 50000)] {
            let client = SocketAddr::new(address(frontend.at.is_ipv6(), CLIENTS, number), port);
            frames.extend(transport(client, frontend.at, frontend.protocol));
            frames.extend(transport(client, (frontend.at.ip(), 81).into(), frontend.protocol));
            frames.extend(transport(frontend.at, client, frontend.protocol));
        }
    }
    frames
}

fn transport(from: SocketAddr, to: SocketAddr, protocol: u8) -> Vec<Frame> {
    let ip = || Frame::ip(from.ip(), to.ip());
    if protocol == protocol::UDP {
        return vec![
            ip().udp(from.port(), to.port()).payload(&b"datagram"[..]),
            ip().udp(from.port(), to.port()),
        ];
    }
    if protocol == protocol::SCTP {
        let chunks = [chunk::INIT, chunk::INIT_ACK, chunk::DATA, chunk::SHUTDOWN, chunk::ABORT];
        let packet =
            |chunk| ip().sctp(from.port(), to.port(), chunk).payload(vec![9; 4 * usize::from(chunk)]);
        let unsealed =
            Sctp { checksum: SctpChecksum::None, ..Sctp::new(from.port(), to.port(), chunk::DATA) };
        return chunks.map(packet).into_iter().chain([ip().layer(unsealed)]).collect();
    }
    let flags = [flag::SYN, flag::ACK, flag::SYN | flag::ACK, flag::FIN | flag::ACK, flag::RST];
    flags
        .iter()
        .map(|flags| ip().tcp(from.port(), to.port(), *flags).payload(vec![7; usize::from(*flags)]))
        .collect()
}

/// Returns a client's frame as a director and as a stranger send it to this node and to another
/// one. Also as an IPVS director sends it to pods: of two Services on this node, and one elsewhere.
fn tunnels(frame: &Frame) -> Vec<Frame> {
    let mut frames = Vec::new();
    let to_nodes = [
        (false, 2, 1, 0),
        (false, 3, 1, 0x404d),
        (true, 2, 1, 99),
        (false, 66, 1, 5),
        (true, 66, 1, 5),
        (false, 2, 4, 0),
    ]
    .map(|(v6, from, to, hint)| (address(v6, NODES, from), address(v6, NODES, to), hint));
    let to_pods = [(2, PODS, 3), (66, PODS, 3), (3, PODS, 4), (2, PODS, 1), (2, PODS_ELSEWHERE, 5)];
    let to_pods = [false, true].into_iter().flat_map(|v6| {
        to_pods.map(|(from, group, number)| (address(v6, NODES, from), address(v6, group, number), 0))
    });
    for (from, to, hint) in to_nodes.into_iter().chain(to_pods) {
        let mut outer = Layer::ip(from, to);
        match &mut outer {
            Layer::Ipv4(ip) => (ip.id, ip.dont_fragment) = (hint, true),
            Layer::Ipv6(ip) => ip.flow_label = hint.into(),
            _ => {}
        }
        let tunnel = frame.clone().encapsulated(outer);
        frames.extend([tunnel.clone().in_udp(0xc123, FOU_PORT), tunnel]);
    }
    frames
}

/// Returns frames of pods to Services with themselves as backends, and their answers.
fn own(world: &World) -> Vec<Frame> {
    let mut frames = Vec::new();
    for frontend in &world.frontends {
        for pod in pods(frontend.at.is_ipv6()) {
            frames.extend(transport(pod, frontend.at, frontend.protocol));
        }
    }
    for connection in &world.own {
        frames.extend(transport(connection.pod, connection.vip, connection.protocol));
    }
    frames
}

/// Returns the answers of backends, and other traffic of this node.
fn replies(world: &World) -> Vec<Frame> {
    let mut frames = clients(world);
    for connection in &world.connections {
        frames.extend(transport(connection.pod, connection.client, connection.protocol));
        frames.extend(transport(connection.client, connection.pod, connection.protocol));
    }
    frames
}

/// Returns ICMP errors of routers and backends about connections, and about connections that do not
/// exist.
fn errors(world: &World, hook: Hook) -> Vec<Frame> {
    let own = world.own.iter().flat_map(|own| transport(own.vip, own.pod, own.protocol));
    let connections = world.connections.iter().flat_map(|connection| {
        let (from, to) = match hook {
            Hook::TcEgress | Hook::TcPodOut => (connection.client, connection.pod),
            Hook::XdpIngress | Hook::TcIngress | Hook::TcPodIn => (connection.vip, connection.client),
        };
        transport(from, to, connection.protocol)
    });
    let nobodys = world.frontends.iter().flat_map(|frontend| {
        let client = SocketAddr::new(address(frontend.at.is_ipv6(), CLIENTS, 77), 7777);
        transport(frontend.at, client, frontend.protocol)
    });
    let error = |frame: Frame| {
        let (v6, source) = (frame.source().is_ipv6(), frame.destination().ip());
        let (kind, code) = if v6 { (2, 0) } else { (3, 4) };
        let icmp = Icmp { kind, code, rest: [0, 0, 5, 120] };
        let there = frame.icmp_error_quoting(source, icmp, 24);
        let (source, destination) = (there.destination_mac, there.source_mac);
        there.with_macs(source, destination)
    };
    connections.chain(own).chain(nobodys).map(error).collect()
}

/// Returns the frame, and variants with tags, options and extension headers, as a fragment, as
/// ICMP, and a large one.
fn shapes(frame: &Frame) -> Vec<Frame> {
    let mut shapes = vec![frame.clone(), frame.clone(), frame.clone()];
    shapes.push(frame.clone().tagged(&[Vlan::customer(5)]));
    shapes.push(frame.clone().payload(vec![0x5a; 1440]));
    shapes.push(frame.clone().with_hop_limit(1));
    let mut odd = frame.clone();
    let at = odd.layers.len() - 1;
    let mut fragment = frame.clone();
    if let Layer::Ipv4(ip) = odd.innermost_mut() {
        ip.options = vec![1; 8].into();
    } else {
        odd.layers.insert(at, Extension::destination_options(2).into());
    }
    if let Layer::Ipv4(ip) = fragment.innermost_mut() {
        ip.more_fragments = true;
    } else {
        fragment.layers.insert(at, Extension::fragment(0, true, 3).into());
    }
    let large = frame.clone().payload(vec![0xa5; 1800]);
    // There are as many later fragments as first ones: each kind has its own templates.
    shapes.extend(large.fragments(frame.build().len() as u32, 1000));
    let mut echo = frame.clone();
    let kind = if matches!(echo.innermost(), Layer::Ipv4(_)) { 8 } else { 128 };
    echo.layers[at] = Icmp { kind, code: 0, rest: [1, 2, 3, 4] }.into();
    shapes.extend([odd, fragment, echo]);
    shapes
}
