//! The measured cases: a walk in a family, over a number of flows and Services.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::Result;
use aya::programs::ProgramFd;
use millrace_lab::frame::{Frame, flag};
use millrace_lab::program::{Bed, Hook, Sizes, known_hop, resolved_way};
use serde::Serialize;

use super::rounds::{FIRST_PORT, FRAME, Rounds};
use super::wrapper::{Repetition, Wrapper};

/// The walk of a packet through the programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Walk {
    /// A packet to no frontend, from a port that never served.
    NotOurs,
    /// A packet to no client of a Service, but from a port of a backend.
    NotOursServed,
    /// A SYN to a backend on this node, from a client never seen before.
    LocalNew,
    /// A packet of a connection to a backend on this node.
    LocalEstablished,
    /// The reply of a backend on this node.
    Reply,
    /// A SYN to a backend on another node, by Direct Server Return.
    DsrNew,
    /// A packet of a connection to a backend on another node, by Direct Server Return.
    DsrEstablished,
    /// A SYN to a backend on another node, by SNAT, with all ports in use but unconfirmed.
    SnatNew,
    /// A packet of a connection to a backend on another node, by SNAT.
    SnatEstablished,
}

/// A case to measure.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The walk.
    pub walk: Walk,
    /// The program.
    pub hook: Hook,
    /// IPv6 instead of IPv4.
    pub is_v6: bool,
    /// The number of flows that the rounds rotate over.
    pub flows: u32,
    /// The number of Services that the rounds rotate over.
    pub services: u32,
}

/// A case, ready to measure.
pub struct Prepared {
    /// The programs and their maps.
    pub bed: Bed,
    /// The wrapper, with the frame.
    pub wrapper: Wrapper,
    /// The measured program.
    pub target: ProgramFd,
    /// The baseline.
    pub empty: ProgramFd,
}

/// More flows than any run has rounds, so each round is another flow.
const EVER_NEW: u32 = u32::MAX;
/// As many connections as there are SNAT ports for, with room to find one.
const SNAT_FLOWS: u32 = 2_000;
const TEN_THOUSAND: u32 = 10_000;
const MILLION: u32 = 1_000_000;
/// The number of connections that are opened and confirmed at a time. They must fit FLOWS_NEW.
const CHUNK: u32 = TEN_THOUSAND;

/// Returns all cases, in the order of the output.
pub fn all() -> Vec<Case> {
    use Hook::{TcEgress, TcIngress, XdpIngress};
    use Walk::{
        DsrEstablished, DsrNew, LocalEstablished, LocalNew, NotOurs, NotOursServed, Reply, SnatEstablished,
        SnatNew,
    };
    let walks = [
        (NotOurs, XdpIngress, 1, 1),
        (NotOurs, TcIngress, 1, 1),
        (NotOurs, TcEgress, 1, 1),
        (NotOursServed, TcEgress, 1, 1),
        (LocalNew, XdpIngress, EVER_NEW, 1),
        (LocalNew, TcIngress, EVER_NEW, 1),
        (LocalEstablished, XdpIngress, 1, 1),
        (LocalEstablished, XdpIngress, TEN_THOUSAND, 1),
        (LocalEstablished, XdpIngress, TEN_THOUSAND, TEN_THOUSAND),
        (LocalEstablished, XdpIngress, MILLION, 1),
        (LocalEstablished, TcIngress, 1, 1),
        (Reply, TcEgress, 1, 1),
        (DsrNew, XdpIngress, EVER_NEW, 1),
        (DsrEstablished, XdpIngress, 1, 1),
        (DsrEstablished, XdpIngress, TEN_THOUSAND, 1),
        (DsrEstablished, XdpIngress, TEN_THOUSAND, TEN_THOUSAND),
        (DsrEstablished, XdpIngress, MILLION, 1),
        (DsrNew, TcIngress, EVER_NEW, 1),
        (DsrEstablished, TcIngress, 1, 1),
        (SnatNew, XdpIngress, EVER_NEW, 1),
        (SnatEstablished, XdpIngress, 1, 1),
        (SnatEstablished, XdpIngress, SNAT_FLOWS, 1),
        (SnatEstablished, TcIngress, 1, 1),
    ];
    let case = |is_v6| move |(walk, hook, flows, services)| Case { walk, hook, is_v6, flows, services };
    walks.into_iter().flat_map(|walk| [case(false)(walk), case(true)(walk)]).collect()
}

