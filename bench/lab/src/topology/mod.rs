//! The bed: its machines and its networks.
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
//! Nodes reach each other directly. All traffic of the client crosses the router. A capture on the
//! router's port of a node therefore sees the frames that the node sends and receives.

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

/// The shape of a bed.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Number of nodes, at most 9.
    pub nodes: u8,
    /// Number of pods on each node, at most 9.
    pub pods: u8,
    /// The offloads of the wires.
    pub wire: Wire,
}

/// The frames on the virtual wires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// Frames as on a real wire: finished checksums, and no frame above the MTU. XDP expects this,
    /// and the router accepts the frames of the nodes' XDP programs.
    Plain,
    /// Unfinished checksums, and merged frames of up to 64 KiB, as virtual devices do by default.
    Offloaded,
    /// Network cards of the machine at both ends, with their drivers' offloads.
    Cards,
}

impl Default for Shape {
    fn default() -> Self {
        Self { nodes: 3, pods: 2, wire: Wire::Plain }
    }
}

/// A cluster of namespaces. On drop, everything is removed.
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
    /// From the router to node 1 with the client's packets to load balancer addresses, and back.
    Director,
    /// From a node to another one and its pods, but not back.
    Nodes {
        /// The number of the sending node.
        from: u8,
        /// The number of the receiving node.
        to: u8,
    },
    /// From a node to the client.
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

    /// Returns the namespace clients are in.
    #[must_use]
    pub const fn client(&self) -> &Namespace {
        &self.client
    }

    /// Returns the namespace of the router; its device `nodeN` is the wire to that node.
    #[must_use]
    pub const fn router(&self) -> &Namespace {
        &self.router
    }

    /// Returns all nodes.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Returns node `number`, counted from 1.
    pub fn node(&self, number: u8) -> Result<&Node> {
        self.nodes
            .iter()
            .find(|node| node.number == number)
            .with_context(|| format!("the bed has no node {number}"))
    }

    /// Returns all pods of all nodes.
    pub fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.nodes.iter().flat_map(|node| &node.pods)
    }

    /// Returns the pod of this name.
    pub fn pod(&self, name: &str) -> Result<&Pod> {
        self.pods().find(|pod| pod.name == name).with_context(|| format!("the bed has no pod {name}"))
    }

    /// Returns the node that the pod of this name is on.
    pub fn node_of(&self, pod: &str) -> Result<&Node> {
        let has_it = |node: &&Node| node.pods.iter().any(|own| own.name == pod);
        self.nodes.iter().find(has_it).with_context(|| format!("the bed has no pod {pod}"))
    }

    /// Returns the address of the client.
    #[must_use]
    pub const fn client_addresses(&self) -> Dual {
        addresses::CLIENT
    }

    /// Returns the addresses of the router towards the client.
    #[must_use]
    pub const fn gateway_addresses(&self) -> Dual {
        addresses::CLIENT_GATEWAY
    }

    /// Returns the addresses of the router towards the nodes.
    #[must_use]
    pub const fn lan_gateway_addresses(&self) -> Dual {
        addresses::LAN_GATEWAY
    }

    /// Makes the router send an address (a load balancer's, or an external IP) to a node: its
    /// director.
    pub fn route_to(&self, address: IpAddr, director: u8) -> Result<()> {
        let gateway = self.node(director)?.addresses().of(Family::of(address));
        let host = IpNet::from(address);
        self.router.run(async move || Netlink::open()?.set_route(host, gateway).await)
    }

    /// Makes the router ask the nodes' network for an address, instead of sending to a director.
    pub fn put_on_link(&self, address: IpAddr) -> Result<()> {
        let (host, own) = (IpNet::from(address), addresses::LAN_GATEWAY.of(Family::of(address)));
        self.router.run(async move || Netlink::open()?.set_device_route(host, "lan", own).await)
    }

    /// Adds a machine that is no node to the nodes' network, at 172.30.0.`number`.
    pub fn add_host(&self, name: &str, number: u8) -> Result<Host> {
        build::add_host(self, name, number)
    }

    /// Gives the senders into a leg routes for packets of at most `bytes` bytes.
    pub fn narrow_routes(&self, leg: Leg, bytes: u32) -> Result<()> {
        build::narrow_routes(self, leg, bytes)
    }

    /// Puts a router into a leg. It forwards packets of at most `bytes` bytes.
    pub fn add_narrows(&self, leg: Leg, bytes: u32) -> Result<Host> {
        build::add_narrows(self, leg, bytes)
    }

    /// Pulls the plug of a machine on the nodes' network, at the router's end. Its connections
    /// hang.
    pub fn unplug(&self, name: &str) -> Result<()> {
        let port = name.to_owned();
        self.router.run(async move || Netlink::open()?.set_down(&port).await)
    }

    /// Puts the plug back.
    pub fn plug_in(&self, name: &str) -> Result<()> {
        let port = name.to_owned();
        self.router.run(async move || Netlink::open()?.set_up(&port).await)
    }

    /// Deletes a node's uplink `eth0`, as if a network card were pulled out.
    pub fn delete_uplink(&self, node: u8) -> Result<()> {
        self.node(node)?.namespace.run(async || Netlink::open()?.delete_link("eth0").await)
    }

    /// Gives all nodes a second uplink `eth1`, on a network of its own. The router is on both
    /// networks.
    pub fn add_second_uplinks(&self) -> Result<()> {
        build::add_second_uplinks(self)
    }

    /// Replaces a node's deleted uplink by a new one, with the same name, addresses and routes.
    pub fn restore_uplink(&self, node: u8) -> Result<()> {
        build::connect_uplink(self, node)?;
        build::route_between_nodes(self, self.node(node)?)
    }

    /// Returns the directory below which the agents of this bed pin their maps and links.
    #[must_use]
    pub fn bpffs_directory(&self) -> PathBuf {
        crate::net::bpffs_directory(self.number)
    }

    /// Returns the directory of this bed's manifests and logs.
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
    /// Returns the name of the Node object, and of the router's device that leads to it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns its number, counted from 1.
    #[must_use]
    pub const fn number(&self) -> u8 {
        self.number
    }

    /// Returns the node's own network namespace.
    #[must_use]
    pub const fn namespace(&self) -> &Arc<Namespace> {
        &self.namespace
    }

    /// Returns the control group that its own processes and, below it, those of its pods are in.
    #[must_use]
    pub fn cgroup(&self) -> &Path {
        self.cgroup.path()
    }

    /// Returns the addresses of its uplink `eth0`.
    #[must_use]
    pub const fn addresses(&self) -> Dual {
        addresses::node(self.number)
    }

    /// Returns the addresses of its second uplink `eth1`, where there is one.
    #[must_use]
    pub const fn second_addresses(&self) -> Dual {
        addresses::second_uplink(self.number)
    }

    /// Returns the ranges of its pods.
    #[must_use]
    pub fn pod_ranges(&self) -> [IpNet; 2] {
        addresses::pod(self.number, None).networks().map(|range| range.trunc())
    }

    /// Returns pod `index`, counted from 0.
    pub fn pod(&self, index: usize) -> Result<&Pod> {
        self.pods.get(index).with_context(|| format!("{} has no pod {index}", self.name))
    }

    /// Returns its pods.
    #[must_use]
    pub fn pods(&self) -> &[Pod] {
        &self.pods
    }
}

impl Host {
    /// Returns its address.
    #[must_use]
    pub const fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Returns its network namespace.
    #[must_use]
    pub const fn namespace(&self) -> &Arc<Namespace> {
        &self.namespace
    }

    /// Returns the number of packets that it refused as too large for the next link.
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
    /// Returns the name such as `pod-1a`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns its addresses.
    #[must_use]
    pub const fn addresses(&self) -> Dual {
        self.addresses
    }

    /// Returns its network namespace.
    #[must_use]
    pub const fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Returns the name of the device that leads to it, a port of its node's bridge `cni0`.
    #[must_use]
    pub fn device(&self) -> String {
        format!("veth-{}", self.name.trim_start_matches("pod-"))
    }
}
