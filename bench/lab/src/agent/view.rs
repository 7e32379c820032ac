//! What the command line's JSON says, as far as the bed asks.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result};
use ipnet::IpNet;
use serde::Deserialize;
use serde_json::Value;

/// Packets that one program was done with for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Counter {
    /// Name of the program.
    pub program: String,
    /// Name of the reason.
    pub reason: String,
    /// Whether they were dropped.
    pub drop: bool,
    /// How many.
    pub packets: u64,
}

/// A list of a service port in one family.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Service {
    /// Namespace of the Service.
    pub namespace: String,
    /// Name of the Service.
    pub name: String,
    /// Name of the port.
    pub port: String,
    /// `IPv4` or `IPv6`.
    pub family: String,
    /// `Cluster` or `Local`.
    pub list: String,
    /// Service id.
    pub id: u32,
    /// The list is empty, but there are usable endpoints that are not in it.
    pub elsewhere: bool,
    /// Where the list is reached, sorted.
    pub frontends: Vec<Frontend>,
    /// Owners of its slots, sorted.
    pub backends: Vec<SocketAddr>,
    /// Packets clients sent.
    pub packets: u64,
}

/// Where a service is reached.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Frontend {
    /// Address and port a client sends to.
    pub address: SocketAddr,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// `internal` or `external`.
    pub scope: String,
    /// `ClusterIP`, `NodePort`, `ExternalIP` or `LoadBalancer`.
    pub kind: String,
    /// `snat` or `dsr`.
    pub forwarding: String,
    /// Session affinity time-out, 0 = none.
    pub affinity_seconds: u32,
    /// Who may use it, sorted; none = everybody.
    pub source_ranges: Option<Vec<IpNet>>,
    /// Only clients inside the cluster may.
    pub inside_only: bool,
}

/// An endpoint.
#[allow(clippy::struct_excessive_bools, reason = "each is a condition of its own, as in the JSON")]
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Backend {
    /// Address and port.
    pub address: SocketAddr,
    /// In some EndpointSlice; false while the id rests.
    pub exists: bool,
    /// On this node.
    pub local: bool,
    /// Ready.
    pub ready: bool,
    /// Serving.
    pub serving: bool,
    /// Services with a slot of this backend, as `namespace/name:port`, sorted.
    pub services: Vec<String>,
}

impl Service {
    /// Whether this is the Cluster list of the service `name` of one family.
    pub(super) fn is(&self, name: &str, v4: bool) -> bool {
        self.name == name && self.list == "Cluster" && (self.family == "IPv4") == v4
    }
}

/// A program attached to a device.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Attached {
    /// Name of the device.
    pub device: String,
    /// `xdp`, `tc_ingress`, `tc_egress`, `tc_pod_in`, `tc_pod_out`, or the name of a hook of sockets.
    pub hook: String,
    /// `native`, `generic`, `tcx` or `clsact`.
    pub mode: String,
    /// The kernel's id of the program.
    pub program_id: u32,
}

pub(super) fn services(json: &Value) -> Result<Vec<Service>> {
    Vec::deserialize(json).context("not what `millrace services` is to print")
}

pub(super) fn backends(json: &Value) -> Result<Vec<Backend>> {
    Vec::deserialize(json).context("not what `millrace backends` is to print")
}

pub(super) fn attached(json: &Value) -> Result<Vec<Attached>> {
    let attached = json.get("attached").context("the status has no `attached`")?;
    Vec::deserialize(attached).context("not what `millrace status` is to print")
}

/// How another node is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Way {
    /// Address of the node.
    pub target: IpAddr,
    /// Index of the device.
    pub device: u32,
    /// No route need be asked for.
    pub resolved: bool,
}

pub(super) fn ways(json: &Value) -> Result<Vec<Way>> {
    let ways = json.get("ways").context("the status has no `ways`")?;
    Vec::deserialize(ways).context("not what `millrace status` is to print")
}

pub(super) fn counters(json: &Value) -> Result<Vec<Counter>> {
    let counters = json.get("counters").context("the status has no `counters`")?;
    Vec::deserialize(counters).context("not what `millrace status` is to print")
}
