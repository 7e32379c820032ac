//! Pods and processes of the nodes ask Services: through the socket hooks, and per packet.

mod bind;
mod datagrams;
mod devices;
mod matrix;
mod packets;
mod sockets;

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use millrace_lab::cluster::Cluster;
use millrace_lab::manifests::Service;
use millrace_lab::net::{Namespace, Task};
use millrace_lab::pool::{Pool, Taken};
use millrace_lab::topology::{Dual, Family, Shape};
use millrace_lab::traffic::{Answer, Protocol, ask};

use crate::fixture::{shared, xdp};

/// The number of requests after which a silent backend counts as left out.
const MOST: usize = 80;
/// The longest time of an agent with other flags to load its programs anew.
const RELOAD: Duration = Duration::from_mins(2);

/// Declares each function as tests for both ways of serving a pod.
macro_rules! each_path {
    ($($name:ident)+) => {$(
        mod $name {
            use super::super::Path;

            #[test] fn by_sockets() -> anyhow::Result<()> { super::$name(Path::Sockets) }
            #[test] fn by_packets() -> anyhow::Result<()> { super::$name(Path::Packets) }
        }
    )+};
}
use each_path;

/// The way in which pods are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    /// Socket hooks serve them.
    Sockets,
    /// Programs on their devices serve them per packet.
    Packets,
}

impl Path {
    /// Returns the agents' flags.
    const fn flags(self) -> &'static [&'static str] {
        match self {
            Self::Sockets => &[],
            Self::Packets => &["--socket-lb", "off"],
        }
    }

    /// Returns a cluster for tests that break only their own Services.
    fn shared(self) -> Taken {
        static WITHOUT_HOOKS: Pool =
            Pool::new(1, || Cluster::start_with(Shape::default(), &xdp(), Path::Packets.flags()));
        match self {
            Self::Sockets => shared(),
            Self::Packets => WITHOUT_HOOKS.take().unwrap(),
        }
    }

    /// Returns a cluster of the test's own.
    fn own(self, nodes: u8, pods: u8) -> Result<Cluster> {
        Cluster::start_with(Shape { nodes, pods, ..Shape::default() }, &xdp(), self.flags())
    }

    /// Returns the served clients of a node: a pod, and with socket hooks also the node's own
    /// processes.
    fn clients<'a>(self, cluster: &'a Cluster, pod: &str, number: u8) -> Result<Vec<&'a Namespace>> {
        let host = (self == Self::Sockets).then(|| node(cluster, number)).transpose()?;
        Ok([self::pod(cluster, pod)?].into_iter().chain(host).collect())
    }

    /// Applies a Service on the nodes of its clients, once their programs are attached.
    fn apply(self, cluster: &Cluster, service: &Service, nodes: &[u8]) -> Result<()> {
        cluster.apply(service, nodes)?;
        for number in nodes {
            let proxy = cluster.proxy(*number)?;
            match self {
                Self::Sockets => {
                    proxy.wait_for_hooks("cgroup", &["cg_connect4", "cg_sendmsg6", "cg_bind6"])?;
                }
                Self::Packets => {
                    for pod in cluster.bed().node(*number)?.pods() {
                        proxy.wait_for_hooks(&pod.device(), &["tc_pod_in", "tc_pod_out"])?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Asks over both families and protocols until each backend has answered, and no other. The
    /// backends must see the asking socket's own address. Only a pod that reaches itself per packet
    /// sees the frontend there.
    fn reaches(
        self,
        cluster: &Cluster,
        from: &Namespace,
        (address, port): (Dual, u16),
        backends: &[&str],
    ) -> Result<()> {
        for (family, protocol) in Family::ALL.into_iter().flat_map(|f| Protocol::ALL.map(|p| (f, p))) {
            let target = SocketAddr::new(address.of(family), port);
            for Answer { sighting, client } in asked_until(from, protocol, target, backends)? {
                let from = from.name();
                let itself = cluster
                    .bed()
                    .pod(&sighting.backend)
                    .is_ok_and(|pod| pod.addresses().of(family) == client.ip());
                if self == Self::Packets && itself && target.ip() != client.ip() {
                    ensure!(
                        sighting.peer.ip() == target.ip(),
                        "{from} asked {target} as {client}: {sighting:?}"
                    );
                } else {
                    ensure!(sighting.peer == client, "{from} asked {target} as {client}: {sighting:?}");
                }
            }
        }
        Ok(())
    }
}

fn asked_until(
    from: &Namespace,
    protocol: Protocol,
    target: SocketAddr,
    backends: &[&str],
) -> Result<Vec<Answer>> {
    let wanted: BTreeSet<&str> = backends.iter().copied().collect();
    let mut answers: Vec<Answer> = Vec::new();
    while answers.len() < MOST {
        let answer = ask(from, protocol, target).with_context(|| from.name().to_owned())?;
        let name = &answer.sighting.backend;
        ensure!(wanted.contains(name.as_str()), "{} asked {target}: {name} answered", from.name());
        answers.push(answer);
        let seen: BTreeSet<&str> = answers.iter().map(|answer| answer.sighting.backend.as_str()).collect();
        if seen == wanted && answers.len() > 3 {
            return Ok(answers);
        }
    }
    anyhow::bail!("{} asked {target}: not all of {wanted:?} answered", from.name())
}

fn pod<'a>(cluster: &'a Cluster, name: &str) -> Result<&'a Namespace> {
    Ok(cluster.bed().pod(name)?.namespace())
}

fn node(cluster: &Cluster, number: u8) -> Result<&Namespace> {
    Ok(cluster.bed().node(number)?.namespace())
}

fn loopback() -> Dual {
    Dual { v4: Ipv4Addr::LOCALHOST, v6: Ipv6Addr::LOCALHOST }
}

/// Returns the result of a TCP connection.
fn connect(from: &Namespace, target: SocketAddr) -> Result<Result<SocketAddr, ErrorKind>> {
    from.run(async move || match tokio::net::TcpStream::connect(target).await {
        Ok(stream) => Ok(Ok(stream.peer_addr()?)),
        Err(error) => Ok(Err(error.kind())),
    })
}

/// Starts to connect. The kernel gives up after minutes.
fn knock(from: &Namespace, target: SocketAddr) -> Task<()> {
    from.spawn(async move || Ok(tokio::net::TcpStream::connect(target).await.map(drop)?))
}

fn any(target: SocketAddr) -> SocketAddr {
    let any: IpAddr = match target {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    SocketAddr::new(any, 0)
}
