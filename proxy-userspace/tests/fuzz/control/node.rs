//! A node without a kernel: source, model and both plans, as in the agent.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use millrace::config::{AgentArgs, Settings};
use millrace::dataplane::SyncReport;
use millrace::dataplane::ebpf::plan as ebpf;
use millrace::dataplane::ipvs::{Rules, State, Virtual, plan as ipvs};
use millrace::model::{Dirty, Model, PortKey, Problem, Scope, ServicePort};
use millrace::node::{AttachTarget, Hook, Link, Topology, Way};
use millrace::source::SourceEvent;
use millrace::source::directory::Catalogue;

/// The node's name.
pub const NAME: &str = "node-1";
/// The namespace of the Services in a file that no input changes.
pub const KEPT: &str = "kept";

const UPLINK: u32 = 2;
/// Room for everything that an input may want.
const CAPACITIES: ebpf::Capacities = ebpf::Capacities {
    services: 1 << 14,
    slots: 1 << 22,
    backends_v4: 1 << 14,
    backends_v6: 1 << 14,
    ways: 1 << 8,
};

#[derive(Parser)]
pub struct Agent {
    #[command(flatten)]
    pub args: AgentArgs,
}

/// Everything between the manifests and the two kernels' tables.
pub struct Node {
    catalogue: Catalogue,
    model: Model,
    ebpf: ebpf::Plan,
    frontends: Frontends,
    ipvs: ipvs::Plan,
    now: Duration,
}

/// The served addresses in both modes.
#[derive(Clone, Debug, PartialEq)]
pub struct Served {
    /// All service ports.
    pub ports: Vec<(PortKey, ServicePort)>,
    frontends: BTreeSet<ebpf::FrontendAt>,
    services: BTreeSet<Virtual>,
    bound: BTreeSet<IpAddr>,
}

/// The result of a new text of a file.
pub struct Told {
    /// The problems of the source and of the model.
    pub problems: Vec<Problem>,
    /// The changes of objects.
    pub changes: usize,
    /// Whether both plans were carried out as a whole.
    pub is_complete: bool,
}

impl Node {
    /// Returns a node that serves nothing yet.
    pub fn new(flags: &[&str]) -> Self {
        let own = ["agent", "--source", "directory:/manifests"];
        let agent = Agent::parse_from(own.iter().chain(flags));
        let settings = Settings::resolve_on(&agent.args, Some(NAME.to_owned())).unwrap();
        let topology = topology();
        let mut model = Model::new(settings.model);
        model.set_node_addresses(topology.addresses.clone());
        let mut ipvs = ipvs::Plan::new(Rules::default(), State::default());
        ipvs.set_topology(&topology);
        let mut ebpf = ebpf::Plan::adopt(CAPACITIES, ebpf::Found::default(), Duration::ZERO);
        let mut frontends = Frontends::default();
        let native = topology.devices.keys().copied().collect();
        assert!(ebpf.set_topology(&topology, &native, Duration::ZERO, &mut frontends).is_complete());
        Self { catalogue: Catalogue::default(), model, ebpf, frontends, ipvs, now: Duration::ZERO }
    }

    /// Gives a file its text, and brings both modes up to date.
    pub fn give(&mut self, file: &Arc<Path>, text: Vec<u8>) -> Told {
        self.catalogue.update(file, Ok(text));
        let mut told = Told { problems: Vec::new(), changes: 0, is_complete: true };
        for event in self.catalogue.take_events() {
            match event {
                SourceEvent::Change(change) => {
                    told.changes += 1;
                    self.model.apply(change);
                }
                SourceEvent::Problem(problem) => told.problems.push(problem),
                SourceEvent::Listed(_) => {}
            }
        }
        let dirty = self.model.refresh();
        told.problems.extend(self.model.take_problems());
        told.is_complete = self.sync(&dirty).iter().all(SyncReport::is_complete);
        told
    }

