//! The settings, from the flags and the file of `--config`; resolved once, at start.
#![forbid(unsafe_code)]

mod args;
mod conntrack;
pub mod file;
mod ipvs;
mod overlap;
mod parse;
mod watch;

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use proxy_common::flow::Timeouts;

pub use args::AgentArgs;
pub use file::Remark;
pub use watch::ConfigFile;

use file::{FileSettings, GoDuration};

use crate::dataplane::ebpf::{Dsr, Sockets, XdpMode};
use crate::dataplane::ipvs::Settings as IpvsSettings;
use crate::dataplane::{Mark, RejectUnknown};
use crate::model::{ClusterIpClients, Forwarding, ModelSettings};
use crate::node::{Conntrack, DevicePattern};

/// The ports of kube-proxy.
const HEALTHZ_PORT: u16 = 10256;
const METRICS_PORT: u16 = 10249;

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

/// Which data plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyMode {
    /// The best mode of this kernel.
    Auto,
    /// XDP and TC programs, and nothing else.
    Ebpf,
    /// IPVS and nftables, and nothing else.
    Ipvs,
    /// None: kube-proxy gets new connections.
    None,
}

impl ProxyMode {
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

/// A wrong value of a flag or of a field of the file. One line, for standard error and status 2.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{origin}: {message}")]
pub struct ConfigError {
    /// The flag with its dashes, or the file and the path of the field.
    pub origin: String,
    /// The value, and the accepted values.
    pub message: String,
}

impl Settings {
    /// Checks the flags. Missing values come from the environment and the host.
    pub fn resolve(args: &AgentArgs) -> Result<Self, ConfigError> {
        let name = std::env::var("NODE_NAME").ok().filter(|name| !name.is_empty());
        Self::resolve_on(args, name.or_else(host_name))
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
        let healthz = SocketAddr::from((Ipv4Addr::UNSPECIFIED, HEALTHZ_PORT));
        let metrics = SocketAddr::from((Ipv4Addr::LOCALHOST, METRICS_PORT));
        let (min_sync_interval, max_sync_interval) = sync_intervals(args, &file)?;
        let proxy_mode = match file.proxy_mode {
            Some(mode) if args.proxy_mode.is_none() => mode,
            _ => parse::proxy_mode(args.proxy_mode.as_deref())?,
        };
        let model = model_settings(args, &file, node_name)?;
        let dsr = dsr(args, &model)?;
        Ok(Self {
            source: match parse::source(args.source.as_deref(), args.kubeconfig.as_deref())? {
                Source::Kubernetes { kubeconfig } => {
                    Source::Kubernetes { kubeconfig: kubeconfig.or_else(|| file.kubeconfig.clone()) }
                }
                directory @ Source::Directory(_) => directory,
            },
            ipvs: ipvs::settings(args, &file.ipvs, proxy_mode, &model)?,
            model,
            proxy_mode,
            healthz_bind_address: match args.healthz_bind_address.as_deref() {
                Some(text) => parse::bind_address("--healthz-bind-address", text, HEALTHZ_PORT)?,
                None => Some(file.healthz_bind_address.unwrap_or(healthz)),
            },
            metrics_bind_address: match args.metrics_bind_address.as_deref() {
                Some(text) => parse::bind_address("--metrics-bind-address", text, METRICS_PORT)?,
                None => Some(file.metrics_bind_address.unwrap_or(metrics)),
            },
            uplinks: parse::devices("--uplinks", &args.uplinks)?,
            pod_interfaces: pod_interfaces(args, &file)?,
            timeouts: timeouts(args, &file)?,
            conntrack: conntrack::settings(args, file.conntrack)?,
            flow_table_size: parse::flow_table_size(args.flow_table_size.as_deref())?,
            snat_ports: parse::snat_ports(args.snat_ports.as_deref())?,
            mark: parse::mark(args.fwmark.as_deref())?,
            reject_unknown: parse::reject_unknown(args.reject_unknown_ports.as_deref())?,
            dsr,
            sockets: parse::sockets(
                args.socket_lb.as_deref(),
                args.bind_protection.as_deref(),
                args.cgroup_path.as_deref(),
            )?,
            drain: parse::drain(args.drain.as_deref())?,
            bpffs: parse::bpffs(args.bpffs_path.as_deref())?,
            xdp: parse::xdp(args.xdp.as_deref())?,
            min_sync_interval,
            max_sync_interval,
            config,
            remarks: file.remarks,
        })
    }
}

fn model_settings(
    args: &AgentArgs,
    file: &FileSettings,
    host_name: Option<String>,
) -> Result<ModelSettings, ConfigError> {
    let node_name = args.hostname_override.as_ref().or(file.node_name.as_ref()).cloned().or(host_name);
    Ok(ModelSettings {
        node_name: parse::node_name("--hostname-override", node_name)?,
        node_ports: match &file.node_ports {
            Some(node_ports) if args.nodeport_addresses.is_empty() => node_ports.clone(),
            _ => parse::node_ports("--nodeport-addresses", &args.nodeport_addresses)?,
        },
        cluster_ranges: match &file.cluster_ranges {
            Some(ranges) if args.cluster_cidr.is_empty() => ranges.clone(),
            _ => parse::ranges("--cluster-cidr", &args.cluster_cidr)?,
        },
        cluster_ip_clients: parse::choice(
            "--cluster-ip-clients",
            args.cluster_ip_clients.as_deref(),
            &[("inside", ClusterIpClients::Inside), ("all", ClusterIpClients::All)],
        )?,
        external_ip_ranges: parse::ranges("--service-external-ip-range", &args.service_external_ip_range)?,
        service_proxy_name: parse::service_proxy_name(args.service_proxy_name.as_deref())?,
        forwarding: parse::choice(
            "--forwarding",
            args.forwarding.as_deref(),
            &[("snat", Forwarding::Snat), ("dsr", Forwarding::Dsr)],
        )?,
        maglev: parse::choice(
            "--algorithm",
            args.algorithm.as_deref(),
            &[("random", false), ("maglev", true)],
        )?,
        maglev_size: parse::maglev_size(args.maglev_table_size.as_deref())?,
    })
}

fn dsr(args: &AgentArgs, model: &ModelSettings) -> Result<Dsr, ConfigError> {
    let outer_source = parse::outer_source(&args.dsr_outer_source)?;
    let cluster = match &args.config {
        Some(path) if args.cluster_cidr.is_empty() => format!("the cluster in {}", path.display()),
        _ => "--cluster-cidr".to_owned(),
    };
    let external = ("--service-external-ip-range".to_owned(), &*model.external_ip_ranges);
    overlap::check_outer_source(&outer_source, &[(cluster, &model.cluster_ranges), external])?;
    let (encapsulation, also_taken) = parse::encapsulations(&args.dsr_encap)?;
    Ok(Dsr {
        encapsulation,
        also_taken,
        outer_source,
        dispatch: parse::dispatch(args.dsr_dispatch.as_deref())?,
    })
}

/// A time between two syncs, and the flag or field that sets it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Interval {
    origin: String,
    period: Duration,
}

