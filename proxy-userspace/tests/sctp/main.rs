//! SCTP through real agents, with real sockets: an association, a small answer, and bodies of many
//! packets, with a change of port. The kernel must have SCTP.
#![expect(clippy::unwrap_used, reason = "a cluster that does not come up must fail the tests at once")]

mod by_ipvs;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
use millrace_lab::cluster::Cluster;
use millrace_lab::manifests::Service;
use millrace_lab::net::remove_own_at_exit;
use millrace_lab::process::{self, Process};
use millrace_lab::topology::{Dual, Family, Shape, vip};
use millrace_lab::traffic::{Answer, Connection, Server};

/// The frontends' port, and the backends'.
const PORT: u16 = 5060;
const TARGET_PORT: u16 = 38412;
/// More bytes than one packet holds, and fewer than a socket's buffer.
const LARGE: usize = 60_000;
/// So few bytes that one packet holds them, even inside another packet.
const SMALL: usize = 1000;

/// An emulated machine is slow.
const LIMIT: Duration = Duration::from_mins(1);

/// Two nodes with a pod each. Agents and wires are either for XDP (finished checksums) or for TC
/// (unfinished checksums, and packets that are to be segmented).
struct Bed {
    cluster: Cluster,
    /// Whether the nodes know Services by name, as in eBPF mode.
    knows_names: bool,
    _servers: Vec<Server>,
}

impl Bed {
    fn new(xdp: &str) -> Self {
        remove_own_at_exit();
        Self::of(Cluster::start_with(shape(), xdp, &["--flow-table-size", "4096"]).unwrap(), true)
    }

    fn of(cluster: Cluster, knows_names: bool) -> Self {
        let servers = cluster.bed().pods().map(|pod| Server::sctp_in_pod(pod, TARGET_PORT).unwrap());
        Self { _servers: servers.collect(), cluster, knows_names }
    }

    /// Applies a Service at node 1, with the pod of a node as backend.
    fn serve(&self, name: &str, number: u8, node: u8, change: impl Fn(Service) -> Service) -> Result<Dual> {
        let vip = vip(number);
        let bed = self.cluster.bed();
        let pod = bed.pod(&format!("pod-{node}a"))?;
        let service = Service::new(name, number).sctp_port(PORT, TARGET_PORT).load_balancer(vip);
        let service = change(service.pod(bed.node(node)?, pod));
        if self.knows_names {
            self.cluster.apply(&service, &[1, 2])?;
            return Ok(vip);
        }
        self.cluster.manifests().put_service(&service)?;
        for family in Family::ALL {
            let what = format!("an answer by {family}");
            let is_answered = || Ok(self.talk(vip, family, SMALL).is_ok());
            self.cluster.proxy(1)?.wait_until_within(LIMIT, &what, is_answered)?;
        }
        Ok(vip)
    }

    /// Associates, sends a request and a body, and asks for a body. Returns the backend's report.
    fn talk(&self, vip: Dual, family: Family, bytes: usize) -> Result<Answer> {
        let bed = self.cluster.bed();
        let (client, target) = (bed.client_addresses().of(family), SocketAddr::new(vip.of(family), PORT));
        let (answer, sent, received) = bed.client().run(async move || {
            let mut connection = Connection::open_sctp(client, target).await?;
            let answer = connection.request().await?;
            let sent = connection.upload(bytes).await?.sighting.received;
            Ok((answer, sent, connection.download(bytes).await?))
        })?;
        assert_eq!((sent, received), (bytes, bytes), "{family}");
        Ok(answer)
    }
}

fn shape() -> Shape {
    Shape { nodes: 2, pods: 1, ..Shape::default() }
}

fn with_xdp() -> MutexGuard<'static, Bed> {
    static BED: LazyLock<Mutex<Bed>> = LazyLock::new(|| Mutex::new(Bed::new("native")));
    BED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn with_tc() -> MutexGuard<'static, Bed> {
    static BED: LazyLock<Mutex<Bed>> = LazyLock::new(|| Mutex::new(Bed::new("off")));
    BED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn reaches_a_pod_here(bed: &Bed) -> Result<()> {
    let vip = bed.serve("here", 1, 1, |service| service)?;
    for family in Family::ALL {
        let answer = bed.talk(vip, family, LARGE)?;
        assert!(answer.sighting.backend == "pod-1a" && answer.kept_client(), "{answer:?}");
    }
    Ok(())
}

