//! A bed with a server in every pod and an agent on every node.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::agent::{Proxy, Source};
use crate::apiserver::ApiServer;
use crate::capture::Capture;
use crate::manifests::{Manifests, Service, nodes};
use crate::process::Process;
use crate::topology::{Bed, Family, Node, Pod, Shape, Wire};
use crate::traffic::{Connection, Server};
use crate::walk::Walk;

/// Port of the server in every pod.
pub const TARGET_PORT: u16 = 8080;

/// A running cluster. On drop, agents are killed and everything is removed.
#[derive(Debug)]
pub struct Cluster {
    // The order of dropping: agents before the namespaces that they are in.
    agents: BTreeMap<u8, Process>,
    proxies: Vec<Proxy>,
    pod_servers: BTreeMap<String, Server>,
    host_servers: Vec<Server>,
    api_server: Option<ApiServer>,
    manifests: Manifests,
    bed: Bed,
    hooks: &'static [&'static str],
}

impl Cluster {
    /// Builds a bed that is to follow a directory, and starts the servers, but no agents.
    ///
    /// `xdp` is the agents' `--xdp`. With `off`, virtual wires carry unfinished checksums and merged
    /// frames, as virtual devices do by default.
    pub fn without_agents(shape: Shape, xdp: &str) -> Result<Self> {
        Self::build(bed(shape, xdp)?, None, xdp)
    }

