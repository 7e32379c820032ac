//! A real Kubernetes cluster on one machine: etcd, API server, controllers and scheduler on one
//! machine of namespaces, kubelet and containerd on each of the others.
//!
//! It stays when the command that made it ends. Its state is a directory, and `down` ends exactly
//! the processes noted there.

mod bringup;
mod cgroups;
mod containerd;
mod control;
mod credentials;
mod dns;
pub mod e2e;
mod forward;
mod init;
mod install;
mod kubectl;
mod kubelet;
mod machine;
mod mounts;
mod network;
mod own;
mod plan;
mod programs;
mod status;
mod wait;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::agent::binary;
use crate::net::Namespace;
use crate::topology::Wire;
pub use init::run as run_machine;
pub use kubectl::{Kubectl, at};
pub use plan::Plan;
pub use programs::Assets;
pub use wait::wait;

/// The proxy of a cluster's nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Proxy {
    /// The agent, installed from its manifests and its image
    Millrace,
    /// kube-proxy in nftables mode
    KubeProxy,
    /// None: Services are not served
    None,
}

/// The data plane of the agents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// eBPF
    Ebpf,
    /// IPVS, which the kernel must have
    Ipvs,
}

impl Mode {
    /// Returns the chart's value `mode`.
    const fn name(self) -> &'static str {
        match self {
            Self::Ebpf => "ebpf",
            Self::Ipvs => "ipvs",
        }
    }

    /// Returns the end of the tag of the image that can do this.
    const fn image_suffix(self) -> &'static str {
        match self {
            Self::Ebpf => "",
            Self::Ipvs => "-ipvs",
        }
    }
}

/// The properties of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// The name, which is part of its namespaces' names.
    pub name: String,
    /// The number of nodes.
    pub nodes: u8,
    /// The proxy of the nodes.
    pub proxy: Proxy,
    /// The data plane of Millrace.
    pub mode: Mode,
    /// Further values of Millrace's chart, as `helm --set` takes them.
    pub values: Vec<String>,
}

impl Settings {
    /// Returns the kind of wire. XDP takes one whose ends leave nothing to each other.
    fn wire(&self) -> Wire {
        let has_xdp = |value: &String| value.contains("--xdp=native") || value.contains("--xdp=generic");
        if self.values.iter().any(has_xdp) { Wire::Plain } else { Wire::Offloaded }
    }
}

/// A cluster and its state directory.
#[derive(Clone, Debug)]
pub struct Cluster {
    settings: Settings,
    directory: PathBuf,
}

impl Cluster {
    /// Starts a cluster and waits until its nodes and its proxy are ready. One that runs already with
    /// these settings is left as it is; any other one of the name is removed first.
    pub fn up(settings: Settings, assets: &Assets) -> Result<Self> {
        let cluster = Self { directory: assets.state.join(&settings.name), settings };
        if let Some(running) = Self::open(&assets.state, &cluster.settings.name)? {
            if running.settings == cluster.settings && running.is_whole(assets) {
                running.wait_until_ready()?;
                return Ok(running);
            }
            eprintln!(
                "the former cluster has other settings or images, or has lost a machine; starting anew"
            );
        }
        Self::down(&assets.state, &cluster.settings.name)?;
        bringup::start(&cluster, assets)?;
        fs::write(cluster.directory.join(STARTED), assets.fingerprint())?;
        cluster.wait_until_ready()?;
        Ok(cluster)
    }

    /// Opens the cluster of a name, if there is one.
    pub fn open(state: &Path, name: &str) -> Result<Option<Self>> {
        let directory = state.join(name);
        let path = directory.join(SETTINGS);
        let Ok(text) = fs::read(&path) else { return Ok(None) };
        let settings =
            serde_json::from_slice(&text).with_context(|| format!("can't read {}", path.display()))?;
        Ok(Some(Self { settings, directory }))
    }

    /// Ends the processes of a cluster, and removes its namespaces, control groups and files. Also
    /// removes what is left of one whose processes were killed.
    pub fn down(state: &Path, name: &str) -> Result<()> {
        let directory = state.join(name);
        for machine in machines_in(&directory) {
            machine::end(&machine)?;
        }
        network::remove(name);
        cgroups::remove(name)?;
        if directory.exists() {
            fs::remove_dir_all(&directory)
                .with_context(|| format!("can't remove {}", directory.display()))?;
        }
        Ok(())
    }

