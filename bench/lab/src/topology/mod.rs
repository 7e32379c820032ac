//! The bed: what stands where.
//!
//! ```text
//!  client 198.51.100.10, 2001:db8:c::10
//!    |
//!  router  bridge `lan` 172.30.0.1, 2001:db8:a::1      203.0.113.0/24 and 2001:db8:e::/64 -> node1
//!    |port `node1`      |port `node2`      |port `node3`
//!  node1 172.30.0.11  node2 172.30.0.12  node3 172.30.0.13       `eth0`, bridge `cni0`
//!    |      |           |      |           |      |
//!  pod-1a pod-1b      pod-2a pod-2b      pod-3a pod-3b           10.244.N.10 and .11
//! ```
//!
//! Nodes reach each other directly; everything to and from the client crosses the router, so what a node sends
//! and receives is seen on the router's port of that node.

mod addresses;
mod build;

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use ipnet::IpNet;

use crate::net::{Cgroup, Namespace, Netlink};

pub use addresses::{Dual, Family, cluster_ip, vip};

/// What a bed is to look like.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Number of nodes, at most 9.
    pub nodes: u8,
    /// Number of pods on each node, at most 9.
    pub pods: u8,
    /// What devices leave to each other.
    pub wire: Wire,
}

/// What crosses the virtual wires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// Frames as a real wire carries them: finished checksums, none larger than the MTU. What XDP expects; the
    /// router takes what the nodes' XDP programs send.
    Plain,
    /// Unfinished checksums and merged frames of up to 64 KiB, as virtual devices pass them by default.
    Offloaded,
}

impl Default for Shape {
    fn default() -> Self {
        Self { nodes: 3, pods: 2, wire: Wire::Plain }
    }
}

/// A cluster of namespaces. Everything goes when it is dropped.
#[derive(Debug)]
pub struct Bed {
    number: u32,
    wire: Wire,
    client: Namespace,
    router: Namespace,
    nodes: Vec<Node>,
}

/// A node of the cluster.
#[derive(Debug)]
pub struct Node {
    name: String,
    number: u8,
    namespace: Arc<Namespace>,
    pods: Vec<Pod>,
    cgroup: Arc<Cgroup>,
}

/// A machine on the nodes' network that is no node.
#[derive(Debug)]
pub struct Host {
    address: Ipv4Addr,
    namespace: Arc<Namespace>,
}

/// A part of the way between client and backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leg {
    /// What the client sends to load balancer addresses, from the router to node 1, and what that sends back.
    Director,
    /// What a node sends to another one and its pods, but not what comes back.
    Nodes {
        /// The number of the one that sends.
        from: u8,
        /// The number of the other one.
        to: u8,
    },
    /// What a node sends to the client.
    ToClient(u8),
}

/// A pod: a namespace with one device.
#[derive(Debug)]
pub struct Pod {
    name: String,
    addresses: Dual,
    namespace: Namespace,
}

impl Bed {
    /// Builds a bed.
    pub fn new(shape: Shape) -> Result<Self> {
        build::build(shape)
    }

    /// The namespace clients are in.
    #[must_use]
    pub const fn client(&self) -> &Namespace {
        &self.client
    }

    /// The namespace of the router; its device `nodeN` is the wire to that node.
    #[must_use]
    pub const fn router(&self) -> &Namespace {
        &self.router
    }

    /// All nodes.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Node `number`, counted from 1.
    pub fn node(&self, number: u8) -> Result<&Node> {
        self.nodes
            .iter()
            .find(|node| node.number == number)
            .with_context(|| format!("the bed has no node {number}"))
    }

