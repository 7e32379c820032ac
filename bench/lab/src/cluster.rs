//! A bed with a server in every pod and an agent on every node.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};

use crate::agent::{Proxy, Source};
use crate::apiserver::ApiServer;
use crate::capture::Capture;
use crate::manifests::{Manifests, Service, nodes};
use crate::process::Process;
use crate::topology::{Bed, Family, Node, Shape, Wire};
use crate::traffic::{Connection, Server};
use crate::walk::Walk;

/// Port of the server in every pod.
pub const TARGET_PORT: u16 = 8080;

/// A cluster at work. Agents are killed and everything is removed when it is dropped.
#[derive(Debug)]
pub struct Cluster {
    // Dropped in this order: agents before the namespaces they are in.
    agents: BTreeMap<u8, Process>,
    proxies: Vec<Proxy>,
    servers: Vec<Server>,
    api_server: Option<ApiServer>,
    manifests: Manifests,
    bed: Bed,
    hooks: &'static [&'static str],
}

impl Cluster {
    /// Builds a bed and starts the servers, but no agents, which are to follow a directory; `xdp` is the agents'
    /// `--xdp`, and with `off` the wires carry what virtual devices pass by default.
    pub fn without_agents(shape: Shape, xdp: &str) -> Result<Self> {
        Self::build(bed(shape, xdp)?, None, xdp)
    }

    /// The same with a real API server, which the agents are to follow, and which has the Nodes.
    pub fn with_api_server(shape: Shape, xdp: &str) -> Result<Self> {
        let bed = bed(shape, xdp)?;
        let server = ApiServer::start(&bed)?;
        server.kube().put_all(nodes(&bed))?;
        Self::build(bed, Some(server), xdp)
    }

    fn build(bed: Bed, api_server: Option<ApiServer>, xdp: &str) -> Result<Self> {
        let manifests = Manifests::create(&bed)?;
        let source = api_server.as_ref().map(|server| Source::ApiServer(server.kubeconfig()));
        let source = source.unwrap_or(Source::Directory(&manifests));
        let proxies = bed.nodes().iter().map(|node| Proxy::new(&bed, node, source, xdp));
        let proxies = proxies.collect::<Result<_>>()?;
        let servers = bed.pods().map(|pod| Server::in_pod(pod, TARGET_PORT)).collect::<Result<_>>()?;
        let hooks: &[&str] = if xdp == "off" { &["tc_ingress", "tc_egress"] } else { &["xdp", "tc_egress"] };
        Ok(Self { agents: BTreeMap::new(), proxies, servers, api_server, manifests, bed, hooks })
    }

    /// A cluster that follows a directory, with an agent on every node, attached to its uplink.
    pub fn start(shape: Shape, xdp: &str) -> Result<Self> {
        Self::start_with(shape, xdp, &[])
    }

    /// The same, the agents with further flags.
    pub fn start_with(shape: Shape, xdp: &str, flags: &[&str]) -> Result<Self> {
        let mut cluster = Self::without_agents(shape, xdp)?;
        for number in 1..=shape.nodes {
            cluster.start_agent_with(number, flags)?;
        }
        for number in 1..=shape.nodes {
            cluster.wait_for_hooks(number)?;
        }
        Ok(cluster)
    }

    /// The bed.
    #[must_use]
    pub const fn bed(&self) -> &Bed {
        &self.bed
    }

    /// What the agents follow.
    #[must_use]
    pub const fn manifests(&self) -> &Manifests {
        &self.manifests
    }

    /// The API server that the agents follow.
    pub fn api_server(&self) -> Result<&ApiServer> {
        self.api_server.as_ref().context("this cluster follows a directory")
    }

    /// The same, to stop and start it.
    pub fn api_server_mut(&mut self) -> Result<&mut ApiServer> {
        self.api_server.as_mut().context("this cluster follows a directory")
    }

    /// The proxies of all nodes.
    #[must_use]
    pub fn proxies(&self) -> &[Proxy] {
        &self.proxies
    }

