//! The compared sides: nodes of one bed with the same Services, each with another proxy.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use aya::programs::{ProgramFd, ProgramInfo};
use millrace_lab::agent::Proxy;
use millrace_lab::cluster::Cluster;
use millrace_lab::frame::NEIGHBOUR_MAC;
use millrace_lab::kube_proxy::{KubeProxy, Mode};
use millrace_lab::manifests::Service;
use millrace_lab::net::{Netlink, set_queues};
use millrace_lab::topology::{Family, Node, Shape, vip};

use super::case::{BACKENDS, Case, PORT, TARGET};
use super::programs::{Programs, Template};
use crate::report::MILLRACE;

/// A way to handle frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The frame goes back out of its device, by an XDP program that does nothing else.
    BareTransmit,
    /// A node without a proxy: the kernel's routing. It serves no Service.
    Routing,
    /// Millrace, with its XDP program.
    MillraceXdp,
    /// Millrace with `--xdp off`.
    MillraceTc,
    /// The real kube-proxy in its mode iptables.
    KubeProxyIptables,
    /// The real kube-proxy in its mode nftables.
    KubeProxyNftables,
}

impl Side {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::BareTransmit,
        Self::MillraceXdp,
        Self::MillraceTc,
        Self::KubeProxyIptables,
        Self::KubeProxyNftables,
        Self::Routing,
    ];

    /// Returns the name of its figures.
    pub const fn name(self) -> &'static str {
        match self {
            Self::BareTransmit => "bare TX",
            Self::Routing => "routing alone",
            Self::MillraceXdp => "XDP",
            Self::MillraceTc => "TC",
            Self::KubeProxyIptables => "iptables",
            Self::KubeProxyNftables => "nftables",
        }
    }

    /// Returns whose figures they are.
    pub const fn subject(self) -> &'static str {
        match self {
            Self::BareTransmit | Self::Routing => "no proxy",
            Self::MillraceXdp | Self::MillraceTc => MILLRACE,
            Self::KubeProxyIptables | Self::KubeProxyNftables => "kube-proxy",
        }
    }

    /// Returns the number of its node.
    pub const fn node(self) -> u8 {
        match self {
            Self::MillraceXdp => 1,
            Self::MillraceTc => 2,
            Self::KubeProxyIptables => 3,
            Self::KubeProxyNftables => 4,
            Self::BareTransmit | Self::Routing => 5,
        }
    }

    /// Returns whether the side is one of Millrace's.
    pub const fn is_own(self) -> bool {
        matches!(self, Self::MillraceXdp | Self::MillraceTc)
    }

    /// Returns whether the side can do the work of a case.
    pub const fn serves(self, case: Case) -> bool {
        !matches!((self, case), (Self::Routing, Case::Dsr | Case::Snat | Case::Local))
    }
}

/// A bed with all sides. Everything in it is ready.
pub struct Sides {
    // Dropped before the bed.
    peers: Vec<KubeProxy>,
    cluster: Cluster,
}

impl Sides {
    /// Builds it, with kube-proxies if there is an API server.
    pub fn start(with_peers: bool, processors: u32) -> Result<Self> {
        let shape = Shape { nodes: BACKENDS, pods: 1, ..Shape::default() };
        let mut cluster = if with_peers {
            Cluster::with_api_server(shape, "native")?
        } else {
            Cluster::without_agents(shape, "native")?
        };
        for node in cluster.bed().nodes() {
            add_queues(&cluster, node, processors)?;
        }
        let served = [Side::MillraceXdp.node(), Side::MillraceTc.node()];
        cluster.start_agent(served[0])?;
        cluster.start_agent_with(served[1], &["--xdp", "off"])?;
        cluster.proxy(served[0])?.wait_for_hooks("eth0", &["xdp", "tc_egress"])?;
        cluster.proxy(served[1])?.wait_for_hooks("eth0", &["tc_ingress", "tc_egress"])?;
        for service in services(&cluster)? {
            cluster.apply(&service, &served)?;
        }
        served.iter().try_for_each(|node| cluster.wait_for_ways(*node))?;
        let mut peers = Vec::new();
        if with_peers {
            for (side, mode) in
                [(Side::KubeProxyIptables, Mode::Iptables), (Side::KubeProxyNftables, Mode::Nftables)]
            {
                let node = cluster.bed().node(side.node())?;
                peers.push(KubeProxy::start(cluster.bed(), node, cluster.api_server()?, mode)?);
            }
        }
        Ok(Self { peers, cluster })
    }

