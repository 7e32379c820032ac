//! An agent replaces a serving kube-proxy and gives the node back, with both of kube-proxy's modes.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use millrace_lab::cluster::Cluster;
use millrace_lab::kube_proxy::{KubeProxy, Mode};
use millrace_lab::manifests::Service;
use millrace_lab::net::Namespace;
use millrace_lab::patience::patience;
use millrace_lab::topology::{Family, Shape, vip};
use millrace_lab::traffic::{LongConnections, Protocol, ask};

/// The longest time of kube-proxy to write its first rules on a busy machine.
const KUBE_PROXY_LIMIT: Duration = Duration::from_mins(1);
/// The longest time of the agent to find that no connection is left. It asks every thirty seconds.
const DRAIN_LIMIT: Duration = Duration::from_secs(90);
const NODE_PORT: u16 = 30080;
/// The asking pod is not a backend: to reach itself, it would need a bridge in hairpin mode.
const PODS: [&str; 2] = ["pod-1b", "pod-2a"];
/// Connections of each client to each target, half of them silent.
const CONNECTIONS: usize = 16;

#[test]
fn connections_that_kube_proxy_serves_by_iptables_stay() -> Result<()> {
    take_over(Mode::Iptables)
}

#[test]
fn connections_that_kube_proxy_serves_by_nftables_stay() -> Result<()> {
    take_over(Mode::Nftables)
}

fn take_over(mode: Mode) -> Result<()> {
    let xdp = std::env::var("MILLRACE_XDP").unwrap_or_else(|_| "native".to_owned());
    let mut cluster = Cluster::with_api_server(Shape { nodes: 2, pods: 2, ..Shape::default() }, &xdp)?;
    let service = cluster.service("web", 40, &PODS)?.node_ports(NODE_PORT).load_balancer(vip(140));
    cluster.apply(&service, &[])?;
    let kube_proxy = KubeProxy::start(cluster.bed(), cluster.bed().node(1)?, cluster.api_server()?, mode)?;
    for (client, target) in paths(&cluster, &service)? {
        wait_until_served(&kube_proxy, client, target)?;
    }
    let connections = open_all(&cluster, &service)?;
    let count = connections.len();

    // The agent knows these addresses once it knows this node's devices.
    let flags: &[&str] = match mode {
        Mode::Iptables => &[],
        Mode::Nftables => &["--nodeport-addresses", "172.30.0.0/24,2001:db8:a::/64"],
    };
    cluster.start_agent_with(1, flags)?;
    cluster.wait_for_hooks(1)?;
    cluster.proxy(1)?.wait_for_backends(service.name(), &service.backends())?;
    ensure!(kube_proxy.is_running(), "kube-proxy has ended");
    // kube-proxy may end at any time after that.
    ask_all(&cluster, &service)?;
    cluster.take_agent(1)?.kill()?;
    cluster.start_agent_with(1, flags)?;
    cluster.proxy(1)?.wait_for_start(2)?;
    drop(kube_proxy);
    for connections in connections {
        assert_eq!(connections.stop().context(mode.name())?, CONNECTIONS);
    }
    assert_eq!(count, 10);
    let proxy = cluster.proxy(1)?;
    proxy.wait_until_within(DRAIN_LIMIT, "nothing of kube-proxy's is left", || {
        Ok(proxy.log().contains("eBPF serves all connections"))
    })
}

#[test]
fn connections_of_the_agent_stay_when_kube_proxy_gets_the_node_back_with_iptables() -> Result<()> {
    give_back(Mode::Iptables)
}

#[test]
fn connections_of_the_agent_stay_when_kube_proxy_gets_the_node_back_with_nftables() -> Result<()> {
    give_back(Mode::Nftables)
}

fn give_back(mode: Mode) -> Result<()> {
    let xdp = std::env::var("MILLRACE_XDP").unwrap_or_else(|_| "native".to_owned());
    let mut cluster = Cluster::with_api_server(Shape { nodes: 2, pods: 2, ..Shape::default() }, &xdp)?;
    let service = cluster.service("web", 40, &PODS)?.node_ports(NODE_PORT).load_balancer(vip(140));
    cluster.apply(&service, &[])?;
    cluster.start_agent(1)?;
    cluster.wait_for_hooks(1)?;
    cluster.proxy(1)?.wait_for_backends(service.name(), &service.backends())?;
    let connections = open_all(&cluster, &service)?;
    ensure!(connections.len() == 10, "{} paths", connections.len());

    // Without kube-proxy's rules the agent goes on serving, and is not ready.
    cluster.take_agent(1)?.kill()?;
    cluster.start_agent_with(1, &["--proxy-mode", "none"])?;
    cluster.proxy(1)?.wait_until("the agent misses kube-proxy", || {
        Ok(cluster.proxy(1)?.log().contains("kube-proxy has no rules on this node"))
    })?;
    ask_all(&cluster, &service).context("before kube-proxy starts")?;
    let kube_proxy = KubeProxy::start(cluster.bed(), cluster.bed().node(1)?, cluster.api_server()?, mode)?;
    let proxy = cluster.proxy(1)?;
    proxy.wait_until_within(KUBE_PROXY_LIMIT, "kube-proxy serves new connections", || {
        ensure!(kube_proxy.is_running(), "kube-proxy has ended");
        Ok(proxy.log().contains("kube-proxy serves new connections"))
    })?;
    ask_all(&cluster, &service).context("while eBPF keeps its connections")?;

    for connections in connections {
        assert_eq!(connections.stop().context(mode.name())?, CONNECTIONS);
    }
    proxy.wait_until_within(DRAIN_LIMIT, "eBPF is removed", || {
        Ok(proxy.log().contains("eBPF is gone, kube-proxy serves alone"))
    })?;
    ask_all(&cluster, &service).context("after eBPF is gone")
}

