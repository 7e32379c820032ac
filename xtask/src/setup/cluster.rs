//! The programs of the real cluster, beside the API server's: Kubernetes' other programs, and the
//! container runtime. runc and the CNI plugins are Debian's.

use std::path::PathBuf;

use anyhow::Result;

use super::apiserver::KUBERNETES;
use super::go::{Module, Program, ensure_built};
use super::{ensure_apiserver, ensure_kube_proxy, ensure_manifest_tools};
use crate::workspace::Workspace;

const CONTAINERD: Module =
    Module { folder: "bench/lab/tests/cluster", release_of: "github.com/containerd/containerd/v2" };
const NODES: [Program; 5] = [
    ("k8s.io/kubernetes/cmd/kubelet", "kubelet", "kubelet"),
    ("k8s.io/kubernetes/cmd/kubectl", "kubectl", "kubectl"),
    ("k8s.io/kubernetes/cmd/kube-controller-manager", "kube-controller-manager", "kube-controller-manager"),
    ("k8s.io/kubernetes/cmd/kube-scheduler", "kube-scheduler", "kube-scheduler"),
    ("k8s.io/kubernetes/test/images/agnhost", "agnhost", "agnhost"),
];
const RUNTIME: [Program; 3] = [
    ("github.com/containerd/containerd/v2/cmd/containerd", "containerd", "containerd"),
    ("github.com/containerd/containerd/v2/cmd/ctr", "ctr", "ctr"),
    (
        "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
        "containerd-shim-runc-v2",
        "containerd-shim-runc-v2",
    ),
];

/// Returns the folders with all programs of a cluster. Go builds the missing ones, which takes half
/// an hour the first time.
pub fn ensure_cluster_programs(workspace: &Workspace) -> Result<Vec<PathBuf>> {
    let proxy = ensure_kube_proxy(workspace)?;
    Ok(vec![
        ensure_apiserver(workspace)?,
        proxy.parent().map_or_else(PathBuf::new, ToOwned::to_owned),
        ensure_built(workspace, KUBERNETES, "cluster", &NODES)?,
        ensure_built(workspace, CONTAINERD, "containerd", &RUNTIME)?,
        ensure_manifest_tools(workspace)?,
    ])
}
