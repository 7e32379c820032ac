//! The shared cluster of the tests, and helpers.

use std::net::{IpAddr, SocketAddr};
use std::ops::{Deref, DerefMut};
use std::process::Output;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use millrace_lab::cluster::Cluster;
use millrace_lab::manifests::Service;
use millrace_lab::net::{Namespace, remove_own_at_exit};
use millrace_lab::process;
use millrace_lab::topology::{Family, Shape, cluster_ip};
use millrace_lab::traffic::{Answer, Protocol, ask};

/// The flags of every agent of these tests.
pub const FLAGS: [&str; 2] = ["--proxy-mode", "ipvs"];
/// The longest wait. An emulated machine is slow.
pub const LIMIT: Duration = Duration::from_mins(1);

/// The shared cluster with a change that `restore` undoes at the end.
pub struct Altered {
    cluster: MutexGuard<'static, Cluster>,
    restore: fn(&mut Cluster) -> Result<()>,
}

impl Altered {
    /// Returns the cluster before the change.
    pub fn new(restore: fn(&mut Cluster) -> Result<()>) -> Self {
        Self { cluster: shared(), restore }
    }

    /// Returns the cluster while IPVS serves node 2, too. Its agent stays until a test wants none.
    pub fn with_both_nodes() -> Result<Self> {
        let mut cluster = turn();
        if !cluster.has_agent(2) {
            start_agent(&mut cluster, 2, &FLAGS)?;
        }
        Ok(Self { cluster, restore: |_| Ok(()) })
    }
}

impl Deref for Altered {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        &self.cluster
    }
}

impl DerefMut for Altered {
    fn deref_mut(&mut self) -> &mut Cluster {
        &mut self.cluster
    }
}

impl Drop for Altered {
    fn drop(&mut self) {
        let restored = (self.restore)(&mut self.cluster);
        assert!(restored.is_ok() || std::thread::panicking(), "restoring the cluster failed: {restored:?}");
    }
}

/// Starts a node's agent in place of the running one, and waits until it reports that it serves.
pub fn start_agent(cluster: &mut Cluster, node: u8, flags: &[&str]) -> Result<()> {
    if cluster.has_agent(node) {
        cluster.take_agent(node)?.stop()?;
    }
    let starts = cluster.proxy(node)?.log().matches("serving as").count();
    cluster.start_agent_with(node, flags)?;
    cluster.proxy(node)?.wait_for_start(starts + 1)
}

/// Removes a node's agent and data plane.
pub fn end_agent(cluster: &mut Cluster, node: u8) -> Result<()> {
    if cluster.has_agent(node) {
        cluster.take_agent(node)?.stop()?;
    }
    let cleaned = cluster.proxy(node)?.command(&["cleanup"])?;
    ensure!(cleaned.status.success(), "{}", String::from_utf8_lossy(&cleaned.stderr));
    Ok(())
}

/// Returns the shared cluster: two nodes with two pods each. IPVS serves the first node.
///
/// Only one test at a time has the cluster.
pub fn shared() -> MutexGuard<'static, Cluster> {
    let mut cluster = turn();
    if cluster.has_agent(2) {
        end_agent(&mut cluster, 2).unwrap();
    }
    cluster
}

/// Returns the shared cluster as the test before left it.
fn turn() -> MutexGuard<'static, Cluster> {
    static SHARED: LazyLock<Mutex<Cluster>> = LazyLock::new(|| {
        remove_own_at_exit();
        Mutex::new(start().unwrap())
    });
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn start() -> Result<Cluster> {
    let mut cluster = Cluster::without_agents(Shape { nodes: 2, pods: 2, ..Shape::default() }, "off")?;
    // Bridge plugins of CNI set their ports so. A packet may leave by the port on which it came in.
    for port in ["veth-1a", "veth-1b"] {
        output(&cluster, &["ip", "link", "set", "dev", port, "type", "bridge_slave", "hairpin", "on"])?;
    }
    cluster.start_agent_with(1, &FLAGS)?;
    cluster.proxy(1)?.wait_for_start(1)?;
    Ok(cluster)
}

/// A virtual service of the kernel, from /proc/net/ip_vs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// The line of the service, such as `TCP 0A600001:0050 rr`. Flags may follow.
    pub service: String,
    /// The address and port, weight, active and inactive connections of each server.
    pub servers: Vec<(String, u32, u32, u32)>,
}