/// The shortest and the longest time between two syncs.
fn sync_intervals(args: &AgentArgs, file: &FileSettings) -> Result<(Duration, Duration), ConfigError> {
    let min = match &file.min_sync_interval {
        Some(interval) if args.min_sync_interval.is_none() => interval.clone(),
        _ => parse::min_sync_interval(args.min_sync_interval.as_deref())?,
    };
    let max = match &file.max_sync_interval {
        Some(interval) if args.max_sync_interval.is_none() => interval.clone(),
        _ => parse::max_sync_interval(args.max_sync_interval.as_deref())?,
    };
    if min.period <= max.period {
        return Ok((min.period, max.period));
    }
    let (shortest, longest) = (GoDuration(min.period), GoDuration(max.period));
    let message =
        format!("{shortest} is not accepted; takes no more than {}, which is {longest}", max.origin);
    Err(ConfigError { origin: min.origin, message })
}

fn pod_interfaces(args: &AgentArgs, file: &FileSettings) -> Result<Vec<DevicePattern>, ConfigError> {
    let mut patterns = parse::patterns("--pod-interfaces", &args.pod_interfaces)?;
    if args.pod_interfaces.is_empty() {
        patterns.extend(file.pod_interface.clone());
    }
    Ok(patterns)
}

fn timeouts(args: &AgentArgs, file: &FileSettings) -> Result<Timeouts, ConfigError> {
    let defaults = Timeouts::default();
    let established = file.timeout_established.unwrap_or(defaults.established);
    let datagram = file.timeout_udp.unwrap_or(defaults.datagram);
    Ok(Timeouts {
        syn: parse::seconds("--timeout-syn", args.timeout_syn.as_deref(), defaults.syn)?,
        established: parse::seconds(
            "--timeout-established",
            args.timeout_established.as_deref(),
            established,
        )?,
        closing: parse::seconds("--timeout-closing", args.timeout_closing.as_deref(), defaults.closing)?,
        datagram: parse::seconds("--timeout-udp", args.timeout_udp.as_deref(), datagram)?,
    })
}

/// Returns the host's name as the kernel keeps it, so that the network namespace doesn't matter.
fn host_name() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests;