    /// Builds the same with a real API server, which has the Nodes and which the agents are to
    /// follow.
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
        let hooks: &[&str] = match xdp {
            "off" => &["tc_ingress", "tc_egress"],
            // The driver decides about XDP.
            "auto" => &["tc_egress"],
            _ => &["xdp", "tc_egress"],
        };
        let server = |pod: &Pod| Ok((pod.name().to_owned(), Server::in_pod(pod, TARGET_PORT)?));
        let pod_servers = bed.pods().map(server).collect::<Result<_>>()?;
        let (agents, host_servers) = (BTreeMap::new(), Vec::new());
        Ok(Self { agents, proxies, pod_servers, host_servers, api_server, manifests, bed, hooks })
    }

    /// Starts a cluster that follows a directory, with an agent on every node that is attached to
    /// its uplink.
    pub fn start(shape: Shape, xdp: &str) -> Result<Self> {
        Self::start_with(shape, xdp, &[])
    }

    /// Starts the same, with further flags for the agents.
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

    /// Returns the bed.
    #[must_use]
    pub const fn bed(&self) -> &Bed {
        &self.bed
    }

    /// Returns the manifests that the agents follow.
    #[must_use]
    pub const fn manifests(&self) -> &Manifests {
        &self.manifests
    }

    /// Returns the API server that the agents follow.
    pub fn api_server(&self) -> Result<&ApiServer> {
        self.api_server.as_ref().context("this cluster follows a directory")
    }

    /// Returns the API server, to stop and start it.
    pub fn api_server_mut(&mut self) -> Result<&mut ApiServer> {
        self.api_server.as_mut().context("this cluster follows a directory")
    }

    /// Returns the proxies of all nodes.
    #[must_use]
    pub fn proxies(&self) -> &[Proxy] {
        &self.proxies
    }

    /// Returns the proxy of a node, counted from 1.
    pub fn proxy(&self, node: u8) -> Result<&Proxy> {
        let index = usize::from(node).checked_sub(1);
        index.and_then(|index| self.proxies.get(index)).with_context(|| format!("there is no node {node}"))
    }

    /// Sets the binary of a node's agents to come, and of the command line that reads their maps.
    pub fn set_binary(&mut self, node: u8, binary: &Path) -> Result<()> {
        let index = usize::from(node).checked_sub(1);
        let proxy = index.and_then(|index| self.proxies.get_mut(index));
        proxy.with_context(|| format!("there is no node {node}"))?.set_binary(binary.to_owned());
        Ok(())
    }

    /// Starts a node's agent and does not wait for it.
    pub fn start_agent(&mut self, node: u8) -> Result<()> {
        self.start_agent_with(node, &[])
    }

    /// Starts a node's agent with further flags and does not wait for it. It replaces a running
    /// one.
    pub fn start_agent_with(&mut self, node: u8, flags: &[&str]) -> Result<()> {
        self.start_agent_prepared(node, flags, |_| {})
    }

    /// Starts a node's agent with further flags, after `prepare` has changed its command.
    pub fn start_agent_prepared(
        &mut self,
        node: u8,
        flags: &[&str],
        prepare: impl FnOnce(&mut Command) + Send + 'static,
    ) -> Result<()> {
        self.agents.remove(&node);
        let agent = self.proxy(node)?.start_prepared(flags, prepare)?;
        self.agents.insert(node, agent);
        Ok(())
    }

    /// Returns whether a node has an agent that runs.
    #[must_use]
    pub fn has_agent(&self, node: u8) -> bool {
        self.agents.get(&node).is_some_and(Process::is_running)
    }

    /// Returns a node's agent.
    pub fn agent(&self, node: u8) -> Result<&Process> {
        self.agents.get(&node).with_context(|| format!("node {node} has no agent"))
    }

    /// Gives a node's agent to the caller, to stop or kill it.
    pub fn take_agent(&mut self, node: u8) -> Result<Process> {
        self.agents.remove(&node).with_context(|| format!("node {node} has no agent"))
    }

    /// Waits until a node's programs are attached to its uplink.
    pub fn wait_for_hooks(&self, node: u8) -> Result<()> {
        self.proxy(node)?.wait_for_hooks("eth0", self.hooks)
    }

    /// Waits until a node has resolved ways to all others.
    pub fn wait_for_ways(&self, node: u8) -> Result<()> {
        let (proxy, wanted) = (self.proxy(node)?, (self.bed.nodes().len() - 1) * Family::ALL.len());
        proxy.wait_until("all ways are resolved", || Ok(proxy.resolved_ways()? == wanted))
    }

    /// Starts a further server: a host process of a node.
    pub fn start_host_server(&mut self, node: u8, port: u16) -> Result<()> {
        self.host_servers.push(Server::on_node(self.bed.node(node)?, port)?);
        Ok(())
    }

    /// Ends the server of a pod. Its sockets are closed.
    pub fn stop_server(&mut self, pod: &str) -> Result<()> {
        self.pod_servers.remove(pod).map(drop).with_context(|| format!("{pod} has no server"))
    }

    /// Starts the server of a pod again.
    pub fn start_server(&mut self, pod: &str) -> Result<()> {
        let server = Server::in_pod(self.bed.pod(pod)?, TARGET_PORT)?;
        self.pod_servers.insert(pod.to_owned(), server);
        Ok(())
    }

    /// Returns a Service on port 80 with these pods as backends. The caller must apply it.
    pub fn service(&self, name: &str, number: u8, pods: &[&str]) -> Result<Service> {
        let mut service = Service::new(name, number).port(80, TARGET_PORT);
        for name in pods {
            service = service.pod(self.bed.node_of(name)?, self.bed.pod(name)?);
        }
        Ok(service)
    }

    /// Walks, and fails with a list of all problems.
    pub fn expect(&self, walk: &Walk) -> Result<()> {
        let ports: Vec<&str> = self.bed.nodes().iter().map(Node::name).collect();
        let mut capture = Capture::start(self.bed.router(), &ports)?;
        let problems = walk.run(&self.bed, &mut capture)?.problems;
        ensure!(problems.is_empty(), "{}", problems.join("\n"));
        Ok(())
    }

    /// Sends `bytes` bytes from the client to an address, and as many back. All must arrive.
    pub fn exchange(&self, target: SocketAddr, bytes: usize) -> Result<()> {
        let crossed = self.bed.client().run(async move || {
            let mut connection = Connection::open(target).await?;
            Ok((connection.upload(bytes).await?.sighting.received, connection.download(bytes).await?))
        })?;
        ensure!(crossed == (bytes, bytes), "{crossed:?} of {bytes} bytes crossed to and from {target}");
        Ok(())
    }

    /// Writes a Service as a manifest or to the API server, and waits until these nodes have it.
    pub fn apply(&self, service: &Service, nodes: &[u8]) -> Result<()> {
        match &self.api_server {
            Some(server) => server.kube().put_all(service.objects())?,
            None => self.manifests.put_service(service)?,
        }
        let backends: Vec<SocketAddr> = service.backends();
        nodes.iter().try_for_each(|node| self.proxy(*node)?.wait_for_backends(service.name(), &backends))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.agents.clear();
        // After a failure nobody knows what the pins are like.
        if !std::thread::panicking() {
            self.proxies.iter().for_each(Proxy::give_pins);
        }
    }
}

fn bed(shape: Shape, xdp: &str) -> Result<Bed> {
    let wire = match (shape.wire, xdp) {
        (Wire::Cards, _) => Wire::Cards,
        (_, "off") => Wire::Offloaded,
        _ => Wire::Plain,
    };
    Bed::new(Shape { wire, ..shape })
}