fn reaches_a_pod_on_another_node(bed: &Bed) -> Result<()> {
    let vip = bed.serve("there", 2, 2, |service| service)?;
    for family in Family::ALL {
        let answer = bed.talk(vip, family, LARGE)?;
        let node = bed.cluster.bed().node(1)?.addresses().of(family);
        assert_eq!((answer.sighting.backend.as_str(), answer.sighting.peer.ip()), ("pod-2a", node));
    }
    Ok(())
}

/// The packets fit the tunnel.
fn is_answered_directly(bed: &Bed) -> Result<()> {
    let vip = bed.serve("direct", 3, 2, |service| service.annotation("millrace.dev/forwarding", "dsr"))?;
    for family in Family::ALL {
        let answer = bed.talk(vip, family, SMALL)?;
        assert!(answer.sighting.backend == "pod-2a" && answer.kept_client(), "{answer:?}");
    }
    Ok(())
}

/// A foreign client prints the bytes of a foreign server: its `ip` output.
fn serves_ncat_in_a_pod(bed: &Bed) -> Result<()> {
    const LISTENING: u16 = 7777;
    let (cluster, families) = (&bed.cluster, [("-4", "0.0.0.0"), ("-6", "::")]);
    let mut servers = Vec::new();
    for (pod, (family, any)) in cluster.bed().pods().flat_map(|pod| families.map(|family| (pod, family))) {
        let port = LISTENING.to_string();
        let words = [family, "--sctp", "--listen", "--keep-open", "--exec", "/usr/sbin/ip -V", any, &port]
            .map(str::to_owned);
        let log = cluster.bed().directory().join("ncat.log");
        servers.push(Process::start(pod.namespace(), PathBuf::from("/usr/bin/ncat"), words.to_vec(), &log)?);
    }
    let from = cluster.bed().pod("pod-1a")?.namespace();
    let ask = |address: IpAddr, port: u16| {
        let (address, port) = (address.to_string(), port.to_string());
        process::output(from, &["/usr/bin/ncat", "--sctp", "--recv-only", "--wait", "60s", &address, &port])
    };
    for (number, backend) in [(10, "pod-2a"), (11, "pod-1a")] {
        let pod = cluster.bed().pod(backend)?;
        let service = Service::new(&format!("ncat-{number}"), number).sctp_port(80, LISTENING);
        let service = service.pod(cluster.bed().node_of(backend)?, pod);
        cluster.apply(&service, &[1])?;
        for family in Family::ALL {
            cluster.proxy(1)?.wait_until("the server listens", || {
                Ok(ask(pod.addresses().of(family), LISTENING)?.contains("iproute2"))
            })?;
            let said = ask(service.cluster_ips().of(family), 80)?;
            assert!(said.contains("iproute2"), "{backend} {family}: {said}");
        }
    }
    Ok(())
}

#[test]
fn xdp_a_pod_asks_another_nodes_and_itself_by_ncat() -> Result<()> {
    serves_ncat_in_a_pod(&with_xdp())
}

#[test]
fn tc_a_pod_asks_another_nodes_and_itself_by_ncat() -> Result<()> {
    serves_ncat_in_a_pod(&with_tc())
}

#[test]
fn xdp_a_pod_of_the_node_is_reached_behind_another_port() -> Result<()> {
    reaches_a_pod_here(&with_xdp())
}

#[test]
fn xdp_a_pod_of_another_node_is_reached_from_a_port_of_the_first() -> Result<()> {
    reaches_a_pod_on_another_node(&with_xdp())
}

#[test]
fn xdp_a_pod_of_another_node_answers_the_client_itself() -> Result<()> {
    is_answered_directly(&with_xdp())
}

#[test]
fn tc_a_pod_of_the_node_is_reached_behind_another_port() -> Result<()> {
    reaches_a_pod_here(&with_tc())
}

#[test]
fn tc_a_pod_of_another_node_is_reached_from_a_port_of_the_first() -> Result<()> {
    reaches_a_pod_on_another_node(&with_tc())
}

#[test]
fn tc_a_pod_of_another_node_answers_the_client_itself() -> Result<()> {
    is_answered_directly(&with_tc())
}
