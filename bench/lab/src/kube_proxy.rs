//! A real kube-proxy on a node of the bed, which an agent replaces.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::apiserver::ApiServer;
use crate::process::Process;
use crate::topology::{Bed, Node};

/// The variable that names the program.
const PROGRAM: &str = "MILLRACE_KUBE_PROXY";
/// The range of all pods' IPv4 and IPv6 addresses in the bed.
const CLUSTER_CIDR: &str = "10.244.0.0/16,2001:db8:f::/48";

/// The back end of its rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Rules in iptables.
    Iptables,
    /// Rules in nftables.
    Nftables,
}

impl Mode {
    /// Returns the value of `--proxy-mode`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Iptables => "iptables",
            Self::Nftables => "nftables",
        }
    }
}

/// A running kube-proxy, killed on drop. Its rules stay.
#[derive(Debug)]
pub struct KubeProxy {
    process: Process,
    log: PathBuf,
}

impl KubeProxy {
    /// Starts kube-proxy on a node and does not wait for it.
    pub fn start(bed: &Bed, node: &Node, server: &ApiServer, mode: Mode) -> Result<Self> {
        let program = env::var_os(PROGRAM).map(PathBuf::from).with_context(|| {
            format!("{PROGRAM} is not set: `cargo xtask setup --apiserver` says to what, `cargo xtask test` sets it")
        })?;
        ensure!(program.is_file(), "{PROGRAM} names {}, which is no program", program.display());
        let log = bed.directory().join(format!("kube-proxy-{}-{}.log", node.name(), mode.name()));
        let arguments = [
            ("kubeconfig", server.admin_kubeconfig().display().to_string()),
            ("master", format!("https://{}", server.address())),
            ("hostname-override", node.name().to_owned()),
            ("proxy-mode", mode.name().to_owned()),
            ("cluster-cidr", CLUSTER_CIDR.to_owned()),
            ("healthz-bind-address", "0.0.0.0:20256".to_owned()),
            ("metrics-bind-address", "127.0.0.1:20249".to_owned()),
            // The sizes of the machine's own tables can't be set in a namespace.
            ("conntrack-max-per-core", "0".to_owned()),
            ("conntrack-min", "0".to_owned()),
        ]
        .map(|(flag, value)| format!("--{flag}={value}"))
        .to_vec();
        let process = Process::start(node.namespace(), program, arguments, &log)?;
        Ok(Self { process, log })
    }

    /// Returns whether it runs.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.process.is_running()
    }

    /// Returns the path of its output.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }
}