    fn sync(&mut self, dirty: &Dirty) -> [SyncReport; 2] {
        // No flow waits for an id.
        self.now += Duration::from_hours(1);
        self.ebpf.entries_removed(self.ebpf.ids_to_reclaim(self.now));
        let desired = self.model.desired();
        let by_ebpf = self.ebpf.sync(desired, dirty, self.now, &mut self.frontends);
        [by_ebpf, self.ipvs.sync(desired, dirty, &mut Obeying)]
    }

    /// Returns what both modes serve.
    pub fn served(&self) -> Served {
        let ports = self.model.desired().ports.iter();
        let State { services, addresses, .. } = self.ipvs.actual();
        Served {
            ports: ports.map(|(key, port)| (key.clone(), port.clone())).collect(),
            frontends: self.frontends.0.clone(),
            // The number of a mark depends on the earlier ones.
            services: services.into_keys().filter(|key| matches!(key, Virtual::Address { .. })).collect(),
            bound: addresses,
        }
    }
}

impl Served {
    /// Returns the Services that no input changes.
    pub fn kept(&self) -> Vec<&(PortKey, ServicePort)> {
        self.ports.iter().filter(|(key, _)| key.service.namespace == KEPT).collect()
    }

    /// Returns the addresses of the Services that no input changes, as far as a mode does not serve them.
    pub fn unserved(&self) -> Vec<SocketAddr> {
        // Only packets from other nodes in eBPF mode have the scope of encapsulated ones.
        let plain = |port: &ServicePort| {
            let plain = port.frontends.iter().filter(|one| one.scope != Scope::Encapsulated);
            plain.map(|one| one.address).collect::<Vec<_>>()
        };
        let by_ebpf: BTreeSet<SocketAddr> = self.frontends.iter().map(|at| at.address).collect();
        let by_ipvs: BTreeSet<SocketAddr> = self.services.iter().filter_map(address_of).collect();
        let mut kept: Vec<SocketAddr> = self.kept().iter().flat_map(|(_, port)| plain(port)).collect();
        assert!(!kept.is_empty());
        // IPVS does not serve NodePorts on the loopback device.
        kept.retain(|address| {
            let has_ipvs = address.ip().is_loopback() || by_ipvs.contains(address);
            !has_ipvs || !by_ebpf.contains(address)
        });
        kept
    }
}

fn address_of(service: &Virtual) -> Option<SocketAddr> {
    match service {
        Virtual::Address { address, .. } => Some(*address),
        Virtual::Mark { .. } => None,
    }
}

/// The frontends in maps that accept every change.
#[derive(Default)]
struct Frontends(BTreeSet<ebpf::FrontendAt>);

impl ebpf::Kernel for Frontends {
    fn apply(&mut self, change: &ebpf::Change) -> Result<(), String> {
        match change {
            ebpf::Change::Frontend(at, _) => {
                self.0.insert(*at);
            }
            ebpf::Change::RemoveFrontend(at) => assert!(self.0.remove(at), "{at:?} was not there"),
            _ => {}
        }
        Ok(())
    }
}

/// IPVS that accepts every operation. The plan itself knows the state.
struct Obeying;

impl ipvs::Kernel for Obeying {
    fn apply(&mut self, _op: &ipvs::Op) -> Result<(), String> {
        Ok(())
    }
}

fn topology() -> Topology {
    let uplink = AttachTarget {
        name: "eth0".to_owned(),
        hooks: BTreeSet::from([Hook::Xdp, Hook::TcIngress]),
        mac: None,
        source_v4: Some([172, 16, 0, 1].into()),
        source_v6: None,
    };
    let link = Some(Link { source_mac: [2, 0, 0, 0, 0, 1], destination_mac: [2, 0, 0, 0, 0, 2] });
    let way = Way { source: [172, 16, 0, 1].into(), device: UPLINK, mtu: 1500, link };
    Topology {
        devices: [(UPLINK, uplink)].into(),
        ways: [(IpAddr::from([172, 16, 0, 2]), way)].into(),
        addresses: BTreeSet::from([IpAddr::from([172, 16, 0, 1])]),
        uplinks: BTreeSet::from(["eth0".to_owned()]),
        mtu: Some(1500),
        ..Topology::default()
    }
}
