//! The effective configuration, in the shape of kube-proxy's.

use serde_json::{Value, json};

use crate::config::{ProxyMode, Settings, Source};
use crate::model::{Forwarding, NodePortAddresses};

/// What /configz shows: a `KubeProxyConfiguration` under kube-proxy's key, and what it has no field for under ours.
pub(super) fn configuration(settings: &Settings) -> Value {
    json!({
        "kubeproxy.config.k8s.io": kube_proxy_configuration(settings),
        "millrace": own_configuration(settings),
    })
}

fn kube_proxy_configuration(settings: &Settings) -> Value {
    let join = |ranges: &[ipnet::IpNet]| ranges.iter().map(ToString::to_string).collect::<Vec<_>>();
    let address = |address: Option<std::net::SocketAddr>| address.map(|a| a.to_string()).unwrap_or_default();
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "hostnameOverride": settings.model.node_name,
        "healthzBindAddress": address(settings.healthz_bind_address),
        "metricsBindAddress": address(settings.metrics_bind_address),
        "bindAddressHardFail": false,
        "clusterCIDR": join(&settings.model.cluster_ranges).join(","),
        "nodePortAddresses": match &settings.model.node_ports {
            NodePortAddresses::Primary => vec!["primary".to_owned()],
            NodePortAddresses::Within(ranges) => join(ranges),
        },
        "mode": match settings.proxy_mode {
            ProxyMode::Auto | ProxyMode::Ebpf => "ebpf",
        },
    })
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
        "uplinks": settings.uplinks,
        "flowTableSize": settings.flow_table_size,
        "timeoutSeconds": {
            "syn": settings.timeouts.syn,
            "established": settings.timeouts.established,
            "closing": settings.timeouts.closing,
            "udp": settings.timeouts.datagram,
        },
        "fwmark": format!("{:#x}/{:#x}", settings.mark.value, settings.mark.mask),
        "bpffsPath": settings.bpffs,
        "minSyncInterval": format!("{:?}", settings.min_sync_interval),
        "maxSyncInterval": format!("{:?}", settings.max_sync_interval),
    })
}