    /// The proxy of a node, counted from 1.
    pub fn proxy(&self, node: u8) -> Result<&Proxy> {
        let index = usize::from(node).checked_sub(1);
        index.and_then(|index| self.proxies.get(index)).with_context(|| format!("there is no node {node}"))
    }

    /// Starts a node's agent; does not wait for it.
    pub fn start_agent(&mut self, node: u8) -> Result<()> {
        self.start_agent_with(node, &[])
    }

    /// Starts a node's agent with further flags, in place of the one that may run; does not wait for it.
    pub fn start_agent_with(&mut self, node: u8, flags: &[&str]) -> Result<()> {
        self.agents.remove(&node);
        let agent = self.proxy(node)?.start_with(flags)?;
        self.agents.insert(node, agent);
        Ok(())
    }

    /// Whether a node has an agent that runs.
    #[must_use]
    pub fn has_agent(&self, node: u8) -> bool {
        self.agents.get(&node).is_some_and(Process::is_running)
    }

    /// Takes a node's agent out of the cluster's hands, to stop or kill it.
    pub fn take_agent(&mut self, node: u8) -> Result<Process> {
        self.agents.remove(&node).with_context(|| format!("node {node} has no agent"))
    }

    /// Waits until a node's programs are attached to its uplink.
    pub fn wait_for_hooks(&self, node: u8) -> Result<()> {
        self.proxy(node)?.wait_for_hooks("eth0", self.hooks)
    }

    /// Waits until a node knows how to reach all others.
    pub fn wait_for_ways(&self, node: u8) -> Result<()> {
        let (proxy, wanted) = (self.proxy(node)?, (self.bed.nodes().len() - 1) * Family::ALL.len());
        proxy.wait_until("all ways are resolved", || Ok(proxy.resolved_ways()? == wanted))
    }

    /// Starts one more server: a host process of a node.
    pub fn start_host_server(&mut self, node: u8, port: u16) -> Result<()> {
        self.servers.push(Server::on_node(self.bed.node(node)?, port)?);
        Ok(())
    }

    /// A service on port 80 whose backends are these pods; it is still to be applied.
    pub fn service(&self, name: &str, number: u8, pods: &[&str]) -> Result<Service> {
        let mut service = Service::new(name, number).port(80, TARGET_PORT);
        for name in pods {
            service = service.pod(self.bed.node_of(name)?, self.bed.pod(name)?);
        }
        Ok(service)
    }

    /// Walks, and fails with a list of everything that was off.
    pub fn expect(&self, walk: &Walk) -> Result<()> {
        let ports: Vec<&str> = self.bed.nodes().iter().map(Node::name).collect();
        let mut capture = Capture::start(self.bed.router(), &ports)?;
        let problems = walk.run(&self.bed, &mut capture)?.problems;
        ensure!(problems.is_empty(), "{}", problems.join("\n"));
        Ok(())
    }

    /// Sends so many bytes from the client to an address, and as many back; all must cross.
    pub fn exchange(&self, target: SocketAddr, bytes: usize) -> Result<()> {
        let crossed = self.bed.client().run(async move || {
            let mut connection = Connection::open(target).await?;
            Ok((connection.upload(bytes).await?.sighting.received, connection.download(bytes).await?))
        })?;
        ensure!(crossed == (bytes, bytes), "{crossed:?} of {bytes} bytes crossed to and from {target}");
        Ok(())
    }

    /// Writes a Service, or gives it to the API server, and waits until the given nodes have it.
    pub fn apply(&self, service: &Service, nodes: &[u8]) -> Result<()> {
        match &self.api_server {
            Some(server) => server.kube().put_all(service.objects())?,
            None => self.manifests.put_service(service)?,
        }
        let backends: Vec<SocketAddr> = service.backends();
        nodes.iter().try_for_each(|node| self.proxy(*node)?.wait_for_backends(service.name(), &backends))
    }
}

fn bed(shape: Shape, xdp: &str) -> Result<Bed> {
    let wire = if xdp == "off" { Wire::Offloaded } else { Wire::Plain };
    Bed::new(Shape { wire, ..shape })
}
