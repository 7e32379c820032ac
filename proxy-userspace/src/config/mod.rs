//! Flags in, settings out; resolved once, at start.

mod args;
mod parse;
mod pattern;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use proxy_common::flow::Timeouts;

pub use args::AgentArgs;
pub use pattern::DevicePattern;

use crate::dataplane::ebpf::{Mark, XdpMode};
use crate::model::{Forwarding, ModelSettings};

/// Everything the agent was told, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where objects come from.
    pub source: Source,
    /// What decides which Services are served, and how; `model.node_name` is this node's name.
    pub model: ModelSettings,
    /// Which data plane.
    pub proxy_mode: ProxyMode,
    /// Where /healthz and /livez are served.
    pub healthz_bind_address: Option<SocketAddr>,
    /// Where /metrics, /proxyMode, /healthz and /configz are served.
    pub metrics_bind_address: Option<SocketAddr>,
    /// Devices toward the network; empty = found by their routes and addresses.
    pub uplinks: Vec<String>,
    /// Devices toward this node's pods. A device in `uplinks` is none, whatever its name.
    pub pod_interfaces: Vec<DevicePattern>,
    /// Flow time-outs.
    pub timeouts: Timeouts,
    /// Entries of FLOWS4 and of FLOWS6.
    pub flow_table_size: u32,
    /// Mark of packets handed to the stack.
    pub mark: Mark,
    /// Where the BPF file system is mounted.
    pub bpffs: PathBuf,
    /// How XDP is attached.
    pub xdp: XdpMode,
    /// Shortest time between two syncs.
    pub min_sync_interval: Duration,
    /// Longest time between two syncs.
    pub max_sync_interval: Duration,
}

/// Where objects come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Manifests in this directory.
    Directory(PathBuf),
}

/// Which data plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyMode {
    /// The best this kernel can.
    Auto,
    /// XDP and TC programs, or none.
    Ebpf,
}

/// A flag with a value it doesn't take. One line, for standard error and status 2.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{flag}: {message}")]
pub struct ConfigError {
    /// The flag, with its dashes.
    pub flag: &'static str,
    /// What it was given and what it takes.
    pub message: String,
}

impl Settings {
    /// Checks the flags; what they leave open comes from the environment and the host.
    pub fn resolve(args: &AgentArgs) -> Result<Self, ConfigError> {
        let name = std::env::var("NODE_NAME").ok().filter(|name| !name.is_empty());
        Self::resolve_on(args, name.or_else(host_name))
    }

    /// As [`resolve`](Self::resolve), with the name this node has where no flag says another.
    pub fn resolve_on(args: &AgentArgs, node_name: Option<String>) -> Result<Self, ConfigError> {
        let defaults = Timeouts::default();
        Ok(Self {
            source: parse::source(args.source.as_deref())?,
            model: model_settings(args, node_name)?,
            proxy_mode: parse::proxy_mode(args.proxy_mode.as_deref())?,
            healthz_bind_address: Some(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 10256))),
            metrics_bind_address: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 10249))),
            uplinks: parse::devices("--uplinks", &args.uplinks)?,
            pod_interfaces: parse::patterns("--pod-interfaces", &args.pod_interfaces)?,
            timeouts: Timeouts {
                syn: parse::seconds("--timeout-syn", args.timeout_syn.as_deref(), defaults.syn)?,
                established: parse::seconds(
                    "--timeout-established",
                    args.timeout_established.as_deref(),
                    defaults.established,
                )?,
                closing: parse::seconds(
                    "--timeout-closing",
                    args.timeout_closing.as_deref(),
                    defaults.closing,
                )?,
                datagram: parse::seconds("--timeout-udp", args.timeout_udp.as_deref(), defaults.datagram)?,
            },
            flow_table_size: parse::flow_table_size(args.flow_table_size.as_deref())?,
            mark: parse::mark(args.fwmark.as_deref())?,
            bpffs: parse::bpffs(args.bpffs_path.as_deref())?,
            xdp: parse::xdp(args.xdp.as_deref())?,
            min_sync_interval: parse::min_sync_interval(args.min_sync_interval.as_deref())?,
            max_sync_interval: parse::max_sync_interval(args.max_sync_interval.as_deref())?,
        })
    }
}

fn model_settings(args: &AgentArgs, node_name: Option<String>) -> Result<ModelSettings, ConfigError> {
    Ok(ModelSettings {
        node_name: parse::node_name(args.hostname_override.clone().or(node_name))?,
        node_ports: parse::node_ports(&args.nodeport_addresses)?,
        cluster_ranges: parse::ranges("--cluster-cidr", &args.cluster_cidr)?,
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

/// The host's name, read where the kernel keeps it so that a network namespace of its own doesn't matter.
fn host_name() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests;
