//! A kube-apiserver and its etcd, in one folder as by envtest's convention. Also a kube-proxy of
//! the same release, which an agent replaces in the tests.

use std::env;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use super::go::{Module, Program, ensure_built, missing_program};
use crate::workspace::Workspace;

/// The variable that names the folder.
pub const ASSETS: &str = "KUBEBUILDER_ASSETS";

/// The module whose release all programs of Kubernetes have.
pub const KUBERNETES: Module =
    Module { folder: "proxy-userspace/tests/apiserver", release_of: "k8s.io/kubernetes" };
/// The variable that names the kube-proxy.
pub const KUBE_PROXY: &str = "MILLRACE_KUBE_PROXY";
/// The last name is envtest's.
const SERVERS: [Program; 2] = [
    ("k8s.io/kubernetes/cmd/kube-apiserver", "kube-apiserver", "kube-apiserver"),
    ("go.etcd.io/etcd/server/v3", "server", "etcd"),
];
const PROXY: [Program; 1] = [("k8s.io/kubernetes/cmd/kube-proxy", "kube-proxy", "kube-proxy")];

/// Returns the folder with both programs: that of the environment, else one in the cache. Go builds
/// them there if they are missing.
pub fn ensure_apiserver(workspace: &Workspace) -> Result<PathBuf> {
    if let Some(given) = env::var_os(ASSETS).filter(|folder| !folder.is_empty()) {
        let folder = PathBuf::from(given);
        if let Some(missing) = missing_program(&folder, &SERVERS) {
            bail!("{ASSETS} names {}, which has no {missing}", folder.display());
        }
        return Ok(folder);
    }
    ensure_built(workspace, KUBERNETES, "apiserver", &SERVERS)
        .with_context(|| format!("{ASSETS} names no folder with kube-apiserver and etcd"))
}

/// Returns the path of kube-proxy: that of the environment, else one in the cache. Go builds it
/// there if it is missing, in seconds if it has built the API server.
pub fn ensure_kube_proxy(workspace: &Workspace) -> Result<PathBuf> {
    if let Some(given) = env::var_os(KUBE_PROXY).filter(|program| !program.is_empty()) {
        let program = PathBuf::from(given);
        if !program.is_file() {
            bail!("{KUBE_PROXY} names {}, which is no program", program.display());
        }
        return Ok(program);
    }
    Ok(ensure_built(workspace, KUBERNETES, "kube-proxy", &PROXY)?.join("kube-proxy"))
}