    /// All pods of all nodes.
    pub fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.nodes.iter().flat_map(|node| &node.pods)
    }

    /// The pod of this name.
    pub fn pod(&self, name: &str) -> Result<&Pod> {
        self.pods().find(|pod| pod.name == name).with_context(|| format!("the bed has no pod {name}"))
    }

    /// The node that the pod of this name is on.
    pub fn node_of(&self, pod: &str) -> Result<&Node> {
        let has_it = |node: &&Node| node.pods.iter().any(|own| own.name == pod);
        self.nodes.iter().find(has_it).with_context(|| format!("the bed has no pod {pod}"))
    }

    /// Address of the client.
    #[must_use]
    pub const fn client_addresses(&self) -> Dual {
        addresses::CLIENT
    }

    /// Addresses of the router towards the client.
    #[must_use]
    pub const fn gateway_addresses(&self) -> Dual {
        addresses::CLIENT_GATEWAY
    }

    /// Makes the router send an address (of a load balancer, or an external one) to a node: its director.
    pub fn route_to(&self, address: IpAddr, director: u8) -> Result<()> {
        let gateway = self.node(director)?.addresses().of(Family::of(address));
        let host = IpNet::from(address);
        self.router.run(async move || Netlink::open()?.set_route(host, gateway).await)
    }

    /// Adds a machine that is no node to the nodes' network, at 172.30.0.`number`.
    pub fn add_host(&self, name: &str, number: u8) -> Result<Host> {
        build::add_host(self, name, number)
    }

    /// Gives whoever sends into a leg routes for packets of at most `bytes` bytes.
    pub fn narrow_routes(&self, leg: Leg, bytes: u32) -> Result<()> {
        build::narrow_routes(self, leg, bytes)
    }

    /// Puts a router of its own into a leg, which takes packets of at most `bytes` bytes further.
    pub fn add_narrows(&self, leg: Leg, bytes: u32) -> Result<Host> {
        build::add_narrows(self, leg, bytes)
    }

    /// Pulls the plug of a machine on the nodes' network, at the router's end: connections hang.
    pub fn unplug(&self, name: &str) -> Result<()> {
        let port = name.to_owned();
        self.router.run(async move || Netlink::open()?.set_down(&port).await)
    }

    /// Puts the plug back.
    pub fn plug_in(&self, name: &str) -> Result<()> {
        let port = name.to_owned();
        self.router.run(async move || Netlink::open()?.set_up(&port).await)
    }

    /// Deletes a node's uplink `eth0`, as pulling a network card out would.
    pub fn delete_uplink(&self, node: u8) -> Result<()> {
        self.node(node)?.namespace.run(async || Netlink::open()?.delete_link("eth0").await)
    }

    /// Gives all nodes a second uplink `eth1`, on a network of its own; the router is on both.
    pub fn add_second_uplinks(&self) -> Result<()> {
        build::add_second_uplinks(self)
    }

    /// Gives a node a new uplink in place of a deleted one, with the same name, addresses and routes.
    pub fn restore_uplink(&self, node: u8) -> Result<()> {
        build::connect_uplink(self, node)?;
        build::route_between_nodes(self, self.node(node)?)
    }

    /// Directory below which the agents of this bed pin their maps and links.
    #[must_use]
    pub fn bpffs_directory(&self) -> PathBuf {
        crate::net::bpffs_directory(self.number)
    }

    /// Directory of this bed's manifests and logs.
    #[must_use]
    pub fn directory(&self) -> PathBuf {
        crate::net::temporary_directory(self.number)
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        for directory in [self.bpffs_directory(), self.directory()] {
            let _ = std::fs::remove_dir_all(directory);
        }
    }
}

impl Node {
    /// Name of the Node object, and of the router's device that leads to it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The node's own network namespace.
    #[must_use]
    pub const fn namespace(&self) -> &Arc<Namespace> {
        &self.namespace
    }

    /// The control group that its own processes and, below it, those of its pods are in.
    #[must_use]
    pub fn cgroup(&self) -> &Path {
        self.cgroup.path()
    }

    /// Addresses of its uplink `eth0`.
    #[must_use]
    pub const fn addresses(&self) -> Dual {
        addresses::node(self.number)
    }

    /// Addresses of its second uplink `eth1`, where there is one.
    #[must_use]
    pub const fn second_addresses(&self) -> Dual {
        addresses::second_uplink(self.number)
    }

    /// Pod `index`, counted from 0.
    pub fn pod(&self, index: usize) -> Result<&Pod> {
        self.pods.get(index).with_context(|| format!("{} has no pod {index}", self.name))
    }

    /// Its pods.
    #[must_use]
    pub fn pods(&self) -> &[Pod] {
        &self.pods
    }
}

impl Host {
    /// Its address.
    #[must_use]
    pub const fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Its network namespace.
    #[must_use]
    pub const fn namespace(&self) -> &Arc<Namespace> {
        &self.namespace
    }

    /// Packets that it did not send on since they were too large for what is behind.
    pub fn refused_packets(&self, family: Family) -> Result<u64> {
        self.namespace.run(async move || read_refused(family))
    }
}

/// Reads the counter of the current thread's namespace.
fn read_refused(family: Family) -> Result<u64> {
    let number = match family {
        Family::V4 => {
            let text = fs::read_to_string("/proc/thread-self/net/snmp")?;
            let mut lines = text.lines().filter_map(|line| line.strip_prefix("Ip: "));
            let (names, numbers) = (lines.next(), lines.next());
            let mut columns = names.into_iter().flat_map(str::split_whitespace);
            let column = columns.position(|name| name == "FragFails");
            column.and_then(|column| numbers?.split_whitespace().nth(column).map(str::to_owned))
        }
        Family::V6 => {
            let text = fs::read_to_string("/proc/thread-self/net/snmp6")?;
            let number = text.lines().find_map(|line| line.strip_prefix("Ip6FragFails"));
            number.map(|number| number.trim().to_owned())
        }
    };
    number.context("the kernel does not count FragFails")?.parse().context("FragFails is no number")
}

impl Pod {
    /// Name such as `pod-1a`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its addresses.
    #[must_use]
    pub const fn addresses(&self) -> Dual {
        self.addresses
    }

    /// Its network namespace.
    #[must_use]
    pub const fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Name of the device that leads to it, a port of its node's bridge `cni0`.
    #[must_use]
    pub fn device(&self) -> String {
        format!("veth-{}", self.name.trim_start_matches("pod-"))
    }
}
