//! The common cluster of the tests.

use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, ensure};
use millrace_lab::cluster::Cluster;
use millrace_lab::manifests::Service;
use millrace_lab::net::{driver_of, remove_own_at_exit};
use millrace_lab::topology::{Shape, Wire, vip};

/// The variable with the driver of the cards.
const NIC: &str = "MILLRACE_NIC";
/// Tables for a small machine.
const SMALL: [&str; 2] = ["--flow-table-size", "4096"];

/// The way from the client's director to the backend.
#[derive(Clone, Copy, Debug)]
pub enum Way {
    /// The backend is on the director.
    Local,
    /// By SNAT to another node.
    Snat,
    /// By Direct Server Return from another node.
    Dsr,
}

impl Way {
    pub const ALL: [Self; 3] = [Self::Local, Self::Snat, Self::Dsr];

    /// Returns the number of the Service's addresses.
    pub const fn number(self) -> u8 {
        match self {
            Self::Local => 1,
            Self::Snat => 2,
            Self::Dsr => 3,
        }
    }

    /// Returns the pods behind the Service.
    pub const fn pods(self) -> &'static [&'static str] {
        match self {
            Self::Local => &["pod-1a"],
            Self::Snat | Self::Dsr => &["pod-2a", "pod-3a"],
        }
    }

    /// Applies the Service on all nodes.
    pub fn apply(self, cluster: &Cluster) -> Result<Service> {
        let name = format!("{self:?}").to_lowercase();
        let service = cluster.service(&name, self.number(), self.pods())?.load_balancer(vip(self.number()));
        let service = match self {
            Self::Dsr => service.annotation("millrace.dev/forwarding", "dsr"),
            Self::Local | Self::Snat => service,
        };
        cluster.apply(&service, &[1, 2, 3])?;
        Ok(service)
    }
}

/// Returns the driver that the machine's cards are to have.
pub fn driver() -> Result<String> {
    std::env::var(NIC).with_context(|| format!("{NIC} names no driver: cargo xtask vm -- drivers"))
}

/// Returns three nodes with a card and a pod each, and an agent that chooses the XDP mode itself. The
/// tests take turns.
pub fn shared() -> MutexGuard<'static, Cluster> {
    static SHARED: LazyLock<Mutex<Cluster>> = LazyLock::new(|| {
        remove_own_at_exit();
        let cluster = start().unwrap();
        Mutex::new(cluster)
    });
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn start() -> Result<Cluster> {
    let wanted = driver()?;
    let mut cluster = Cluster::without_agents(Shape { nodes: 3, pods: 1, wire: Wire::Cards }, "auto")?;
    for node in cluster.bed().nodes() {
        let found = node.namespace().run(async || driver_of("eth0"))?;
        ensure!(found == wanted, "the card of {} has the driver {found}, not {wanted}", node.name());
    }
    for node in 1..=3 {
        cluster.start_agent_with(node, &SMALL)?;
    }
    for node in 1..=3 {
        cluster.wait_for_hooks(node)?;
    }
    for way in Way::ALL {
        way.apply(&cluster)?;
    }
    for node in 1..=3 {
        cluster.wait_for_ways(node)?;
    }
    Ok(cluster)
}

/// Returns the number of packets that a node has counted for a reason.
pub fn counted(cluster: &Cluster, node: u8, reason: &str) -> Result<u64> {
    let counters = cluster.proxy(node)?.counters()?;
    Ok(counters.iter().filter(|counter| counter.reason == reason).map(|counter| counter.packets).sum())
}
