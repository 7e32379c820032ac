//! Nodes with the real kube-proxy, one for each of its modes.

use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use millrace_lab::cluster::Cluster;
use millrace_lab::kube_proxy::{KubeProxy, Mode};
use millrace_lab::manifests::Service;
use millrace_lab::net::Namespace;
use millrace_lab::topology::{Dual, Family};

use super::measure::Server;
use super::pairs::Side;
use super::{ECHO, PORT, pod, shape, start_servers};
use crate::others;

/// The longest time until a kube-proxy with ten thousand Services serves.
const START_LIMIT: Duration = Duration::from_mins(5);
/// The number before those of the measured Services. The API server's own Service has the first ClusterIP.
const FIRST: u8 = 100;
const MODES: [Mode; 2] = [Mode::Iptables, Mode::Nftables];

/// A cluster whose nodes have a kube-proxy each. All serve.
pub struct KubeProxies {
    // Dropped before the cluster.
    _proxies: Vec<KubeProxy>,
    _servers: Vec<Server>,
    services: Vec<Dual>,
    cluster: Cluster,
}

impl KubeProxies {
    /// Starts it with `number` Services.
    pub fn start(number: u32) -> Result<Self> {
        let cluster = Cluster::with_api_server(shape(MODES.len() as u8), "native")?;
        others::put(&cluster, number.saturating_sub(1), "node1")?;
        let (mut proxies, mut servers, mut services) = (Vec::new(), Vec::new(), Vec::new());
        for (node, mode) in (1..).zip(MODES) {
            let backend = format!("pod-{node}b");
            servers.extend(start_servers(cluster.bed().pod(&backend)?)?);
            let service = Service::new(&format!("measured-{node}"), FIRST + node).port(PORT, ECHO);
            let service = service.pod(cluster.bed().node(node)?, cluster.bed().pod(&backend)?);
            cluster.apply(&service, &[])?;
            services.push(service.cluster_ips());
            let server = cluster.api_server()?;
            proxies.push(KubeProxy::start(cluster.bed(), cluster.bed().node(node)?, server, mode)?);
        }
        let started = Self { _proxies: proxies, _servers: servers, services, cluster };
        started.wait_until_served()?;
        Ok(started)
    }

    /// Returns the client and the Service of each mode, with the mode's name.
    pub fn sides(&self) -> Result<Vec<(&'static str, Side<'_>)>> {
        let side = |((node, mode), service): ((u8, Mode), &Dual)| {
            let client = pod(&self.cluster, &format!("pod-{node}a"))?;
            Ok((mode.name(), Side::new(client, *service, PORT, Family::V4)))
        };
        (1..).zip(MODES).zip(&self.services).map(side).collect()
    }

    fn wait_until_served(&self) -> Result<()> {
        let end = Instant::now() + START_LIMIT;
        for (node, service) in (1_u8..).zip(&self.services) {
            let client = pod(&self.cluster, &format!("pod-{node}a"))?;
            let target = SocketAddr::new(service.of(Family::V4), PORT);
            while !is_served(client, target)? {
                ensure!(Instant::now() < end, "kube-proxy of node {node} does not serve");
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        Ok(())
    }
}

fn is_served(client: &Namespace, target: SocketAddr) -> Result<bool> {
    client.run(async move || Ok(TcpStream::connect_timeout(&target, Duration::from_secs(1)).is_ok()))
}
