//! The start of a cluster, step by step.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use super::credentials::Credentials;
use super::machine::{self, Machine, Program};
use super::plan::{CONTROL, node_name};
use super::programs::Assets;
use super::{
    Cluster, KUBECONFIG, KUBECTL, OUTSIDE_KUBECONFIG, Proxy, SETTINGS, containerd, control, forward, install,
    kubelet,
};
use super::{network, wait};

const START_LIMIT: Duration = Duration::from_mins(2);

/// Starts all machines and the proxy. Does not wait until they are ready.
pub(super) fn start(cluster: &Cluster, assets: &Assets) -> Result<()> {
    let start = Instant::now();
    let step = |what: &str| eprintln!("{:>6.1} s  {what}", start.elapsed().as_secs_f64());
    fs::create_dir_all(&cluster.directory)
        .with_context(|| format!("can't make {}", cluster.directory.display()))?;
    fs::write(cluster.directory.join(SETTINGS), serde_json::to_vec_pretty(&cluster.settings)?)?;
    network::create(&cluster.plan(), cluster.settings.wire())?;
    let credentials = Credentials::create(&cluster.directory.join("credentials"))?;
    let listener = forward::listen()?;
    write_kubectl(cluster, &credentials, &listener, assets)?;
    step("starting the control plane");
    let programs = control::programs(&cluster.machine_directory(CONTROL), &credentials, assets)?;
    start_machine(cluster, CONTROL, programs, Some(listener), assets)?;
    step("starting the nodes");
    for number in 1..=cluster.settings.nodes {
        start_node(cluster, number, &credentials, assets)?;
    }
    step("importing the images");
    import_everywhere(cluster, assets)?;
    let kubectl = cluster.kubectl();
    wait("the API server", START_LIMIT, || kubectl.run(&["get", "--raw", "/readyz"]))?;
    step("registering the nodes");
    let nodes: Vec<_> = (1..=cluster.settings.nodes).map(kubelet::object).collect();
    wait("the Node objects", START_LIMIT, || kubectl.apply(&nodes))?;
    wait("kube-system", START_LIMIT, || kubectl.run(&["get", "namespace", "kube-system"]))?;
    if cluster.settings.proxy == Proxy::Millrace {
        step("installing Millrace");
        install::millrace(cluster, assets)?;
    }
    step("waiting until nodes and proxies are ready");
    Ok(())
}

fn start_node(cluster: &Cluster, number: u8, credentials: &Credentials, assets: &Assets) -> Result<()> {
    let name = node_name(number);
    let directory = cluster.machine_directory(&name);
    fs::create_dir_all(&directory)?;
    let mut programs = vec![
        containerd::configure(&directory, number, assets)?,
        kubelet::configure(&directory, number, credentials, assets)?,
    ];
    if cluster.settings.proxy == Proxy::KubeProxy {
        programs.push(kubelet::kube_proxy(number, credentials, assets)?);
    }
    start_machine(cluster, &name, programs, None, assets)
}

fn start_machine(
    cluster: &Cluster,
    name: &str,
    programs: Vec<Program>,
    listener: Option<TcpListener>,
    assets: &Assets,
) -> Result<()> {
    let machine = Machine {
        cluster: cluster.settings.name.clone(),
        name: name.to_owned(),
        directory: cluster.machine_directory(name),
        programs,
        forwards: listener.is_some(),
    };
    let namespace = cluster.namespace(name)?;
    machine::start(&machine, &assets.init, &namespace, listener)
        .with_context(|| format!("can't start {name}"))
}

fn import_everywhere(cluster: &Cluster, assets: &Assets) -> Result<()> {
    thread::scope(|scope| {
        let imports: Vec<_> = cluster
            .plan()
            .node_names()
            .into_iter()
            .map(|name| scope.spawn(move || containerd::import(cluster, &name, assets)))
            .collect();
        imports.into_iter().try_for_each(|import| import.join().map_err(|_| anyhow!("an import panicked"))?)
    })
}

/// Writes the administrator's kubeconfig, and a script that runs kubectl with it.
fn write_kubectl(
    cluster: &Cluster,
    credentials: &Credentials,
    listener: &TcpListener,
    assets: &Assets,
) -> Result<()> {
    let made = credentials.administrator(listener.local_addr()?)?;
    let kubeconfig = cluster.directory.join(KUBECONFIG);
    fs::copy(&made, &kubeconfig)?;
    fs::copy(credentials.administrator_outside()?, cluster.directory.join(OUTSIDE_KUBECONFIG))?;
    let quoted = |path: &Path| format!("'{}'", path.display());
    let script = format!(
        "#!/bin/sh\nexec {} --kubeconfig {} \"$@\"\n",
        quoted(&assets.program("kubectl")?),
        quoted(&kubeconfig)
    );
    let path = cluster.directory.join(KUBECTL);
    fs::write(&path, script)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(())
}