/// Returns the virtual services of node 1 from the kernel's list.
pub fn listed(cluster: &Cluster) -> Result<Vec<Listed>> {
    let text = cluster
        .proxy(1)?
        .namespace()
        .run(async || Ok(std::fs::read_to_string("/proc/thread-self/net/ip_vs")?))?;
    let mut all: Vec<Listed> = Vec::new();
    for words in text.lines().skip(3).map(|line| line.split_whitespace().collect::<Vec<_>>()) {
        match words.as_slice() {
            ["->", place, _, weight, active, inactive] => {
                let server = ((*place).to_owned(), weight.parse()?, active.parse()?, inactive.parse()?);
                all.last_mut().context("a server without a service")?.servers.push(server);
            }
            words => all.push(Listed { service: words.join(" "), servers: Vec::new() }),
        }
    }
    Ok(all)
}

/// Returns `address:port` in the notation of /proc/net/ip_vs.
pub fn place(address: SocketAddr) -> String {
    match address.ip() {
        IpAddr::V4(ip) => format!("{:08X}:{:04X}", u32::from(ip), address.port()),
        IpAddr::V6(ip) => {
            let words: Vec<String> = ip.segments().iter().map(|word| format!("{word:04x}")).collect();
            format!("[{}]:{:04X}", words.join(":"), address.port())
        }
    }
}

/// Returns the servers of a TCP virtual service, each with its weight.
pub fn servers(cluster: &Cluster, address: SocketAddr) -> Result<Vec<(String, u32)>> {
    let prefix = format!("TCP {} ", place(address));
    let all = listed(cluster)?;
    let found = all.iter().find(|one| one.service.starts_with(&prefix)).context("no such virtual service")?;
    Ok(found.servers.iter().map(|(place, weight, ..)| (place.clone(), *weight)).collect())
}

/// Writes a Service, and waits until the kernel has exactly its servers at the ClusterIPs.
///
/// Draining servers do not count.
pub fn apply_servers(cluster: &Cluster, number: u8, service: &Service) -> Result<()> {
    cluster.manifests().put_service(service)?;
    let backends = service.backends();
    cluster.proxy(1)?.wait_until_within(LIMIT, &format!("{} is served", service.name()), || {
        Family::ALL.into_iter().try_fold(true, |so_far, family| {
            let mut wanted: Vec<String> =
                backends.iter().filter(|one| Family::of(one.ip()) == family).map(|one| place(*one)).collect();
            let servers = servers(cluster, SocketAddr::new(cluster_ip(number).of(family), 80))?;
            let mut found: Vec<String> =
                servers.into_iter().filter(|(_, weight)| *weight > 0).map(|(place, _)| place).collect();
            wanted.sort_unstable();
            found.sort_unstable();
            Ok(so_far && wanted == found)
        })
    })
}

/// Writes a Service, and waits for its servers and for its load balancer's addresses, which come last.
pub fn apply(cluster: &Cluster, number: u8, service: &Service) -> Result<()> {
    apply_servers(cluster, number, service)?;
    cluster.proxy(1)?.wait_until_within(LIMIT, &format!("{} has its addresses", service.name()), || {
        let bound = output(cluster, &["ip", "-oneline", "address", "show", "dev", "kube-ipvs0"])?;
        let is_bound =
            |address: &IpAddr| bound.split_whitespace().any(|word| word.starts_with(&format!("{address}/")));
        Ok(service.load_balancer_addresses().iter().all(is_bound))
    })
}

/// Sends requests until all of `backends` have answered, at most ten per backend.
///
/// Fails if another backend answers.
pub fn ask_all(
    namespace: &Namespace,
    protocol: Protocol,
    target: SocketAddr,
    backends: &[&str],
) -> Result<Vec<Answer>> {
    let mut answers: Vec<Answer> = Vec::new();
    for _ in 0..backends.len() * 10 {
        let answer = ask(namespace, protocol, target)?;
        let name = answer.sighting.backend.as_str();
        ensure!(backends.contains(&name), "{name} answered for {target}, not one of {backends:?}");
        answers.push(answer);
        if backends.iter().all(|name| answers.iter().any(|answer| answer.sighting.backend == **name)) {
            return Ok(answers);
        }
    }
    anyhow::bail!("not all of {backends:?} answered for {} {target}: {answers:?}", protocol.name())
}

/// Runs a program in node 1's namespace.
pub fn run(cluster: &Cluster, words: &[&str]) -> Result<Output> {
    process::run(cluster.proxy(1)?.namespace(), words)
}

/// Runs a program in node 1's namespace, and returns its output. The program must succeed.
pub fn output(cluster: &Cluster, words: &[&str]) -> Result<String> {
    process::output(cluster.proxy(1)?.namespace(), words)
}
