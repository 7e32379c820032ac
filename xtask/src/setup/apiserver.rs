//! A kube-apiserver and its etcd, in one folder as by envtest's convention. Also a kube-proxy of
//! the same release, which an agent replaces in the tests.

use std::env;
use std::path::PathBuf;
use std::process::Command;

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

/// Gives a command the variables of the programs that are there. Builds nothing.
pub fn add_built(workspace: &Workspace, command: &mut Command) {
    let cached = |name| KUBERNETES.cached(workspace, name).ok();
    let is_unset = |name| env::var_os(name).is_none_or(|value| value.is_empty());
    if is_unset(ASSETS)
        && let Some(folder) = cached("apiserver").filter(|folder| missing_program(folder, &SERVERS).is_none())
    {
        command.env(ASSETS, folder);
    }
    if is_unset(KUBE_PROXY)
        && let Some(folder) = cached("kube-proxy").filter(|folder| missing_program(folder, &PROXY).is_none())
    {
        command.env(KUBE_PROXY, folder.join("kube-proxy"));
    }
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
