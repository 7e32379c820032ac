//! The cluster that the drill is played on.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;

use super::way::Way;
use crate::cluster::Cluster;
use crate::manifests::Service;
use crate::net::Netlink;
use crate::patience::patience;
use crate::process::{self, Process};
use crate::topology::Shape;

/// The nodes.
pub(crate) const NODES: [u8; 3] = [1, 2, 3];
/// The longest time of all agents to carry out a change, once nothing keeps them from it.
const FOLLOW_LIMIT: Duration = Duration::from_secs(90);
/// The entries of the flow tables. A flood fills them in seconds, and the drill's own traffic is far
/// below.
pub(super) const FLOWS: &str = "8192";
/// The number of the Service that shows whether agents follow changes. The other numbers are those
/// of the ways.
const CANARY: u8 = 90;

/// Three nodes with two pods each, their agents, and the Services of all ways.
#[derive(Debug)]
pub struct Ground {
    cluster: Cluster,
    /// The number of changes of the canary so far.
    changes: usize,
    /// The binary of a former version, for an upgrade.
    former: Option<PathBuf>,
}

impl Ground {
    /// Builds it, and waits until all ways are served.
    pub fn start(xdp: &str) -> Result<Self> {
        Self::start_version(xdp, None)
    }

    /// Builds it with agents of a former version, and without the last endpoint of each Service.
    pub(super) fn start_former(xdp: &str, former: PathBuf) -> Result<Self> {
        Self::start_version(xdp, Some(former))
    }

    fn start_version(xdp: &str, former: Option<PathBuf>) -> Result<Self> {
        let mut cluster = Cluster::without_agents(Shape::default(), xdp)?;
        // The router keeps its address, whatever becomes of its ports.
        cluster.bed().router().run(async || {
            let netlink = Netlink::open()?;
            netlink.set_mac("lan", netlink.mac_of("lan").await?).await
        })?;
        if let Some(binary) = &former {
            NODES.iter().try_for_each(|node| cluster.set_binary(*node, binary))?;
        }
        let mut ground = Self { cluster, changes: 0, former };
        ground.start_agents(&NODES)?;
        let cluster = &ground.cluster;
        NODES.iter().try_for_each(|node| cluster.wait_for_hooks(*node))?;
        let service = if ground.former.is_some() { Way::older_service } else { Way::service };
        for way in Way::ALL {
            cluster.apply(&service(way, cluster)?, &NODES)?;
            for family in crate::topology::Family::ALL {
                let target = way.target(cluster, family)?.ip();
                if !matches!(way, Way::NodePort | Way::Socket) {
                    cluster.bed().route_to(target, way.director())?;
                }
            }
        }
        for proxy in cluster.proxies() {
            proxy.wait_for_hooks("cgroup", &["cg_connect6", "cg_sendmsg6"])?;
        }
        NODES.iter().try_for_each(|node| cluster.wait_for_ways(*node))?;
        Ok(ground)
    }

    /// Returns the cluster.
    #[must_use]
    pub const fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Returns the cluster, to change it.
    #[must_use]
    pub const fn cluster_mut(&mut self) -> &mut Cluster {
        &mut self.cluster
    }

    /// Returns the binary of the former version.
    pub fn former(&self) -> Result<&Path> {
        self.former.as_deref().context("the cluster did not begin with a former version")
    }

    /// Writes the Services of all ways at once, and waits until all nodes have them.
    pub(super) fn put_services(&self, service: impl Fn(Way, &Cluster) -> Result<Service>) -> Result<()> {
        let cluster = &self.cluster;
        let services: Vec<Service> =
            Way::ALL.into_iter().map(|way| service(way, cluster)).collect::<Result<_>>()?;
        services.iter().try_for_each(|service| cluster.manifests().put_service(service))?;
        services.iter().try_for_each(|service| cluster.apply(service, &NODES))
    }

