//! The checks of a node: `millrace check` runs all, and a running agent the cheap ones each minute.
//!
//! Small readers gather [`Facts`]. Each check is a function from these facts to findings, without I/O. It works
//! before an installation, beside an agent, and without one.

mod api;
mod boot;
mod conflict;
#[cfg(test)]
mod example;
mod finding;
mod firewall;
mod fix;
mod kernel;
mod mounts;
mod network;
mod probes;
mod running;
mod sysctl;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use self::conflict::Others;
use self::firewall::Firewall;
use self::kernel::Kernel;
use self::mounts::Mounts;
use self::network::Network;
use self::probes::Probed;
use self::running::Pins;
use crate::config::Settings;
use crate::source::kubernetes::Probe;

pub use finding::{Counts, Finding, Outcome};
pub use fix::Fix;
pub use running::Agent;

/// A check.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// The name on the command line, in the metric and in the reference.
    pub id: &'static str,
    /// What the check looks at, for the reference.
    pub about: &'static str,
    /// How often the check runs.
    pub turn: Turn,
    judge: fn(&Facts) -> Vec<Finding>,
}

/// Who runs a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// `millrace check` alone.
    Asked,
    /// A running agent, too, each minute: with this reason of an Event on the Node.
    EachMinute {
        /// The Event's reason.
        reason: &'static str,
        /// What a failure does to `/readyz`.
        readiness: Readiness,
    },
}

/// What a failure of a check does to `/readyz`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// The node is not ready: a roll-out stops here.
    Gates,
    /// Nothing.
    Ignores,
}

const fn each_minute(
    id: &'static str,
    about: &'static str,
    (reason, readiness): (&'static str, Readiness),
    judge: fn(&Facts) -> Vec<Finding>,
) -> Check {
    Check { id, about, turn: Turn::EachMinute { reason, readiness }, judge }
}

const fn asked(id: &'static str, about: &'static str, judge: fn(&Facts) -> Vec<Finding>) -> Check {
    Check { id, about, turn: Turn::Asked, judge }
}

/// All checks, in the order of the output.
pub const ALL: &[Check] = &[
    asked("kernel.version", "The kernel's version: eBPF needs 5.18", kernel::version),
    asked("kernel.jit", "The kernel's compiler for BPF programs", kernel::jit),
    asked("kernel.ipvs", "IPVS, which serves where eBPF can't", kernel::ipvs),
    asked("capabilities", "The capabilities of this process", kernel::capabilities),
    asked("bpffs", "The BPF file system, and whether the host has it, too", mounts::bpffs),
    asked("bpffs.foreign", "Data planes of other agents, or of earlier ones", mounts::foreign),
    asked("cgroup", "The control group of the socket hooks", mounts::cgroup),
    asked("agent", "The agent that runs here, and its readiness", running::agent),
    asked("api", "The API server", api::reachable),
    asked("api.address", "Whether the API server is asked through a Service's address", api::address),
    asked("api.rights", "The rights of RBAC", api::rights),
    asked("node", "The Node of this node, and its addresses", api::node),
    each_minute(
        "uplinks",
        "The devices toward the network",
        ("UplinkMissing", Readiness::Gates),
        network::uplinks,
    ),
    asked("uplinks.xdp", "XDP on each uplink, or why it is not there", network::xdp),
    asked("pods", "The devices toward pods", network::pods),
    asked("links", "The programs that must be attached", network::links),
    each_minute(
        "sysctl.forwarding",
        "Forwarding of both families",
        ("ForwardingOff", Readiness::Gates),
        sysctl::forwarding,
    ),
    each_minute(
        "sysctl.rp_filter",
        "The reverse-path filter of devices",
        ("ReversePathFilter", Readiness::Ignores),
        sysctl::reverse_path,
    ),
    asked("sysctl.ports", "Ports that a process may be given", sysctl::ports),
    asked("sysctl.boot", "What files of sysctl.d set at boot", sysctl::boot),
    each_minute(
        "firewall",
        "Rules behind the programs that drop packets of Services",
        ("FirewallConflict", Readiness::Ignores),
        firewall::rules,
    ),
    each_minute(
        "conflict.kube-proxy",
        "Rules, devices and processes of kube-proxy",
        ("KubeProxyConflict", Readiness::Ignores),
        conflict::kube_proxy,
    ),
    asked("conflict.data-planes", "Cilium, Calico's eBPF and kube-router", conflict::data_planes),
    asked("conflict.programs", "Programs of other software before ours", conflict::programs),
    asked("conflict.mark", "Policy rules and software that use bits of the mark", conflict::mark),
    asked("conflict.ports", "The ports of the agent's HTTP servers", conflict::ports),
    asked("ways", "The routes to other nodes, and their MTU", running::ways),
    asked("network", "Packets to other nodes, with --network", probes::network),
    asked("capacity", "The fill of the maps", running::capacity),
];

/// The findings of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// The name of the check.
    pub id: &'static str,
    /// What it found, at least one.
    pub findings: Vec<Finding>,
}

