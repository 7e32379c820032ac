//! What the tests share.

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

/// What every agent of these tests is told.
pub const FLAGS: [&str; 2] = ["--proxy-mode", "ipvs"];
/// An emulated machine takes its time.
pub const LIMIT: Duration = Duration::from_mins(1);

/// The cluster of all tests while something is done to it that `restore` undoes.
pub struct Altered {
    cluster: MutexGuard<'static, Cluster>,
    restore: fn(&mut Cluster) -> Result<()>,
}

impl Altered {
    /// Nothing is altered yet.
    pub fn new(restore: fn(&mut Cluster) -> Result<()>) -> Self {
        Self { cluster: shared(), restore }
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
        assert!(restored.is_ok() || std::thread::panicking(), "the cluster is not as it was: {restored:?}");
    }
}

/// Starts a node's agent in place of the one that runs, and waits until it says that it serves.
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

/// Two nodes with two pods each; the first one serves by IPVS. The tests take turns.
pub fn shared() -> MutexGuard<'static, Cluster> {
    static SHARED: LazyLock<Mutex<Cluster>> = LazyLock::new(|| {
        remove_own_at_exit();
        Mutex::new(start().unwrap())
    });
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn start() -> Result<Cluster> {
    let mut cluster = Cluster::without_agents(Shape { nodes: 2, pods: 2, ..Shape::default() }, "off")?;
    // As bridge plugins of CNI set their ports: a packet may go back to where it came from.
    for port in ["veth-1a", "veth-1b"] {
        output(&cluster, &["ip", "link", "set", "dev", port, "type", "bridge_slave", "hairpin", "on"])?;
    }
    cluster.start_agent_with(1, &FLAGS)?;
    cluster.proxy(1)?.wait_for_start(1)?;
    Ok(cluster)
}

/// One of the kernel's virtual services, as /proc/net/ip_vs has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// Such as `TCP 0A600001:0050 rr`; flags follow.
    pub service: String,
    /// Place, weight, active and inactive connections of each server.
    pub servers: Vec<(String, u32, u32, u32)>,
}

/// What IPVS has in node 1, as the kernel prints it.
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

/// `address:port` as /proc/net/ip_vs writes it.
pub fn place(address: SocketAddr) -> String {
    match address.ip() {
        IpAddr::V4(ip) => format!("{:08X}:{:04X}", u32::from(ip), address.port()),
        IpAddr::V6(ip) => {
            let words: Vec<String> = ip.segments().iter().map(|word| format!("{word:04x}")).collect();
            format!("[{}]:{:04X}", words.join(":"), address.port())
        }
    }
}

/// The servers of a virtual service over TCP: place and weight.
pub fn servers(cluster: &Cluster, address: SocketAddr) -> Result<Vec<(String, u32)>> {
    let prefix = format!("TCP {} ", place(address));
    let all = listed(cluster)?;
    let found = all.iter().find(|one| one.service.starts_with(&prefix)).context("no such virtual service")?;
    Ok(found.servers.iter().map(|(place, weight, ..)| (place.clone(), *weight)).collect())
}

/// Writes a service and waits until the kernel has its servers at the cluster IPs, and no others that get connections.
pub fn apply(cluster: &Cluster, number: u8, service: &Service) -> Result<()> {
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

/// Asks until every one of `backends` has answered, or so often that each has had ten chances; nobody else answers.
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

/// The same, which must succeed; returns what it printed.
pub fn output(cluster: &Cluster, words: &[&str]) -> Result<String> {
    process::output(cluster.proxy(1)?.namespace(), words)
}