    /// Returns the sides that are there.
    pub fn all(&self) -> impl Iterator<Item = Side> {
        let is_peer = |side: &Side| matches!(side, Side::KubeProxyIptables | Side::KubeProxyNftables);
        Side::ALL.into_iter().filter(move |side| !self.peers.is_empty() || !is_peer(side))
    }

    /// Returns the bed and its agents.
    pub const fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Returns the frame of a case for a side's node.
    pub fn template(&self, side: Side, case: Case, family: Family, flows: u32) -> Result<Template> {
        let bed = self.cluster.bed();
        let node = bed.node(side.node())?;
        let mac = node.namespace().run(async || Netlink::open()?.mac_of("eth0").await)?;
        let frame = case.frame(bed, node, family, [NEIGHBOUR_MAC, mac])?;
        Ok(Template { frame, flows })
    }

    /// Returns the program that a side's frames run.
    pub fn target(&self, side: Side, programs: &Programs) -> Result<ProgramFd> {
        match side {
            Side::BareTransmit => programs.program("transmit"),
            Side::MillraceXdp => xdp_ingress(self.cluster.proxy(side.node())?),
            Side::Routing | Side::MillraceTc | Side::KubeProxyIptables | Side::KubeProxyNftables => {
                programs.program("pass")
            }
        }
    }

    /// Returns the packets that a side's agent counts, by program and reason.
    pub fn counted(&self, side: Side) -> Result<String> {
        let counters = self.cluster.proxy(side.node())?.counters()?;
        let counters = counters.iter().filter(|counter| counter.packets > 0);
        let words =
            counters.map(|counter| format!("{} {} {}", counter.program, counter.reason, counter.packets));
        Ok(words.collect::<Vec<_>>().join(", "))
    }

    /// Attaches the counting program where a case's frames arrive.
    pub fn count(&self, side: Side, case: Case, programs: &Programs) -> Result<()> {
        let bed = self.cluster.bed();
        if case == Case::Local && side != Side::BareTransmit {
            return programs.count_at(bed.pod(&case.backend(side.node()))?.namespace(), "eth0");
        }
        programs.count_at(bed.router(), bed.node(side.node())?.name())
    }
}

/// Returns the program that the agent has pinned, whatever its version of the layout.
fn xdp_ingress(proxy: &Proxy) -> Result<ProgramFd> {
    let top = proxy.bpffs().join("millrace");
    let folders = entries(&top)?.into_iter().map(|layout| layout.join("programs"));
    for folder in folders.filter(|folder| folder.is_dir()) {
        for build in entries(&folder)? {
            let path = build.join("xdp_ingress");
            if path.exists() {
                return Ok(ProgramInfo::from_pin(path)?.fd()?);
            }
        }
    }
    anyhow::bail!("{} has no xdp_ingress", top.display())
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("can't read {}", folder.display()))?;
    entries.map(|entry| Ok(entry?.path())).collect()
}

/// Gives the wires of a node a queue for each processor, so that two don't wait for one another.
fn add_queues(cluster: &Cluster, node: &Node, processors: u32) -> Result<()> {
    let port = node.name().to_owned();
    cluster.bed().router().run(async move || set_queues(&port, processors))?;
    node.namespace().run(async move || set_queues("eth0", processors))?;
    for pod in node.pods() {
        let device = pod.device();
        node.namespace().run(async move || set_queues(&device, processors))?;
        pod.namespace().run(async move || set_queues("eth0", processors))?;
    }
    Ok(())
}

fn services(cluster: &Cluster) -> Result<Vec<Service>> {
    let bed = cluster.bed();
    let service = |case: Case, node: u8, name: &str| {
        let (number, pod) = (case.service(node), case.backend(node));
        let service = Service::new(name, number).port(PORT, TARGET).load_balancer(vip(number));
        anyhow::Ok(service.pod(bed.node_of(&pod)?, bed.pod(&pod)?))
    };
    let dsr = service(Case::Dsr, 1, "dsr")?.annotation("millrace.dev/forwarding", "dsr");
    let mut services = vec![dsr, service(Case::Snat, 1, "snat")?];
    for node in 1..BACKENDS {
        services.push(service(Case::Local, node, &format!("local-{node}"))?);
    }
    Ok(services)
}
