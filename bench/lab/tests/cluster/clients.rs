//! Clients in pods, on nodes and outside, and their requests.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use millrace_lab::kubernetes::{Cluster, Kubectl, Plan};
use millrace_lab::net::Namespace;
use millrace_lab::traffic::Connection;
use serde_json::Value;
use tokio::net::UdpSocket;
use tokio::time::timeout;

use super::objects::{NODE_CLIENT_PORT, POD_CLIENT_PORT};

const UDP_LIMIT: Duration = Duration::from_secs(2);

/// A protocol of the backends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Http,
    Udp,
}

impl Protocol {
    pub const ALL: [Self; 2] = [Self::Http, Self::Udp];

    /// Returns the name of the Service's port.
    pub const fn port_name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Udp => "udp",
        }
    }

    /// Returns the Service's port.
    pub const fn port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Udp => 81,
        }
    }
}

/// A sender of requests.
#[derive(Clone, Debug)]
pub enum Client {
    /// The machine outside the cluster.
    Outside(Arc<Namespace>),
    /// A process in the cluster, which is told by HTTP what to ask. The way to it is no Service.
    Inside { name: String, control: SocketAddr, through: Arc<Namespace> },
}

impl Client {
    pub fn outside(cluster: &Cluster) -> Result<Self> {
        Ok(Self::Outside(cluster.namespace("outside")?))
    }

    /// Returns the client in a pod on node `number`.
    pub fn in_pod(cluster: &Cluster, number: u8) -> Result<Self> {
        let address = pod_address(&cluster.kubectl(), "pod-client", &format!("node-{number}"))?;
        Ok(Self::Inside {
            name: format!("pod on node-{number}"),
            control: SocketAddr::new(address, POD_CLIENT_PORT),
            through: cluster.namespace("outside")?,
        })
    }

    /// Returns the client in the network of node `number`.
    pub fn on_node(cluster: &Cluster, number: u8) -> Result<Self> {
        let [address, _] = Plan::node(number);
        Ok(Self::Inside {
            name: format!("node-{number}"),
            control: SocketAddr::new(address, NODE_CLIENT_PORT),
            through: cluster.namespace("outside")?,
        })
    }

    /// Sends one request, such as `hostname` or `clientip`, on a socket of its own.
    pub fn ask(&self, protocol: Protocol, target: SocketAddr, request: &'static str) -> Result<String> {
        let answer = match self {
            Self::Outside(namespace) => namespace.run(async move || match protocol {
                Protocol::Http => Connection::open(target).await?.get(&format!("/{request}")).await,
                Protocol::Udp => ask_udp(target, request).await,
            }),
            Self::Inside { control, through, .. } => dial(through, *control, protocol, target, request),
        };
        answer.with_context(|| format!("{self} asks {target} over {protocol:?} for {request}"))
    }

    /// Returns the backends that answer `count` requests.
    pub fn backends(&self, protocol: Protocol, target: SocketAddr, count: usize) -> Result<BTreeSet<String>> {
        (0..count).map(|_| self.ask(protocol, target, "hostname")).collect()
    }
}

impl std::fmt::Display for Client {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Outside(_) => formatter.write_str("outside"),
            Self::Inside { name, .. } => formatter.write_str(name),
        }
    }
}

/// Returns the IPv4 address of an app's pod on a node.
fn pod_address(kubectl: &Kubectl, app: &str, node: &str) -> Result<IpAddr> {
    let label = format!("app={app}");
    let pods = kubectl.json(&["get", "pods", "--selector", &label])?;
    let pods = pods["items"].as_array().cloned().unwrap_or_default();
    let pod = pods.into_iter().find(|pod| pod["spec"]["nodeName"] == node);
    let pod = pod.with_context(|| format!("{node} has no pod of {app}"))?;
    Ok(pod["status"]["podIP"].as_str().context("the pod has no address")?.parse()?)
}

fn dial(
    through: &Namespace,
    control: SocketAddr,
    protocol: Protocol,
    target: SocketAddr,
    request: &str,
) -> Result<String> {
    let path = format!(
        "/dial?host={}&port={}&protocol={}&request={request}&tries=1",
        target.ip(),
        target.port(),
        protocol.port_name()
    );
    let body = through.run(async move || Connection::open(control).await?.get(&path).await)?;
    let answer: Value = serde_json::from_str(&body).with_context(|| format!("no answer to /dial: {body}"))?;
    match answer["responses"].as_array().map(Vec::as_slice) {
        Some([response]) => Ok(response.as_str().context("the answer is no text")?.to_owned()),
        _ => bail!("{}", answer["errors"]),
    }
}

async fn ask_udp(target: SocketAddr, request: &str) -> Result<String> {
    let any = if target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).await?;
    // A connected socket takes answers from the target's address only.
    socket.connect(target).await?;
    socket.send(request.as_bytes()).await?;
    let mut buffer = [0; 512];
    let length = timeout(UDP_LIMIT, socket.recv(&mut buffer)).await.context("no answer")??;
    ensure!(length > 0, "an empty answer");
    Ok(String::from_utf8_lossy(buffer.get(..length).unwrap_or_default()).into_owned())
}