#[test]
fn connections_of_both_stay_when_the_agent_takes_a_node_again_before_it_has_given_it_back() -> Result<()> {
    let mode = Mode::Nftables;
    let mut cluster = Cluster::with_api_server(Shape { nodes: 2, pods: 2, ..Shape::default() }, "native")?;
    let service = cluster.service("web", 40, &PODS)?.node_ports(NODE_PORT).load_balancer(vip(140));
    cluster.apply(&service, &[])?;
    cluster.start_agent(1)?;
    cluster.wait_for_hooks(1)?;
    cluster.proxy(1)?.wait_for_backends(service.name(), &service.backends())?;
    let of_agent = open_all(&cluster, &service)?;
    let kube_proxy = KubeProxy::start(cluster.bed(), cluster.bed().node(1)?, cluster.api_server()?, mode)?;
    cluster.take_agent(1)?.kill()?;
    cluster.start_agent_with(1, &["--proxy-mode", "none"])?;
    let proxy = cluster.proxy(1)?;
    proxy.wait_until_within(KUBE_PROXY_LIMIT, "kube-proxy serves new connections", || {
        Ok(proxy.log().contains("kube-proxy serves new connections"))
    })?;
    let of_kube_proxy = open_all(&cluster, &service)?;

    cluster.take_agent(1)?.kill()?;
    cluster.start_agent(1)?;
    let proxy = cluster.proxy(1)?;
    proxy.wait_until_within(KUBE_PROXY_LIMIT, "the agent serves new connections again", || {
        ensure!(kube_proxy.is_running(), "kube-proxy has ended");
        Ok(proxy.log().contains("eBPF serves new connections and datagrams"))
    })?;
    drop(kube_proxy);
    ask_all(&cluster, &service)?;
    for connections in of_agent.into_iter().chain(of_kube_proxy) {
        assert_eq!(connections.stop()?, CONNECTIONS);
    }
    Ok(())
}

/// Opens long connections on each path.
fn open_all(cluster: &Cluster, service: &Service) -> Result<Vec<LongConnections>> {
    let open = |(client, target): (&Namespace, SocketAddr)| {
        LongConnections::open(client, target, CONNECTIONS / 2, CONNECTIONS / 2)
            .with_context(|| format!("connections to {target}"))
    };
    paths(cluster, service)?.into_iter().map(open).collect()
}

/// Opens a new connection on each path.
fn ask_all(cluster: &Cluster, service: &Service) -> Result<()> {
    paths(cluster, service)?.into_iter().try_for_each(|(client, target)| {
        ask(client, Protocol::Tcp, target).map(drop).with_context(|| format!("a new connection to {target}"))
    })
}

/// Returns the paths in both families: from outside by NodePort and load balancer address, from a
/// pod and from the node itself by ClusterIP and NodePort.
fn paths<'a>(cluster: &'a Cluster, service: &Service) -> Result<Vec<(&'a Namespace, SocketAddr)>> {
    let (bed, node) = (cluster.bed(), cluster.bed().node(1)?);
    let of_family = |family: Family| {
        let at = |address: millrace_lab::topology::Dual, port| SocketAddr::new(address.of(family), port);
        let pod = bed.pod("pod-1a")?.namespace();
        Ok([
            (bed.client(), at(node.addresses(), NODE_PORT)),
            (bed.client(), at(vip(140), 80)),
            (pod, at(service.cluster_ips(), 80)),
            (pod, at(node.addresses(), NODE_PORT)),
            (node.namespace().as_ref(), at(service.cluster_ips(), 80)),
        ])
    };
    let all: Vec<[_; 5]> = Family::ALL.into_iter().map(of_family).collect::<Result<_>>()?;
    Ok(all.concat())
}

fn wait_until_served(kube_proxy: &KubeProxy, client: &Namespace, target: SocketAddr) -> Result<()> {
    let end = Instant::now() + patience(KUBE_PROXY_LIMIT);
    loop {
        let Err(error) = ask(client, Protocol::Tcp, target) else { return Ok(()) };
        if Instant::now() > end || !kube_proxy.is_running() {
            let log = std::fs::read_to_string(kube_proxy.log()).unwrap_or_default();
            return Err(error.context(format!("kube-proxy does not serve {target}; its log:\n{log}")));
        }
    }
}
