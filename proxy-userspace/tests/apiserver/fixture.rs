//! The common clusters of the tests: one API server, one bed, agents on two of its three nodes.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use millrace_lab::apiserver::HOST;
use millrace_lab::cluster::Cluster;
use millrace_lab::manifests::{Service, nodes};
use millrace_lab::pool::{Pool, Taken};
use millrace_lab::topology::Shape;
use serde_json::json;

/// The nodes with an agent. The third node is for agents that are to fail.
pub const SERVED: [u8; 2] = [1, 2];
pub const UNSERVED: u8 = 3;
/// Common clusters.
const CLUSTERS: usize = 4;
/// The longest time of an agent to reconnect: its longest wait between two attempts, and a slow
/// listing.
pub const RETURN_LIMIT: Duration = Duration::from_secs(90);

/// Says that a Node is ready, or that its kubelet is not heard of.
pub fn set_ready(cluster: &Cluster, node: u8, is_ready: bool) -> Result<()> {
    let name = cluster.bed().node(node)?.name();
    let objects = nodes(cluster.bed());
    let mut object =
        objects.into_iter().find(|object| object["metadata"]["name"] == name).context("no Node")?;
    let status = if is_ready { "True" } else { "Unknown" };
    object["status"]["conditions"] = json!([{ "type": "Ready", "status": status }]);
    cluster.api_server()?.kube().put(object)
}

/// A cluster of which each test is the only user, with everything running. Most of a test's time it waits for an agent to
/// ask the server again, so there are several clusters.
pub fn shared() -> Taken {
    static SHARED: Pool = Pool::new(CLUSTERS, || {
        let xdp = std::env::var("MILLRACE_XDP").unwrap_or_else(|_| "native".to_owned());
        Cluster::with_api_server(Shape { nodes: 3, pods: 2, ..Shape::default() }, &xdp)
    });
    let mut cluster = SHARED.take().unwrap();
    restore(&mut cluster).unwrap();
    cluster
}

/// Repairs the state after a failed test.
fn restore(cluster: &mut Cluster) -> Result<()> {
    cluster.bed().plug_in(HOST)?;
    SERVED.into_iter().try_for_each(|node| cluster.bed().plug_in(&format!("node{node}")))?;
    cluster.api_server_mut()?.restore()?;
    for node in SERVED {
        if !cluster.has_agent(node) {
            cluster.start_agent(node)?;
        }
    }
    SERVED.into_iter().try_for_each(|node| cluster.wait_for_hooks(node))?;
    wait_until_followed(cluster)
}

/// Puts a new Service and waits until all agents have it. After a failure they take some time to
/// ask again.
fn wait_until_followed(cluster: &Cluster) -> Result<()> {
    static PORT: AtomicU16 = AtomicU16::new(1);
    let port = PORT.fetch_add(1, Ordering::Relaxed);
    cluster.api_server()?.kube().put(json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": "default", "name": "beacon"},
        "spec": {"clusterIP": "10.96.9.9", "ports": [{"port": port}]},
    }))?;
    SERVED.into_iter().try_for_each(|node| {
        let proxy = cluster.proxy(node)?;
        proxy.wait_until_within(RETURN_LIMIT, "the API server is followed", || {
            let frontends = proxy.services()?.into_iter().filter(|row| row.name == "beacon");
            Ok(frontends.flat_map(|row| row.frontends).any(|frontend| frontend.address.port() == port))
        })
    })
}

/// Removes a Service from the API server.
pub fn remove(cluster: &Cluster, service: &Service) -> Result<()> {
    let kube = cluster.api_server()?.kube();
    for object in service.objects() {
        let text = |pointer: &str| object.pointer(pointer).and_then(|value| value.as_str()).unwrap();
        kube.delete(text("/apiVersion"), text("/kind"), "default", text("/metadata/name"))?;
    }
    Ok(())
}

/// Waits, as long as a reconnection may take, until a node's maps have these backends of a Service.
pub fn wait_for_backends(cluster: &Cluster, node: u8, service: &Service) -> Result<()> {
    let proxy = cluster.proxy(node)?;
    let mut wanted: Vec<SocketAddr> = service.backends();
    wanted.sort_unstable();
    proxy.wait_until_within(RETURN_LIMIT, &format!("{} has {wanted:?}", service.name()), || {
        let rows = proxy.services()?.into_iter().filter(|row| row.name == service.name());
        let mut found: Vec<_> = rows.flat_map(|row| row.backends).collect();
        found.sort_unstable();
        found.dedup();
        Ok(found == wanted)
    })
}

/// Waits until an agent prints a line with all of these words after what it has printed so far.
pub fn wait_for_line(cluster: &Cluster, node: u8, read: usize, words: &[&str]) -> Result<()> {
    let proxy = cluster.proxy(node)?;
    proxy.wait_until_within(RETURN_LIMIT, &format!("a line has {words:?}"), || {
        let log = proxy.log();
        let has_all = |line: &str| words.iter().all(|word| line.contains(word));
        Ok(log.get(read..).unwrap_or_default().lines().any(has_all))
    })
}
