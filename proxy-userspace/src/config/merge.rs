//! The settings: the flag, or else the field of the file, or else the default.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use proxy_common::config::DEFAULT_SNAT_PORTS;
use proxy_common::timeouts::Timeouts;

use super::error::Refused;
use super::file::{FileSettings, GoDuration};
use super::parse::{self, AlgorithmWord, BindAddress};
use super::{
    AgentArgs, ConfigError, HEALTHZ_PORT, Interval, METRICS_PORT, ProxyMode, Settings, Source, Task, given,
    overlap,
};
use crate::dataplane::ebpf::{Dispatch, Dsr, SocketLb, Sockets};
use crate::dataplane::ipvs;
use crate::model::{DEFAULT_MAGLEV_SIZE, Forwarding, ModelSettings, NodePortAddresses};
use crate::node::{Conntrack, DevicePattern, RouteSettings};

const HEALTHZ: BindAddress = BindAddress::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), HEALTHZ_PORT);
const METRICS: BindAddress = BindAddress::new(IpAddr::V4(Ipv4Addr::LOCALHOST), METRICS_PORT);
const DEFAULT_FLOW_TABLE_SIZE: u32 = 262_144;
const DEFAULT_BPFFS: &str = "/sys/fs/bpf";
const DEFAULT_DRAIN: Duration = Duration::from_hours(1);
const DEFAULT_MIN_SYNC: Duration = Duration::from_millis(1);
const DEFAULT_MAX_SYNC: Duration = Duration::from_secs(30);

/// Returns the settings without those of IPVS alone. Checks the values that depend on each other.
pub fn settings(
    args: &AgentArgs,
    file: &FileSettings,
    host_name: Option<String>,
) -> Result<Settings, ConfigError> {
    let (min_sync_interval, max_sync_interval) = sync_intervals(args, file)?;
    let model = model(args, file, host_name)?;
    let dsr = dsr(args, &model)?;
    let proxy_mode = args.proxy_mode.or(file.proxy_mode).unwrap_or_default();
    let network_policy = network_policy(args, &dsr, proxy_mode)?;
    Ok(Settings {
        source: source(args, file)?,
        model,
        proxy_mode,
        healthz_bind_address: args.healthz_bind_address.or(file.healthz_bind_address).unwrap_or(HEALTHZ).0,
        metrics_bind_address: args.metrics_bind_address.or(file.metrics_bind_address).unwrap_or(METRICS).0,
        uplinks: args.uplinks.clone(),
        pod_interfaces: given(&args.pod_interfaces).unwrap_or_else(|| {
            DevicePattern::defaults().into_iter().chain(file.pod_interface.clone()).collect()
        }),
        l2_announce: args.l2_announce.clone(),
        l2_devices: args.l2_devices.clone(),
        routes: RouteSettings {
            announced_ranges: args.route_announce.clone(),
            own_pods: args.route_announce_pods.unwrap_or(false),
            to_pods: args.pod_routes.unwrap_or_default(),
        },
        network_policy,
        timeouts: timeouts(args, file),
        conntrack: conntrack(args, file.conntrack),
        flow_table_size: args.flow_table_size.unwrap_or(DEFAULT_FLOW_TABLE_SIZE),
        snat_ports: args.snat_ports.clone().unwrap_or(DEFAULT_SNAT_PORTS),
        mark: args.fwmark.unwrap_or_default(),
        reject_unknown: args.reject_unknown_ports.unwrap_or_default(),
        dsr,
        sockets: Sockets {
            lb: args.socket_lb.unwrap_or(SocketLb::All),
            bind_protection: args.bind_protection.unwrap_or(true),
            cgroup: args.cgroup_path.clone(),
        },
        ipvs: ipvs::Settings::default(),
        drain: args.drain.unwrap_or(DEFAULT_DRAIN),
        bpffs: args.bpffs_path.clone().unwrap_or_else(|| PathBuf::from(DEFAULT_BPFFS)),
        xdp: args.xdp.unwrap_or_default(),
        min_sync_interval,
        max_sync_interval,
        config: None,
        remarks: file.remarks.clone(),
        log_format: args.log_format.or(file.log_format).unwrap_or_default(),
        task: if args.init_only == Some(true) { Task::Init } else { Task::Serve },
        node_addresses: BTreeSet::new(),
    })
}

fn source(args: &AgentArgs, file: &FileSettings) -> Result<Source, ConfigError> {
    let Some(Source::Directory(path)) = &args.source else {
        let kubeconfig = args.kubeconfig.as_ref().or(file.kubeconfig.as_ref()).cloned();
        return Ok(Source::Kubernetes { kubeconfig });
    };
    if args.kubeconfig.is_none() {
        return Ok(Source::Directory(path.clone()));
    }
    Err(ConfigError {
        origin: "--kubeconfig".to_owned(),
        message: format!(
            "is not accepted with --source directory:{}; takes effect with --source kubernetes",
            path.display()
        ),
    })
}

