//! A case made ready: the programs with their maps filled, and the wrapper with the frame.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use aya::programs::ProgramFd;
use millrace_lab::frame::flag;
use millrace_lab::program::{Bed, DEVICE, Hook, ServiceBuilder, Sizes, known_hop, resolved_way};
use proxy_common::hop::{DEVICE_XDP, Device};
use proxy_common::vip::VIP_EXTERNAL;
use proxy_common::way::{PEER_NODE, PEER_SELF};

use super::addresses::{CLIENT, NODE, POD, ROUTER};
use super::case::Case;
use super::frames::Facts;
use super::network::{Link, connect};
use super::rounds::{FIRST_PORT, Round, Rounds};
use super::walk::{Place, Walk};
use super::wrapper::{Repetition, Wrapper};

/// A case, ready to measure.
pub struct Scene {
    /// The case.
    pub case: Case,
    /// What its frames depend on.
    pub facts: Facts,
    /// The programs and their maps.
    pub bed: Bed,
    /// The wrapper, with the frame.
    pub wrapper: Wrapper,
    /// The measured program.
    pub target: ProgramFd,
    /// The baseline.
    pub empty: ProgramFd,
}

/// The number of connections that are opened and confirmed at a time. They must fit FLOWS_NEW.
const CHUNK: u32 = 10_000;
/// The number of the pod that a slot's new owner has.
const NEW_OWNER: u32 = 1 << 15;

impl Scene {
    /// Loads the programs, fills the maps and opens the connections.
    pub fn new(case: Case) -> Result<Self> {
        let link = case.needs_network().then(|| connect(case.own_end(), case.address(CLIENT, 0)));
        let link = link.transpose()?;
        let (bed, mut facts) = case.install();
        if let Some(Link { device, own_mac, client_mac }) = link {
            facts.link = Some((own_mac, client_mac));
            bed.device(device, Device { source4: [0], source6: [0; 4], flags: DEVICE_XDP });
        }
        if case.walk.follows_a_connection() {
            case.open_connection(&bed, &mut facts)?;
        }
        let frame = case.frame(&facts, Round::FIRST)?;
        let device = link.map_or(DEVICE, |link| link.device);
        let mut wrapper = Wrapper::load(case.hook, &frame.build(), device)?;
        let (target, empty) = (bed.program_fd(case.hook), wrapper.empty()?);
        let rounds = Rounds::new(&frame, case.flows, case.frontends())?;
        if case.walk.has_entries() {
            open_connections(&case, &bed, &mut wrapper, &target, rounds)?;
        }
        wrapper.rotate(rounds)?;
        Ok(Self { case, facts, bed, wrapper, target, empty })
    }
}

/// Sends two packets of each connection's client, a chunk at a time. In between, all backends
/// answer.
fn open_connections(
    case: &Case,
    bed: &Bed,
    wrapper: &mut Wrapper,
    target: &ProgramFd,
    rounds: Rounds,
) -> Result<()> {
    for first in (0..case.flows).step_by(CHUNK as usize) {
        let last = (first + CHUNK).min(case.flows) - 1;
        for _ in 0..2 {
            wrapper.rotate(rounds.between(first, last))?;
            wrapper.sample(target, Repetition::InKernel, last - first + 1)?;
            bed.answer_all();
        }
    }
    Ok(())
}

impl Case {
    /// Returns whether the program asks the FIB, which must know the client.
    pub const fn needs_network(&self) -> bool {
        matches!(self.walk, Walk::SnatReply)
    }

    /// Returns this node's address on the client's wire.
    fn own_end(&self) -> std::net::IpAddr {
        self.address(CLIENT, 1)
    }

    fn install(&self) -> (Bed, Facts) {
        let builder = Bed::builder().sizes(self.sizes());
        let bed = if self.walk == Walk::DecapFou { builder.fou().load() } else { builder.load() };
        for (number, bits) in [(1, PEER_SELF | PEER_NODE), (2, PEER_NODE)] {
            bed.peer(self.address(NODE, number), bits);
        }
        let mut facts = Facts::default();
        for number in 0..self.services {
            let hint = self.install_service(&bed, number);
            if number == 0 {
                facts.hint = hint;
            }
        }
        (bed, facts)
    }

    /// Returns the sizes of the maps: the object's defaults, or what the flows need. A flow needs
    /// two entries, and room before eviction.
    fn sizes(&self) -> Sizes {
        let flows = if self.has_flows() { self.flows / 2 * 5 } else { 0 };
        let services = self.services.next_power_of_two() * 2;
        let slots = services * self.slots;
        Sizes { services, slots, backends: services + 2, flows: flows.max(1 << 18) }
    }

    /// Installs a Service with one backend. Returns the backend's hint.
    fn install_service(&self, bed: &Bed, number: u32) -> u16 {
        let (frontend, backend) = (self.frontend(number), self.pod(number));
        let service = self.kind(bed).external(frontend);
        if !self.walk.is_node_port() {
            bed.vip(frontend.ip(), VIP_EXTERNAL);
        }
        let service = match self.walk.place() {
            Place::Here => service.backend_local(backend),
            Place::Dsr => {
                let nodes = (self.address(NODE, 1), self.address(NODE, 2));
                let way = if number == 0 { bed.way(resolved_way(nodes.0, nodes.1)) } else { 1 };
                service.backend_remote(backend, way)
            }
            Place::Snat => service.backend_remote(backend, 0),
        };
        let service = if self.walk == Walk::DsrUnsettled {
            service.backend_remote(SocketAddr::new(self.address(POD, NEW_OWNER), FIRST_PORT), 1)
        } else {
            service
        };
        let installed = service.install();
        if self.walk == Walk::DsrUnsettled {
            installed.unsettle(bed, 1, 0);
        }
        if self.walk.place() == Place::Snat {
            bed.hop(backend, known_hop(self.address(NODE, 1)));
        }
        installed.endpoints.first().map_or(0, |endpoint| endpoint.hint)
    }

    /// Returns a Service of the walk's kind, without frontends and backends.
    fn kind<'bed>(&self, bed: &'bed Bed) -> ServiceBuilder<'bed> {
        let service = bed.service().maglev_slots(self.slots);
        let service = if self.walk.is_udp() { service.udp() } else { service };
        let is_dsr = self.walk.place() == Place::Dsr || self.walk.is_tunnelled();
        let service = if is_dsr { service.dsr() } else { service };
        match self.walk {
            Walk::LocalNodePort | Walk::DsrNodePort => service.node_ports(),
            Walk::LocalAffinity | Walk::DsrAffinity => service.affinity(),
            Walk::LocalSourceRanges | Walk::DsrSourceRanges => {
                service.source_range(self.address(CLIENT, 0), if self.is_v6 { 48 } else { 16 })
            }
            // No client is a router.
            Walk::Dropped => service.source_range(self.address(ROUTER, 0), if self.is_v6 { 48 } else { 24 }),
            _ => service,
        }
    }

    /// Opens a connection of the client: a SYN, the backend's answer, an ACK.
    fn open_connection(&self, bed: &Bed, facts: &mut Facts) -> Result<()> {
        let way_in = if self.hook == Hook::TcPodOut { Hook::TcPodIn } else { Hook::XdpIngress };
        for flags in [flag::SYN, flag::ACK] {
            let outcome = bed.send(way_in, &self.client_frame_with(Round::FIRST, flags));
            if self.walk.place() == Place::Snat {
                let source = outcome.frame().source();
                ensure!(facts.snat.is_none_or(|former| former == source), "the connection changed its port");
                facts.snat = Some(source);
            }
            bed.answer_all();
        }
        Ok(())
    }
}