/// Runs these checks.
#[must_use]
pub fn run(checks: &[&Check], facts: &Facts) -> Vec<Checked> {
    let judged = checks.iter().map(|check| Checked { id: check.id, findings: (check.judge)(facts) });
    judged.collect()
}

/// Returns the checks that a running agent repeats.
pub fn of_each_minute() -> impl Iterator<Item = &'static Check> {
    ALL.iter().filter(|check| matches!(check.turn, Turn::EachMinute { .. }))
}

/// Returns the failures for which readiness waits, in one line; `None` without any.
#[must_use]
pub fn unready(checked: &[Checked]) -> Option<String> {
    let gates = |id: &str| {
        let check = ALL.iter().find(|check| check.id == id);
        check.is_some_and(|check| matches!(check.turn, Turn::EachMinute { readiness: Readiness::Gates, .. }))
    };
    let failing = checked.iter().filter(|one| gates(one.id)).flat_map(|one| &one.findings);
    let failing =
        failing.filter(|finding| finding.outcome == Outcome::Fail).map(|finding| finding.found.as_str());
    let failing: Vec<&str> = failing.collect();
    (!failing.is_empty()).then(|| failing.join("; "))
}

/// Returns the checks with these names, or whose names begin with one of these words and a dot; all without
/// any. Fails with the first name that no check has.
pub fn named(names: &[String]) -> Result<Vec<&'static Check>, String> {
    let is_meant = |check: &Check, name: &str| {
        let rest = check.id.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    if let Some(unknown) = names.iter().find(|name| !ALL.iter().any(|check| is_meant(check, name))) {
        return Err(unknown.clone());
    }
    let is_chosen = |check: &&Check| names.is_empty() || names.iter().any(|name| is_meant(check, name));
    Ok(ALL.iter().filter(is_chosen).collect())
}

/// The facts about a node.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The settings of the agent.
    pub settings: Settings,
    /// The agent that runs here.
    pub agent: Option<Agent>,
    /// The kernel, and this process.
    pub kernel: Kernel,
    /// The API server's answers.
    pub api: Known<Probe>,
    /// File systems.
    pub mounts: Mounts,
    /// Devices, addresses and routes.
    pub network: Known<Network>,
    /// Sysctls.
    pub sysctls: sysctl::Settings,
    /// The pinned maps.
    pub pins: Known<Pins>,
    /// The rules of firewalls.
    pub firewall: Known<Firewall>,
    /// Traces of other software.
    pub others: Others,
    /// The answers of other nodes; `None` = they were not asked.
    pub probed: Option<Vec<Probed>>,
}

/// The questions to others.
#[derive(Clone, Copy, Debug)]
pub struct Questions {
    /// The time for each answer of the API server.
    pub patience: Duration,
    /// Whether packets are sent to other nodes.
    pub to_nodes: bool,
}

/// A fact, or why it can't be read.
pub type Known<T> = Result<T, String>;

