//! The settings, from the flags and the file of `--config`; resolved once, at start.
#![forbid(unsafe_code)]

mod args;
mod controller;
mod error;
pub mod file;
mod ipvs;
mod merge;
mod overlap;
mod parse;
mod watch;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use proxy_common::timeouts::Timeouts;

pub use args::AgentArgs;
pub use controller::ControllerArgs;
pub use error::{ConfigError, Refused};
pub use file::Remark;
pub use ipvs::IpvsArgs;
pub use parse::{AlgorithmWord, BindAddress, NodePortRange, OuterSourceItem};
pub use watch::ConfigFile;

use crate::dataplane::ebpf::{Dsr, Sockets, XdpMode};
use crate::dataplane::ipvs::Settings as IpvsSettings;
use crate::dataplane::{Mark, RejectUnknown};
use crate::model::ModelSettings;
use crate::node::{Conntrack, DevicePattern, NodeSettings, RouteSettings, XdpUse};

/// The ports of kube-proxy.
const HEALTHZ_PORT: u16 = 10256;
const METRICS_PORT: u16 = 10249;
/// The port of `millrace controller`, beside those of kube-proxy and the agent.
const CONTROLLER_PORT: u16 = 10270;

/// The settings of the agent, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where objects come from.
    pub source: Source,
    /// The settings of the model; `model.node_name` is this node's name.
    pub model: ModelSettings,
    /// Which data plane.
    pub proxy_mode: ProxyMode,
    /// The address of /healthz and /livez.
    pub healthz_bind_address: Option<SocketAddr>,
    /// The address of /metrics, /proxyMode, /healthz and /configz.
    pub metrics_bind_address: Option<SocketAddr>,
    /// Devices toward the network; empty = found by their routes and addresses.
    pub uplinks: Vec<String>,
    /// Devices toward this node's pods. A device in `uplinks` is none, whatever its name.
    pub pod_interfaces: Vec<DevicePattern>,
    /// Prefixes of the addresses that nodes answer for on their links.
    pub l2_announce: Vec<IpNet>,
    /// Devices to announce addresses of Services on; empty = all uplinks.
    pub l2_devices: Vec<DevicePattern>,
    /// The routes that the agent keeps.
    pub routes: RouteSettings,
    /// Whether NetworkPolicies are enforced for this node's pods, on the devices of `pod_interfaces`.
    pub network_policy: bool,
    /// Flow time-outs.
    pub timeouts: Timeouts,
    /// The settings of the kernel's connection tracking.
    pub conntrack: Conntrack,
    /// Entries of FLOWS4 and of FLOWS6.
    pub flow_table_size: u32,
    /// Ports of this node for SNAT of connections to backends on other nodes.
    pub snat_ports: RangeInclusive<u16>,
    /// Mark of packets to the stack.
    pub mark: Mark,
    /// The Service addresses that refuse unknown ports.
    pub reject_unknown: RejectUnknown,
    /// The settings of encapsulation.
    pub dsr: Dsr,
    /// The settings of the socket hooks; no control group = the one that the agent finds.
    pub sockets: Sockets,
    /// The settings of the IPVS data plane alone.
    pub ipvs: IpvsSettings,
    /// The time that the former mode keeps its connections after a mode change.
    pub drain: Duration,
    /// The mount point of the BPF file system.
    pub bpffs: PathBuf,
    /// The attachment of XDP.
    pub xdp: XdpMode,
    /// Shortest time between two syncs.
    pub min_sync_interval: Duration,
    /// Longest time between two syncs.
    pub max_sync_interval: Duration,
    /// The file that `--config` names.
    pub config: Option<ConfigFile>,
    /// Remarks on the file.
    pub remarks: Vec<Remark>,
    /// The form of the log.
    pub log_format: LogFormat,
    /// The work of this process.
    pub task: Task,
    /// The addresses in `NODE_IPS`; empty = unknown.
    pub node_addresses: BTreeSet<IpAddr>,
}

/// Where objects come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The API server.
    Kubernetes {
        /// What says which one; `None` = the environment does.
        kubeconfig: Option<PathBuf>,
    },
    /// Manifests in this directory.
    Directory(PathBuf),
}

