//! The kubelet of a node, and kube-proxy beside it.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};

use super::containerd::SOCKET;
use super::control::program;
use super::credentials::Credentials;
use super::machine::Program;
use super::plan::{DNS, PODS, Plan, node_name};
use super::programs::Assets;
use crate::etcd::flags;

/// Writes the configuration of node `number`'s kubelet and returns the program.
pub(super) fn configure(
    directory: &Path,
    number: u8,
    credentials: &Credentials,
    assets: &Assets,
) -> Result<Program> {
    let name = node_name(number);
    let path = directory.join("kubelet.json");
    fs::write(&path, configuration(&credentials.path("ca.crt")).to_string())?;
    let kubeconfig = credentials.component(&format!("system:node:{name}"), "system:nodes", &name)?;
    let addresses = Plan::node(number).map(|address: IpAddr| address.to_string()).join(",");
    let arguments = flags(&[
        ("config", &path.display().to_string()),
        ("kubeconfig", &kubeconfig.display().to_string()),
        ("hostname-override", &name),
        ("node-ip", &addresses),
    ]);
    program(assets, "kubelet", arguments)
}

/// Returns the Node object, with the ranges to which routes lead.
pub(super) fn object(number: u8) -> Value {
    let ranges = Plan::pods(number);
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node_name(number), "labels": {"kubernetes.io/os": "linux"}},
        "spec": {"podCIDR": ranges[0], "podCIDRs": ranges},
    })
}

/// Returns kube-proxy in nftables mode for node `number`.
pub(super) fn kube_proxy(number: u8, credentials: &Credentials, assets: &Assets) -> Result<Program> {
    let kubeconfig = credentials.component("system:kube-proxy", "system:kube-proxy", &node_name(number))?;
    let arguments = flags(&[
        ("kubeconfig", &kubeconfig.display().to_string()),
        ("hostname-override", &node_name(number)),
        ("proxy-mode", "nftables"),
        ("cluster-cidr", PODS),
        // The sizes of the machine's own tables can't be set in a namespace.
        ("conntrack-max-per-core", "0"),
        ("conntrack-min", "0"),
    ]);
    program(assets, "kube-proxy", arguments)
}

fn configuration(authority: &Path) -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": format!("unix://{SOCKET}"),
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": authority},
        },
        "authorization": {"mode": "Webhook"},
        "clusterDNS": [DNS],
        "clusterDomain": "cluster.local",
        "cgroupDriver": "cgroupfs",
        // Machines that build and test may have the first version only.
        "failCgroupV1": false,
        "failSwapOn": false,
        "enforceNodeAllocatable": [],
        "localStorageCapacityIsolation": false,
        // Nodes share this machine's disk, which has other tenants.
        "evictionHard": {"memory.available": "50Mi", "nodefs.available": "0%", "imagefs.available": "0%",
            "nodefs.inodesFree": "0%"},
        "imageGCHighThresholdPercent": 100,
        "maxPods": 250,
        "serializeImagePulls": false,
        "nodeStatusUpdateFrequency": "5s",
        "shutdownGracePeriod": "0s",
    })
}
