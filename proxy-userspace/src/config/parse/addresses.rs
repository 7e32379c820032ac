//! Addresses and ranges of them.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::Refused;
use crate::config::{CONTROLLER_PORT, HEALTHZ_PORT, METRICS_PORT};
use crate::dataplane::ebpf::{OuterSource, OwnSource};
use crate::model::NodePortAddresses;

pub fn range(text: &str) -> Result<IpNet, Refused> {
    text.parse().map_err(|_| Refused::new(text, "a CIDR such as 203.0.113.0/24 or 2001:db8::/64"))
}

/// Reads addresses, separated by commas.
pub fn ip_addresses(text: &str) -> Result<BTreeSet<IpAddr>, Refused> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    parts
        .map(|part| part.parse().map_err(|_| Refused::new(part, "IP addresses, separated by commas")))
        .collect()
}

/// The address of a server; `None` = no server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BindAddress(pub Option<SocketAddr>);

impl BindAddress {
    /// Returns the address of a server.
    #[must_use]
    pub const fn new(address: IpAddr, port: u16) -> Self {
        Self(Some(SocketAddr::new(address, port)))
    }
}

/// Reads the address of the health server.
pub fn healthz_address(text: &str) -> Result<BindAddress, Refused> {
    bind_address(text, HEALTHZ_PORT)
}

/// Reads the address of the metrics server.
pub fn metrics_address(text: &str) -> Result<BindAddress, Refused> {
    bind_address(text, METRICS_PORT)
}

/// Reads the address of the controller's server.
pub fn controller_address(text: &str) -> Result<BindAddress, Refused> {
    bind_address(text, CONTROLLER_PORT)
}

/// Reads an address with or without a port; empty text is no server.
fn bind_address(text: &str, port: u16) -> Result<BindAddress, Refused> {
    if text.is_empty() {
        return Ok(BindAddress(None));
    }
    let address =
        text.parse().map(|address: IpAddr| SocketAddr::new(address, port)).or_else(|_| text.parse());
    match address {
        Ok(address) if address.port() != 0 => Ok(BindAddress(Some(address))),
        _ => {
            let takes = format!("an address or address:port such as 0.0.0.0:{port} or [::]:{port}");
            Err(Refused::new(text, takes))
        }
    }
}

/// An item of the list of addresses that serve NodePorts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodePortRange {
    /// The Node object's first InternalIP of each family.
    Primary,
    /// Every address.
    All,
    /// The addresses of a range.
    Within(IpNet),
}

const NODE_PORTS: &str = "the word primary alone, or all or CIDRs separated by commas";

pub fn node_port_range(text: &str) -> Result<NodePortRange, Refused> {
    match text {
        "primary" => Ok(NodePortRange::Primary),
        "all" => Ok(NodePortRange::All),
        _ => text.parse().map(NodePortRange::Within).map_err(|_| Refused::new(text, NODE_PORTS)),
    }
}

/// Returns the addresses that serve NodePorts.
pub fn node_ports(items: &[NodePortRange]) -> Result<Option<NodePortAddresses>, Refused> {
    let mut ranges = Vec::new();
    for item in items {
        match item {
            NodePortRange::Primary if items.len() == 1 => return Ok(Some(NodePortAddresses::Primary)),
            NodePortRange::Primary => return Err(Refused::new("primary", NODE_PORTS)),
            NodePortRange::All => {
                ranges.extend([IpNet::from(Ipv4Net::default()), IpNet::from(Ipv6Net::default())]);
            }
            NodePortRange::Within(range) => ranges.push(*range),
        }
    }
    Ok(Some(NodePortAddresses::Within(ranges)).filter(|_| !items.is_empty()))
}

/// An item of the list of outer sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OuterSourceItem {
    /// The node's address.
    Node,
    /// An address of the prefix for each flow.
    Prefix(IpNet),
}

impl fmt::Display for OuterSourceItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node => f.write_str("node"),
            Self::Prefix(prefix) => prefix.fmt(f),
        }
    }
}

const OUTER_SOURCES: &str = "the word node, or a prefix of /8 to /31, or one of /32 to /127 with IPv6, or one of \
                             each, with or without node before them";

/// Reads the word `node` or a prefix. A prefix of half the Internet would let everybody in.
pub fn outer_source_item(text: &str) -> Result<OuterSourceItem, Refused> {
    if text == "node" {
        return Ok(OuterSourceItem::Node);
    }
    let is_narrow = |prefix: &IpNet| match prefix {
        IpNet::V4(net) => (8..=31).contains(&net.prefix_len()),
        IpNet::V6(net) => (32..=127).contains(&net.prefix_len()),
    };
    let prefix = text.parse().ok().filter(is_narrow);
    prefix.map(OuterSourceItem::Prefix).ok_or_else(|| Refused::new(text, OUTER_SOURCES))
}

/// Returns the outer sources: the word `node` may only be first, and each family has at most one prefix.
pub fn outer_source(items: &[OuterSourceItem]) -> Result<Option<OuterSource>, Refused> {
    let mut source = OuterSource { own: OwnSource::Spread, ..OuterSource::default() };
    for (index, item) in items.iter().enumerate() {
        let is_new = match item {
            OuterSourceItem::Node => {
                source.own = OwnSource::Node;
                index == 0
            }
            OuterSourceItem::Prefix(IpNet::V4(net)) => source.v4.replace(net.trunc()).is_none(),
            OuterSourceItem::Prefix(IpNet::V6(net)) => source.v6.replace(net.trunc()).is_none(),
        };
        if !is_new {
            return Err(Refused::new(&item.to_string(), OUTER_SOURCES));
        }
    }
    Ok(Some(source).filter(|_| !items.is_empty()))
}