/// The form of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Lines for people.
    #[default]
    Text,
    /// A JSON object in each line.
    Json,
}

impl LogFormat {
    /// Both; the default is first.
    pub const ALL: [Self; 2] = [Self::Text, Self::Json];

    /// Returns the word of `--log-format`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

/// The work of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Serve until a signal.
    Serve,
    /// Set the node up, and end.
    Init,
}

/// Reads the value of `NODE_IPS`, which a pod gets from `status.hostIPs`.
fn of_pod(text: &str) -> Result<BTreeSet<IpAddr>, ConfigError> {
    parse::ip_addresses(text).map_err(|refused| refused.at("NODE_IPS"))
}

/// Which data plane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProxyMode {
    /// The best mode of this kernel.
    #[default]
    Auto,
    /// XDP and TC programs, and nothing else.
    Ebpf,
    /// IPVS and nftables, and nothing else.
    Ipvs,
    /// None: kube-proxy gets new connections.
    None,
}

impl ProxyMode {
    /// All of them; the default is first.
    pub const ALL: [Self; 4] = [Self::Auto, Self::Ebpf, Self::Ipvs, Self::None];

    /// Returns the word of `--proxy-mode`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Ebpf => "ebpf",
            Self::Ipvs => "ipvs",
            Self::None => "none",
        }
    }
}

impl Settings {
    /// Checks the flags. Missing values come from the environment and the host.
    pub fn resolve(args: &AgentArgs) -> Result<Self, ConfigError> {
        let name = std::env::var("NODE_NAME").ok().filter(|name| !name.is_empty());
        let addresses = std::env::var("NODE_IPS").unwrap_or_default();
        let settings = Self::resolve_on(args, name.or_else(host_name))?;
        Ok(Self { node_addresses: of_pod(&addresses)?, ..settings })
    }

    /// Returns what the user says about devices.
    #[must_use]
    pub fn node(&self) -> NodeSettings {
        NodeSettings {
            uplinks: self.uplinks.iter().cloned().collect(),
            pod_interfaces: self.pod_interfaces.clone(),
            is_guarded: self.network_policy,
            xdp: match self.xdp {
                XdpMode::Off => XdpUse::Never,
                XdpMode::Auto => XdpUse::OffTheWire,
                XdpMode::Native | XdpMode::Generic => XdpUse::Everywhere,
            },
            ..NodeSettings::default()
        }
    }

    /// Does the same as [`resolve`](Self::resolve), with the node name to use if neither flag nor file has
    /// one.
    pub fn resolve_on(args: &AgentArgs, node_name: Option<String>) -> Result<Self, ConfigError> {
        let text = args.config.as_deref().map(file::read).transpose()?;
        Self::of(args, node_name, text.as_deref())
    }

    /// Does the same with `text` as the content of the file of `--config`.
    fn of(args: &AgentArgs, node_name: Option<String>, text: Option<&[u8]>) -> Result<Self, ConfigError> {
        let config = args.config.as_ref().zip(text).map(|(path, text)| ConfigFile {
            path: path.clone(),
            text: text.to_owned(),
            args: args.clone(),
            node_name: node_name.clone(),
        });
        let file = config.as_ref().map(|config| file::interpret(&config.path, &config.text)).transpose()?;
        let file = file.unwrap_or_default();
        let settings = Self { config, ..merge::settings(args, &file, node_name)? };
        let ipvs = ipvs::resolve(&args.ipvs, &file.ipvs, &settings)?;
        Ok(Self { ipvs, ..settings })
    }
}

/// A time between two syncs, and the flag or field that sets it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Interval {
    origin: String,
    period: Duration,
}

/// Returns a list that was given; an empty one was not.
fn given<T: Clone>(list: &[T]) -> Option<Vec<T>> {
    Some(list.to_vec()).filter(|list| !list.is_empty())
}

/// Returns the name of this node for an output: NODE_NAME of the environment, or else the host's name.
#[must_use]
pub fn this_node() -> String {
    let given = std::env::var("NODE_NAME").ok().filter(|name| !name.is_empty());
    given.or_else(host_name).unwrap_or_default()
}

/// Returns the host's name as the kernel keeps it, so that the network namespace doesn't matter.
fn host_name() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests;