impl Case {
    /// Returns the name of the walk.
    pub const fn walk_name(&self) -> &'static str {
        match self.walk {
            Walk::NotOurs => "not ours",
            Walk::NotOursServed => "not ours, served port",
            Walk::LocalNew => "local, new",
            Walk::LocalEstablished => "local, established",
            Walk::Reply => "reply",
            Walk::DsrNew => "DSR, new",
            Walk::DsrEstablished => "DSR, established",
            Walk::SnatNew => "SNAT, new",
            Walk::SnatEstablished => "SNAT, established",
        }
    }

    /// Returns the case in one line.
    pub fn name(&self) -> String {
        let (walk, family, program, services) =
            (self.walk_name(), self.family(), self.hook.program(), self.services);
        let flows = if self.has_flows() { self.flows.to_string() } else { "ever new".into() };
        format!("{program}: {walk}, {family}, flows: {flows}, services: {services}")
    }

    /// Returns "IPv4" or "IPv6".
    pub const fn family(&self) -> &'static str {
        if self.is_v6 { "IPv6" } else { "IPv4" }
    }

    /// Returns whether the rounds return to earlier flows. Otherwise each round is another flow.
    pub const fn has_flows(&self) -> bool {
        self.flows != EVER_NEW
    }

    /// Returns how rounds can be repeated. TC can encapsulate an skb only once.
    pub fn repetition(&self) -> Repetition {
        match (self.walk, self.hook) {
            (Walk::DsrNew | Walk::DsrEstablished, Hook::TcIngress) => Repetition::Single,
            _ => Repetition::InKernel,
        }
    }

    /// Loads the programs, fills the maps and opens the connections.
    pub fn prepare(&self) -> Result<Prepared> {
        let bed = Bed::builder().sizes(self.sizes()).load();
        for number in 0..self.services {
            self.install_service(&bed, number);
        }
        if matches!(self.walk, Walk::Reply | Walk::NotOursServed) {
            bed.send(Hook::XdpIngress, &self.client_frame(flag::SYN));
            bed.answer_all();
            bed.send(Hook::XdpIngress, &self.client_frame(flag::ACK));
        }
        let frame = padded(self.frame());
        let mut wrapper = Wrapper::load(self.hook, &frame)?;
        let (target, empty) = (bed.program_fd(self.hook), wrapper.empty()?);
        let rounds = Rounds::new(&frame, self.flows, self.services)?;
        if matches!(self.walk, Walk::LocalEstablished | Walk::SnatEstablished) {
            self.open_connections(&bed, &mut wrapper, &target, rounds)?;
        }
        wrapper.rotate(rounds)?;
        Ok(Prepared { bed, wrapper, target, empty })
    }

    /// Returns the sizes of the maps: the object's defaults, or what the flows need. A flow needs
    /// two entries, and room before eviction.
    fn sizes(&self) -> Sizes {
        let flows = if self.has_flows() { self.flows / 2 * 5 } else { 0 };
        let services = self.services.next_power_of_two() * 2;
        let slots = services * 251;
        Sizes { services, slots, backends: services, flows: flows.max(1 << 18) }
    }

    fn install_service(&self, bed: &Bed, number: u32) {
        let service = bed.service().external(SocketAddr::new(self.address(VIP, number), 80));
        let backend = SocketAddr::new(self.address(POD, number), FIRST_PORT);
        let service = match self.walk {
            Walk::DsrNew | Walk::DsrEstablished => {
                let nodes = (self.address(NODE, 1), self.address(NODE, 2));
                let way = if number == 0 { bed.way(resolved_way(nodes.0, nodes.1)) } else { 1 };
                service.dsr().backend_remote(backend, way)
            }
            Walk::SnatNew | Walk::SnatEstablished => service.backend_remote(backend, 0),
            _ => service.backend_local(backend),
        };
        service.install();
        if matches!(self.walk, Walk::SnatNew | Walk::SnatEstablished) {
            bed.hop(backend, known_hop(self.address(NODE, 1)));
        }
    }

    /// Sends two packets of each connection's client, a chunk at a time: a SYN, and an ACK after
    /// the backend's answer.
    fn open_connections(
        &self,
        bed: &Bed,
        wrapper: &mut Wrapper,
        target: &ProgramFd,
        rounds: Rounds,
    ) -> Result<()> {
        for first in (0..self.flows).step_by(CHUNK as usize) {
            let last = (first + CHUNK).min(self.flows) - 1;
            for _ in 0..2 {
                wrapper.rotate(rounds.between(first, last))?;
                wrapper.run(target, last - first + 1)?;
                bed.answer_all();
            }
        }
        Ok(())
    }

    fn frame(&self) -> Frame {
        match self.walk {
            Walk::NotOurs | Walk::NotOursServed => {
                let (client, other) = (self.address(CLIENT, 0), self.address(NODE, 1));
                Frame::ip(client, other).tcp(FIRST_PORT, 22, flag::ACK)
            }
            Walk::LocalNew | Walk::DsrNew | Walk::SnatNew => self.client_frame(flag::SYN),
            Walk::LocalEstablished | Walk::DsrEstablished | Walk::SnatEstablished => {
                self.client_frame(flag::ACK)
            }
            Walk::Reply => {
                let pod = SocketAddr::new(self.address(POD, 0), FIRST_PORT);
                self.client_frame(flag::ACK).with_destination(pod).reply()
            }
        }
    }

    fn client_frame(&self, flags: u8) -> Frame {
        Frame::ip(self.address(CLIENT, 0), self.address(VIP, 0)).tcp(FIRST_PORT, 80, flags)
    }

    fn address(&self, net: Net, number: u32) -> IpAddr {
        if self.is_v6 {
            IpAddr::V6(Ipv6Addr::from(u128::from(net.v6) << 64 | u128::from(number)))
        } else {
            IpAddr::V4(Ipv4Addr::from(net.v4 + number))
        }
    }
}

/// The first addresses of one kind.
#[derive(Clone, Copy)]
struct Net {
    v4: u32,
    v6: u64,
}

const CLIENT: Net = Net { v4: 0xc612_0000, v6: 0x2001_0db8_0051_0000 };
const VIP: Net = Net { v4: 0x0a60_0000, v6: 0xfd00_0096_0000_0000 };
const POD: Net = Net { v4: 0x0a01_0000, v6: 0xfd00_0010_0000_0000 };
const NODE: Net = Net { v4: 0xc0a8_0000, v6: 0xfd00_0192_0000_0000 };

fn padded(frame: Frame) -> Vec<u8> {
    let headers = frame.build().len();
    frame.payload(vec![0x5a; FRAME - headers]).build().to_vec()
}
