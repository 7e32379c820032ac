//! The parts of the command line's JSON that the bed reads.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result};
use ipnet::IpNet;
use serde::Deserialize;
use serde_json::Value;

/// The packets of one program and reason.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Counter {
    /// Name of the program.
    pub program: String,
    /// Name of the reason.
    pub reason: String,
    /// Whether they were dropped.
    pub drop: bool,
    /// Number of packets.
    pub packets: u64,
}

/// A list of a Service port in one family.
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
    /// Whether the list is empty while usable endpoints are elsewhere.
    pub elsewhere: bool,
    /// The frontends of the list, sorted.
    pub frontends: Vec<Frontend>,
    /// Owners of its slots, sorted.
    pub backends: Vec<SocketAddr>,
    /// Packets of clients.
    pub packets: u64,
}

/// A frontend of a Service.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Frontend {
    /// Its address and port.
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
    /// The allowed sources, sorted; `None` = all.
    pub source_ranges: Option<Vec<IpNet>>,
    /// Whether only clients inside the cluster may use it.
    pub inside_only: bool,
}

/// An endpoint.
#[allow(clippy::struct_excessive_bools, reason = "each is a condition of its own, as in the JSON")]
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Backend {
    /// Address and port.
    pub address: SocketAddr,
    /// Whether an EndpointSlice has it; false while the id rests.
    pub exists: bool,
    /// Whether it is on this node.
    pub local: bool,
    /// Whether it is Ready.
    pub ready: bool,
    /// Whether it is Serving.
    pub serving: bool,
    /// Services with a slot of this backend, as `namespace/name:port`, sorted.
    pub services: Vec<String>,
}

impl Service {
    /// Returns whether this is the Cluster list of the service `name` of one family.
    pub(super) fn is(&self, name: &str, v4: bool) -> bool {
        self.name == name && self.list == "Cluster" && (self.family == "IPv4") == v4
    }
}

/// A program attached to a device.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Attached {
    /// Name of the device.
    pub device: String,
    /// `xdp`, `tc_ingress`, `tc_egress`, `tc_pod_in`, `tc_pod_out`, or the name of a socket hook.
    pub hook: String,
    /// `native`, `generic`, `tcx` or `clsact`.
    pub mode: String,
    /// The kernel's id of the program.
    pub program_id: u32,
}

pub(super) fn services(json: &Value) -> Result<Vec<Service>> {
    Vec::deserialize(json).context("unexpected output of `millrace services`")
}

pub(super) fn backends(json: &Value) -> Result<Vec<Backend>> {
    Vec::deserialize(json).context("unexpected output of `millrace backends`")
}

pub(super) fn attached(json: &Value) -> Result<Vec<Attached>> {
    let attached = json.get("attached").context("the status has no `attached`")?;
    Vec::deserialize(attached).context("unexpected output of `millrace status`")
}

/// The route to another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Way {
    /// Address of the node.
    pub target: IpAddr,
    /// Index of the device.
    pub device: u32,
    /// Whether packets need no FIB look-up.
    pub resolved: bool,
}

pub(super) fn ways(json: &Value) -> Result<Vec<Way>> {
    let ways = json.get("ways").context("the status has no `ways`")?;
    Vec::deserialize(ways).context("unexpected output of `millrace status`")
}

pub(super) fn counters(json: &Value) -> Result<Vec<Counter>> {
    let counters = json.get("counters").context("the status has no `counters`")?;
    Vec::deserialize(counters).context("unexpected output of `millrace status`")
}
