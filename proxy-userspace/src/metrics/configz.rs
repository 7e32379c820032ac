//! The effective configuration, in the shape of kube-proxy's.

use std::net::SocketAddr;
use std::time::Duration;

use ipnet::IpNet;
use serde_json::{Value, json};

use crate::config::file::{API_VERSION, Conntrack, GoDuration, Iptables, Ipvs, KIND, KubeProxyConfiguration};
use crate::config::{ProxyMode, Settings, Source};
use crate::dataplane::ipvs::{Arp, Masquerade};
use crate::dataplane::{Encapsulation, Mode};
use crate::model::{Forwarding, NodePortAddresses};

/// Returns the content of /configz: a `KubeProxyConfiguration` under kube-proxy's key, and all other settings
/// under ours.
pub(super) fn configuration(settings: &Settings) -> Value {
    json!({
        "kubeproxy.config.k8s.io": kube_proxy_configuration(settings),
        "millrace": own_configuration(settings),
    })
}

/// Fields without a meaning here have Go's zero values.
fn kube_proxy_configuration(settings: &Settings) -> KubeProxyConfiguration {
    let join = |ranges: &[IpNet]| ranges.iter().map(ToString::to_string).collect::<Vec<_>>();
    let address =
        |address: Option<SocketAddr>| address.map(|address| address.to_string()).unwrap_or_default();
    KubeProxyConfiguration {
        api_version: API_VERSION.to_owned(),
        kind: KIND.to_owned(),
        hostname_override: settings.model.node_name.clone(),
        healthz_bind_address: address(settings.healthz_bind_address),
        metrics_bind_address: address(settings.metrics_bind_address),
        mode: wanted(settings.proxy_mode).name().to_owned(),
        ipvs: ipvs(settings),
        iptables: Iptables {
            masquerade_all: settings.ipvs.rules.masquerade == Masquerade::All,
            ..Iptables::default()
        },
        cluster_cidr: join(&settings.model.cluster_ranges).join(","),
        node_port_addresses: match &settings.model.node_ports {
            NodePortAddresses::Primary => vec!["primary".to_owned()],
            NodePortAddresses::Within(ranges) => join(ranges),
        },
        conntrack: conntrack(settings),
        sync_period: GoDuration(settings.max_sync_interval),
        min_sync_period: GoDuration(settings.min_sync_interval),
        ..KubeProxyConfiguration::default()
    }
}

/// Returns the settings of the kernel's connection tracking. The time-outs of flows are Millrace's own.
fn conntrack(settings: &Settings) -> Conntrack {
    let seconds = |seconds: u32| GoDuration(Duration::from_secs(seconds.into()));
    let entries = |entries: u32| Some(i32::try_from(entries).unwrap_or(i32::MAX));
    Conntrack {
        max_per_core: entries(settings.conntrack.max_per_core),
        min: entries(settings.conntrack.min),
        tcp_established_timeout: Some(seconds(settings.timeouts.established)),
        tcp_close_wait_timeout: Some(seconds(settings.conntrack.close_wait)),
        tcp_be_liberal: settings.conntrack.be_liberal,
        udp_timeout: seconds(settings.timeouts.datagram),
        udp_stream_timeout: seconds(settings.timeouts.datagram),
    }
}

/// Returns the mode of `--proxy-mode`; for `auto`, the preferred one.
pub(super) const fn wanted(mode: ProxyMode) -> Mode {
    match mode {
        ProxyMode::Auto | ProxyMode::Ebpf => Mode::Ebpf,
        ProxyMode::Ipvs => Mode::Ipvs,
        ProxyMode::None => Mode::None,
    }
}

/// Returns the settings of IPVS.
fn ipvs(settings: &Settings) -> Ipvs {
    let (rules, timeouts) = (&settings.ipvs.rules, settings.ipvs.timeouts);
    let seconds = |seconds: u32| GoDuration(Duration::from_secs(seconds.into()));
    Ipvs {
        scheduler: rules.scheduler.name().to_owned(),
        exclude_cidrs: rules.excluded.iter().map(ToString::to_string).collect(),
        strict_arp: settings.ipvs.arp == Arp::Strict,
        tcp_timeout: seconds(timeouts.tcp),
        tcp_fin_timeout: seconds(timeouts.tcp_fin),
        udp_timeout: seconds(timeouts.udp),
        ..Ipvs::default()
    }
}

fn own_configuration(settings: &Settings) -> Value {
    let model = &settings.model;
    json!({
        "source": match &settings.source {
            Source::Directory(path) => format!("directory:{}", path.display()),
            Source::Kubernetes { .. } => "kubernetes".to_owned(),
        },
        "serviceProxyName": model.service_proxy_name,
        "serviceExternalIPRanges": model.external_ip_ranges,
        "forwarding": match model.forwarding {
            Forwarding::Snat => "snat",
            Forwarding::Dsr => "dsr",
        },
        "algorithm": if model.maglev { "maglev" } else { "random" },
        "maglevTableSize": model.maglev_size,
        "l2Announce": settings.l2_announce,
        "l2Devices": settings.l2_devices.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "routeAnnounce": settings.routes.announced_ranges,
        "routeAnnouncePods": settings.routes.own_pods,
        "podRoutes": settings.routes.to_pods.name(),
        "networkPolicy": settings.network_policy,
        "uplinks": settings.uplinks,
        "flowTableSize": settings.flow_table_size,
        "timeoutSeconds": {
            "syn": settings.timeouts.syn,
            "established": settings.timeouts.established,
            "closing": settings.timeouts.closing,
            "udp": settings.timeouts.datagram,
        },
        "dsrEncap": settings.dsr.taken().map(Encapsulation::name).collect::<Vec<_>>().join(","),
        "dsrDispatch": settings.dsr.dispatch.name(),
        "dsrOuterSource": settings.dsr.outer_source.names(),
        "rejectUnknownPorts": settings.reject_unknown.name(),
        "snatPorts": format!("{}-{}", settings.snat_ports.start(), settings.snat_ports.end()),
        "fwmark": format!("{:#x}/{:#x}", settings.mark.value, settings.mark.mask),
        "socketLb": settings.sockets.lb.name(),
        "bindProtection": settings.sockets.bind_protection,
        "cgroupPath": settings.sockets.cgroup,
        "bpffsPath": settings.bpffs,
        "logFormat": settings.log_format.name(),
    })
}
