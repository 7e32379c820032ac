//! The container runtime of a node, and the network of its pods.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::json;

use super::control::program;
use super::machine::Program;
use super::plan::Plan;
use super::programs::Assets;
use super::{Cluster, wait};

/// The image of the container that holds a pod's namespaces.
pub(super) const PAUSE: &str = "docker.io/millrace/pause:1";
/// The socket, in the node's own /run.
pub(super) const SOCKET: &str = "/run/containerd/containerd.sock";
/// The folder of Debian's containernetworking-plugins.
const PLUGINS: &str = "/usr/lib/cni";
const START_LIMIT: Duration = Duration::from_mins(1);

/// Writes the configuration of node `number` and returns its runtime.
pub(super) fn configure(directory: &Path, number: u8, assets: &Assets) -> Result<Program> {
    let networks = directory.join("cni");
    fs::create_dir_all(&networks)?;
    fs::write(networks.join("10-millrace.conflist"), network(number).to_string())?;
    let path = directory.join("containerd.toml");
    fs::write(&path, configuration(directory, &networks))?;
    program(assets, "containerd", vec!["--config".to_owned(), path.display().to_string()])
}

/// Imports the images into the runtime of a node, when it runs.
pub(super) fn import(cluster: &Cluster, machine: &str, assets: &Assets) -> Result<()> {
    let ctr = assets.program("ctr")?;
    let ctr = ctr.to_str().context("the path of ctr is no text")?;
    let run = |arguments: &[&str]| -> Result<()> {
        let words = [&[ctr, "--namespace", "k8s.io"], arguments].concat();
        let output = cluster.command(machine, &words)?.output()?;
        if !output.status.success() {
            bail!("`ctr {}`: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(())
    };
    wait("containerd", START_LIMIT, || run(&["version"]))?;
    for image in &assets.images {
        let image = image.to_str().context("the path of an image is no text")?;
        run(&["images", "import", "--local", image])?;
    }
    Ok(())
}

fn configuration(directory: &Path, networks: &Path) -> String {
    let quoted = |path: &Path| json!(path).to_string();
    let cri = "plugins.'io.containerd.cri.v1";
    format!(
        "version = 3\n\
         root = {root}\n\
         state = '/run/containerd'\n\
         disabled_plugins = ['io.containerd.nri.v1.nri']\n\
         [grpc]\n\
         address = '{SOCKET}'\n\
         [{cri}.images']\n\
         snapshotter = 'overlayfs'\n\
         [{cri}.images'.pinned_images]\n\
         sandbox = '{PAUSE}'\n\
         [{cri}.runtime']\n\
         disable_apparmor = true\n\
         # Lowering a score takes CAP_SYS_RESOURCE, which not every machine gives.\n\
         restrict_oom_score_adj = true\n\
         [{cri}.runtime'.cni]\n\
         bin_dirs = ['{PLUGINS}']\n\
         conf_dir = {networks}\n\
         [{cri}.runtime'.containerd]\n\
         default_runtime_name = 'runc'\n\
         [{cri}.runtime'.containerd.runtimes.runc]\n\
         runtime_type = 'io.containerd.runc.v2'\n\
         [{cri}.runtime'.containerd.runtimes.runc.options]\n\
         SystemdCgroup = false\n",
        root = quoted(&directory.join("containerd")),
        networks = quoted(networks),
    )
}

/// Returns the list of CNI plugins: a bridge with the node's ranges, and ports of the host.
fn network(number: u8) -> serde_json::Value {
    let ranges: Vec<_> = Plan::pods(number).iter().map(|range| json!([{"subnet": range}])).collect();
    json!({
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "cni0",
                "isGateway": true,
                "hairpinMode": true,
                "ipam": {
                    "type": "host-local",
                    "dataDir": "/run/cni",
                    "ranges": ranges,
                    "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    })
}