    /// Returns the flags of a node's agent. Node 2 sends UDP where the others send IPIP.
    #[must_use]
    pub const fn flags(node: u8) -> [&'static str; 4] {
        let encapsulation = if node == 2 { "fou,ipip" } else { "ipip,fou" };
        ["--dsr-encap", encapsulation, "--flow-table-size", FLOWS]
    }

    /// Starts agents and does not wait for them.
    pub fn start_agents(&mut self, nodes: &[u8]) -> Result<()> {
        nodes.iter().try_for_each(|node| self.cluster.start_agent_with(*node, &Self::flags(*node)))
    }

    /// Starts all agents with a flag more, or with another value, and does not wait for them.
    pub fn start_agents_with(&mut self, flag: &[&'static str; 2]) -> Result<()> {
        NODES.into_iter().try_for_each(|node| self.start_agent_with(node, flag))
    }

    /// Starts one agent so.
    pub fn start_agent_with(&mut self, node: u8, flag: &[&'static str; 2]) -> Result<()> {
        let usual = Self::flags(node);
        let others = usual.chunks(2).filter(|usual| usual.first() != flag.first());
        let flags: Vec<&str> = others.flatten().chain(flag).copied().collect();
        self.cluster.start_agent_with(node, &flags)
    }

    /// Kills agents at once.
    pub fn kill_agents(&mut self, nodes: &[u8]) -> Result<()> {
        nodes.iter().try_for_each(|node| self.cluster.take_agent(*node)?.kill())
    }

    /// Sends a signal to agents.
    pub fn signal_agents(&self, nodes: &[u8], signal: Signal) -> Result<()> {
        nodes.iter().try_for_each(|node| self.cluster.agent(*node)?.signal(signal))
    }

    /// Starts an agent after `prepare` has changed its command, and does not wait for it.
    pub fn start_agent_prepared(
        &mut self,
        node: u8,
        prepare: impl FnOnce(&mut Command) + Send + 'static,
    ) -> Result<()> {
        self.cluster.start_agent_prepared(node, &Self::flags(node), prepare)
    }

    /// Runs a program on a node, as another administrator would. It must succeed.
    pub fn run(&self, node: u8, words: &[&str]) -> Result<()> {
        process::output(self.cluster.bed().node(node)?.namespace(), words).map(drop)
    }

    /// Runs `ip` on a node, with a family that fits the words.
    pub fn ip(&self, node: u8, words: &[&str]) -> Result<()> {
        let family: &[&str] = if words.iter().any(|word| word.contains(':')) { &["-6"] } else { &[] };
        self.run(node, &[&["ip"], family, words].concat())
    }

    /// Makes a change, and waits until the agents of all nodes have carried it out. Returns the time.
    pub fn wait_until_followed(&mut self) -> Result<Duration> {
        let began = Instant::now();
        self.changes += 1;
        let pods: &[&str] = if self.changes.is_multiple_of(2) { &["pod-1a"] } else { &["pod-2a", "pod-3a"] };
        let canary = self.cluster.service("canary", CANARY, pods)?;
        loop {
            let Err(error) = self.cluster.apply(&canary, &NODES) else { return Ok(began.elapsed()) };
            if began.elapsed() > patience(FOLLOW_LIMIT)
                || !NODES.iter().all(|node| self.cluster.has_agent(*node))
            {
                return Err(error.context("an agent does not follow changes any more"));
            }
        }
    }

    /// Brings all agents back after a fault that could not be played or mended.
    pub fn restore(&mut self) -> Result<()> {
        for node in NODES {
            let runs = self.cluster.agent(node).is_ok_and(Process::is_running);
            if runs {
                self.signal_agents(&[node], Signal::SIGCONT)?;
            } else {
                self.start_agents(&[node])?;
            }
        }
        self.wait_until_followed().context("the cluster can't be restored").map(drop)
    }

    /// Waits until a condition holds.
    pub fn wait_for(&self, limit: Duration, what: &str, condition: impl Fn() -> Result<bool>) -> Result<()> {
        let end = Instant::now() + patience(limit);
        while !condition()? {
            if Instant::now() > end {
                bail!("waited in vain until {what}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}
