//! A bed with a server in every pod and an agent on every node.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use anyhow::{Context, Result};

use crate::agent::{Agent, Proxy};
use crate::manifests::{Manifests, Service};
use crate::topology::{Bed, Family, Shape, Wire};
use crate::traffic::Server;

/// Port of the server in every pod.
pub const TARGET_PORT: u16 = 8080;

/// A cluster at work. Agents are killed and everything is removed when it is dropped.
#[derive(Debug)]
pub struct Cluster {
    // Dropped in this order: agents before the namespaces they are in.
    agents: BTreeMap<u8, Agent>,
    proxies: Vec<Proxy>,
    servers: Vec<Server>,
    manifests: Manifests,
    bed: Bed,
    hooks: &'static [&'static str],
}

impl Cluster {
    /// Builds a bed and starts the servers, but no agents; `xdp` is the agents' `--xdp`, and with `off` the
    /// wires carry what virtual devices pass by default.
    pub fn without_agents(shape: Shape, xdp: &str) -> Result<Self> {
        let off = xdp == "off";
        let wire = if off { Wire::Offloaded } else { Wire::Plain };
        let bed = Bed::new(Shape { wire, ..shape })?;
        let manifests = Manifests::create(&bed)?;
        let proxies = bed.nodes().iter().map(|node| Proxy::new(&bed, node, &manifests, xdp));
        let proxies = proxies.collect::<Result<_>>()?;
        let servers = bed.pods().map(|pod| Server::in_pod(pod, TARGET_PORT)).collect::<Result<_>>()?;
        let hooks: &[&str] = if off { &["tc_ingress", "tc_egress"] } else { &["xdp", "tc_egress"] };
        Ok(Self { agents: BTreeMap::new(), proxies, servers, manifests, bed, hooks })
    }

    /// The same with an agent on every node, attached to its uplink.
    pub fn start(shape: Shape, xdp: &str) -> Result<Self> {
        let mut cluster = Self::without_agents(shape, xdp)?;
        for number in 1..=shape.nodes {
            cluster.start_agent(number)?;
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
        let agent = self.proxy(node)?.start()?;
        self.agents.insert(node, agent);
        Ok(())
    }

    /// Takes a node's agent out of the cluster's hands, to stop or kill it.
    pub fn take_agent(&mut self, node: u8) -> Result<Agent> {
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

    /// Writes a Service and waits until the given nodes have it.
    pub fn apply(&self, service: &Service, nodes: &[u8]) -> Result<()> {
        self.manifests.put_service(service)?;
        let backends: Vec<SocketAddr> = service.backends();
        nodes.iter().try_for_each(|node| self.proxy(*node)?.wait_for_backends(service.name(), &backends))
    }
}