fn model(
    args: &AgentArgs,
    file: &FileSettings,
    host_name: Option<String>,
) -> Result<ModelSettings, ConfigError> {
    let of_host = || parse::node_name(&host_name.unwrap_or_default()).map_err(of_flag("--hostname-override"));
    let node_ports = parse::node_ports(&args.nodeport_addresses).map_err(of_flag("--nodeport-addresses"))?;
    Ok(ModelSettings {
        node_name: args
            .hostname_override
            .as_ref()
            .or(file.node_name.as_ref())
            .cloned()
            .map_or_else(of_host, Ok)?,
        node_ports: node_ports.or_else(|| file.node_ports.clone()).unwrap_or(NodePortAddresses::Primary),
        cluster_ranges: given(&args.cluster_cidr).or_else(|| file.cluster_ranges.clone()).unwrap_or_default(),
        cluster_ip_clients: args.cluster_ip_clients.unwrap_or_default(),
        external_ip_ranges: args.service_external_ip_range.clone(),
        service_proxy_name: args.service_proxy_name.clone(),
        forwarding: args.forwarding.unwrap_or(Forwarding::Snat),
        maglev: args.algorithm.unwrap_or_default() == AlgorithmWord::Maglev,
        maglev_size: args.maglev_table_size.unwrap_or(DEFAULT_MAGLEV_SIZE),
        announced_ranges: args.l2_announce.iter().chain(&args.route_announce).copied().collect(),
    })
}

fn dsr(args: &AgentArgs, model: &ModelSettings) -> Result<Dsr, ConfigError> {
    let outer_source = parse::outer_source(&args.dsr_outer_source)
        .map_err(of_flag("--dsr-outer-source"))?
        .unwrap_or_default();
    let cluster = match &args.config {
        Some(path) if args.cluster_cidr.is_empty() => format!("the cluster in {}", path.display()),
        _ => "--cluster-cidr".to_owned(),
    };
    let external = ("--service-external-ip-range".to_owned(), &*model.external_ip_ranges);
    overlap::check_outer_source(&outer_source, &[(cluster, &model.cluster_ranges), external])?;
    let (encapsulation, also_taken) =
        parse::encapsulations(&args.dsr_encap).map_err(of_flag("--dsr-encap"))?.unwrap_or_default();
    Ok(Dsr { encapsulation, also_taken, outer_source, dispatch: args.dsr_dispatch.unwrap_or_default() })
}

/// Whether NetworkPolicies are enforced.
fn network_policy(args: &AgentArgs, dsr: &Dsr, mode: ProxyMode) -> Result<bool, ConfigError> {
    let is_on = args.network_policy.unwrap_or(false);
    if is_on && dsr.dispatch == Dispatch::Pod {
        let message = "on is not accepted with --dsr-dispatch pod: pods then answer from addresses of Services, which \
                       count as forged; takes effect with --dsr-dispatch node";
        return Err(ConfigError { origin: "--network-policy".to_owned(), message: message.to_owned() });
    }
    if is_on && matches!(mode, ProxyMode::Ipvs | ProxyMode::None) {
        let message = format!(
            "on is not accepted with --proxy-mode {}: Services are translated behind the firewall there; takes effect \
             with ebpf and auto",
            mode.name()
        );
        return Err(ConfigError { origin: "--network-policy".to_owned(), message });
    }
    Ok(is_on)
}

/// The shortest and the longest time between two syncs.
fn sync_intervals(args: &AgentArgs, file: &FileSettings) -> Result<(Duration, Duration), ConfigError> {
    let min = interval(
        "--min-sync-interval",
        args.min_sync_interval,
        file.min_sync_interval.as_ref(),
        DEFAULT_MIN_SYNC,
    );
    let max = interval(
        "--max-sync-interval",
        args.max_sync_interval,
        file.max_sync_interval.as_ref(),
        DEFAULT_MAX_SYNC,
    );
    if min.period <= max.period {
        return Ok((min.period, max.period));
    }
    let (shortest, longest) = (GoDuration(min.period), GoDuration(max.period));
    let message =
        format!("{shortest} is not accepted; takes no more than {}, which is {longest}", max.origin);
    Err(ConfigError { origin: min.origin, message })
}

/// Returns the interval with its flag or field. The flag also stands for the default.
fn interval(flag: &str, given: Option<Duration>, file: Option<&Interval>, default: Duration) -> Interval {
    match (given, file) {
        (None, Some(of_file)) => of_file.clone(),
        (given, _) => Interval { origin: flag.to_owned(), period: given.unwrap_or(default) },
    }
}

fn timeouts(args: &AgentArgs, file: &FileSettings) -> Timeouts {
    let defaults = Timeouts::default();
    Timeouts {
        syn: args.timeout_syn.unwrap_or(defaults.syn),
        established: args.timeout_established.or(file.timeout_established).unwrap_or(defaults.established),
        closing: args.timeout_closing.unwrap_or(defaults.closing),
        datagram: args.timeout_udp.or(file.timeout_udp).unwrap_or(defaults.datagram),
    }
}

/// Returns the settings of the kernel's connection tracking. A file has all of them, kube-proxy's defaults
/// included.
fn conntrack(args: &AgentArgs, file: Conntrack) -> Conntrack {
    Conntrack {
        max_per_core: args.conntrack_max_per_core.unwrap_or(file.max_per_core),
        min: args.conntrack_min.unwrap_or(file.min),
        established: args.conntrack_tcp_timeout_established.unwrap_or(file.established),
        close_wait: args.conntrack_tcp_timeout_close_wait.unwrap_or(file.close_wait),
        be_liberal: args.conntrack_tcp_be_liberal.unwrap_or(file.be_liberal),
        ..file
    }
}

/// Names the flag of a list whose items don't go together.
fn of_flag(flag: &str) -> impl Fn(Refused) -> ConfigError {
    move |refused| refused.at(flag)
}