impl Facts {
    /// Reads all facts about this node, where this agent runs.
    pub async fn gather(settings: Settings, agent: Option<Agent>, asked: Questions) -> Self {
        let api = api::read(&settings, asked.patience).await;
        let of_node = api.iter().filter_map(|probe| probe.node.as_ref().ok()?.as_ref()).flatten();
        let nodes = settings.node_addresses.iter().chain(of_node).copied().collect();
        let facts = Self::of_node(settings, &nodes).await;
        let pins = facts.pins.as_ref().ok().filter(|_| asked.to_nodes);
        let probed = pins.map(|pins| probes::read(&facts.settings, pins));
        Self { agent, api, probed, ..facts }
    }

    /// Reads the facts about this node without a question to others. `nodes` are addresses of the cluster's nodes
    /// that are known besides those in the maps.
    pub async fn of_node(settings: Settings, nodes: &BTreeSet<IpAddr>) -> Self {
        let pins = Pins::read(&settings.bpffs);
        let ways = pins.iter().flat_map(|pins| &pins.ways).map(|way| way.target);
        let targets = nodes.iter().copied().chain(ways).collect();
        let attached = pins.iter().flat_map(|pins| &pins.status.attached);
        let serving = attached.filter(|one| one.hook == "tc_ingress").map(|one| one.device_index).collect();
        let network = Network::read(&settings, &targets, &serving).await.map_err(|error| error.to_string());
        let devices = network.iter().flat_map(|network| network.look.state.devices.values());
        let sysctls = sysctl::Settings::read(devices.map(|device| device.name.clone()));
        Self {
            agent: None,
            api: Err("no API server is asked".to_owned()),
            kernel: Kernel::read(),
            mounts: Mounts::read(&settings),
            network,
            sysctls,
            pins,
            firewall: Firewall::read(),
            others: Others::read(),
            probed: None,
            settings,
        }
    }

    /// Returns the facts about a node where nothing is wrong.
    #[cfg(test)]
    #[must_use]
    pub fn example() -> Self {
        example::facts()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(names: &[&str]) -> Result<Vec<&'static str>, String> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        named(&names).map(|checks| checks.iter().map(|check| check.id).collect())
    }

    #[test]
    fn a_check_is_named_by_itself_or_with_its_group() {
        assert_eq!(ids(&["bpffs"]).unwrap(), ["bpffs", "bpffs.foreign"]);
        assert_eq!(ids(&["cgroup", "kernel.jit"]).unwrap(), ["kernel.jit", "cgroup"]);
        assert_eq!(ids(&[]).unwrap().len(), ALL.len());
        assert_eq!(ids(&["cgroup", "kern"]), Err("kern".to_owned()));
    }

    #[test]
    fn readiness_waits_for_some_failures_alone() {
        let checked = |id, finding| Checked { id, findings: vec![Finding::pass("x"), finding] };
        assert_eq!(unready(&[checked("firewall", Finding::fail("a", "b"))]), None);
        assert_eq!(unready(&[checked("uplinks", Finding::warn("a", "b"))]), None);
        let both = [
            checked("uplinks", Finding::fail("a", "b")),
            checked("sysctl.forwarding", Finding::fail("c", "d")),
        ];
        assert_eq!(unready(&both).as_deref(), Some("a; c"));
    }

    #[test]
    fn names_and_reasons_are_words_of_their_own() {
        let names: BTreeSet<&str> = ALL.iter().map(|check| check.id).collect();
        assert_eq!(names.len(), ALL.len());
        for check in ALL {
            assert!(check.id.chars().all(|c| c.is_ascii_lowercase() || ".-_".contains(c)), "{}", check.id);
            assert!(!check.about.ends_with('.'), "{}", check.about);
            if let Turn::EachMinute { reason, .. } = check.turn {
                assert!(reason.starts_with(char::is_uppercase) && !reason.contains(' '), "{reason}");
            }
        }
    }
}