    /// Returns the names and addresses.
    #[must_use]
    pub fn plan(&self) -> Plan {
        Plan { name: self.settings.name.clone(), nodes: self.settings.nodes }
    }

    /// Returns the properties.
    #[must_use]
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the path of the administrator's kubeconfig, for programs of this machine.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.directory.join(KUBECONFIG)
    }

    /// Returns kubectl as the administrator.
    #[must_use]
    pub fn kubectl(&self) -> Kubectl {
        Kubectl::new(self.directory.join(KUBECTL))
    }

    /// Returns a shell that runs a script as a user would: in a clone of the repository, with kubectl and helm.
    #[must_use]
    pub fn shell(&self, script: &str, assets: &Assets) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-e", "-c", script]).current_dir(Assets::repository());
        shell.env("PATH", assets.search_path()).env("KUBECONFIG", self.kubeconfig());
        shell
    }

    /// Returns a command that runs `kubectl millrace` on the machine outside, which the nodes see as a client.
    pub fn plugin(&self, words: &[&str]) -> Result<Command> {
        let link = self.directory.join(PLUGIN);
        if link.is_symlink() {
            fs::remove_file(&link)?;
        }
        symlink(binary()?, &link).with_context(|| format!("can't make {}", link.display()))?;
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.plan().namespace(plan::OUTSIDE)]).arg(link).args(words);
        command.env("KUBECONFIG", self.directory.join(OUTSIDE_KUBECONFIG));
        Ok(command)
    }

    /// Installs Millrace, or upgrades it, with the values of this cluster.
    pub fn install_millrace(&self, assets: &Assets) -> Result<()> {
        install::millrace(self, assets)
    }

    /// Opens the namespace of a machine: `control`, `outside`, or `node-1` and so on.
    pub fn namespace(&self, machine: &str) -> Result<Arc<Namespace>> {
        Ok(Arc::new(Namespace::open(&self.plan().namespace(machine))?))
    }

    /// Returns a command that runs as a process of a machine: `control`, or `node-1` and so on.
    pub fn command(&self, machine: &str, words: &[&str]) -> Result<Command> {
        machine::command(&self.settings.name, &self.machine_directory(machine), machine, words)
    }

    /// Returns whether it was started to the end, with these images, and all machines run.
    fn is_whole(&self, assets: &Assets) -> bool {
        let started = fs::read_to_string(self.directory.join(STARTED)).ok();
        started == Some(assets.fingerprint()) && self.dead_machines().is_empty()
    }

    /// Returns the machines whose processes have ended.
    fn dead_machines(&self) -> Vec<String> {
        let mut machines = vec![plan::CONTROL.to_owned()];
        machines.extend(self.plan().node_names());
        machines.retain(|name| !machine::is_running(&self.directory.join(name)));
        machines
    }

    fn wait_until_ready(&self) -> Result<()> {
        install::wait_until_ready(self)
            .with_context(|| format!("logs are below {}", self.directory.display()))
    }

    /// Returns the state directory of a machine.
    fn machine_directory(&self, machine: &str) -> PathBuf {
        self.directory.join(machine)
    }

    /// Prints nodes, pods, Services and proxies, and how to reach the API.
    pub fn print_status(&self) -> Result<()> {
        let dead = self.dead_machines();
        if !dead.is_empty() {
            bail!("{} ended; `cargo xtask cluster up` starts the cluster anew", dead.join(", "));
        }
        status::print(self)
    }
}

/// The file with the settings. It is written first.
const SETTINGS: &str = "settings.json";
/// The file that says that the start went to its end, and with which images.
const STARTED: &str = "started";
/// The administrator's kubeconfig.
const KUBECONFIG: &str = "kubeconfig";
/// The kubeconfig of an administrator on the machine outside.
const OUTSIDE_KUBECONFIG: &str = "outside.kubeconfig";
/// The script that runs kubectl with it.
const KUBECTL: &str = "kubectl";
/// The agent's program under the name of a plugin of kubectl.
const PLUGIN: &str = "kubectl-millrace";

fn machines_in(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}
