//! Routes of Millrace's own in the main table, marked by their protocol number. Those of others are left alone.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::pin::pin;

use futures_util::TryStreamExt;
use ipnet::IpNet;
use rtnetlink::packet_route::route::{RouteAttribute, RouteHeader, RouteMessage, RouteType};
use rtnetlink::sys::AsyncSocket;
use rtnetlink::{Handle, RouteMessageBuilder};
use tokio::task::JoinHandle;

use super::NodeError;
use super::decode::{OUR_PROTOCOL, ip};
use super::pod_tunnels::{self, Links, PodTunnel, TunnelEnds};
use super::query;
use super::state::Route;

/// The metric of our routes: any route that a person or another program sets without one is preferred.
const METRIC: u32 = 4096;

/// Tunnels by their ends.
pub type Tunnels = BTreeMap<TunnelEnds, PodTunnel>;

/// The settings of routes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteSettings {
    /// Prefixes of the addresses that get a route while this node serves them, for routing daemons to announce.
    pub announced_ranges: Vec<IpNet>,
    /// Whether this node's own range of pods gets such a route, too.
    pub own_pods: bool,
    /// The routes to the pods of other nodes.
    pub to_pods: PodRoutes,
}

/// The nodes to whose pods this node has routes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PodRoutes {
    /// None.
    #[default]
    Off,
    /// Those on a subnet of this node.
    Subnet,
    /// Those too, and all others by IPIP.
    Ipip,
}

impl PodRoutes {
    /// All values.
    pub const ALL: [Self; 3] = [Self::Off, Self::Subnet, Self::Ipip];

    /// Returns the flag's word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Subnet => "subnet",
            Self::Ipip => "ipip",
        }
    }
}

/// A route to a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OwnRoute {
    /// Its destinations.
    pub prefix: IpNet,
    /// Where it leads.
    pub via: Via,
}

/// Where a route leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Via {
    /// Nowhere (blackhole): the route is for others to read.
    Nowhere,
    /// To a node on a subnet of this one.
    Gateway(IpAddr),
    /// To a node behind a router: packets are encapsulated to its address.
    Tunnel {
        /// The node's address, of the prefix's family.
        node: IpAddr,
        /// This node's address in packets of its own; `None` = the kernel chooses.
        source: Option<IpAddr>,
    },
}

impl Via {
    /// Returns the other node's address.
    #[must_use]
    pub const fn node(self) -> Option<IpAddr> {
        match self {
            Self::Nowhere => None,
            Self::Gateway(node) | Self::Tunnel { node, .. } => Some(node),
        }
    }
}

/// Reads and changes our routes.
#[derive(Debug)]
pub struct OwnRoutes {
    handle: Handle,
    connection: JoinHandle<()>,
    /// The devices at the last look.
    links: Links,
}

impl OwnRoutes {
    /// Opens a netlink socket in this network namespace.
    pub fn open() -> Result<Self, NodeError> {
        let (mut connection, handle, _) = rtnetlink::new_connection().map_err(NodeError::Open)?;
        // The kernel then looks through the table alone, which may have a million routes of others.
        let socket = connection.socket_mut().socket_mut();
        socket.set_netlink_get_strict_chk(true).map_err(NodeError::Open)?;
        Ok(Self { handle, connection: tokio::spawn(connection), links: Links::default() })
    }

    /// Returns all of our routes.
    pub async fn list(&mut self) -> Result<BTreeSet<OwnRoute>, NodeError> {
        self.links = pod_tunnels::list(&self.handle).await?;
        let mut routes = BTreeSet::new();
        for mut message in
            [RouteMessageBuilder::<Ipv4Addr>::new().build(), RouteMessageBuilder::<Ipv6Addr>::new().build()]
        {
            message.header.protocol = OUR_PROTOCOL;
            message.header.kind = RouteType::Unspec;
            let mut dump = pin!(self.handle.route().get(message).execute());
            while let Some(message) = dump.try_next().await? {
                routes.extend(decode(&message, self.tunnels()));
            }
        }
        Ok(routes)
    }

    /// Adds a route. An error if another one of the same prefix and metric is there, or if its tunnel is not.
    pub async fn add(&self, route: OwnRoute) -> Result<(), NodeError> {
        let added = self.handle.route().add(encode(route, self.tunnels())).execute().await;
        // A source that the kernel refuses, such as an IPv6 address that is still checked for a twin. Another look tries again.
        if let (Err(_), Via::Tunnel { node, source: Some(_) }) = (&added, route.via) {
            let without = OwnRoute { via: Via::Tunnel { node, source: None }, ..route };
            return Ok(self.handle.route().add(encode(without, self.tunnels())).execute().await?);
        }
        Ok(added?)
    }

    /// Returns the tunnels at the last look.
    #[must_use]
    pub fn tunnels(&self) -> &Tunnels {
        &self.links.tunnels
    }

    /// Returns the MTU of a device at the last look, in bytes.
    #[must_use]
    pub fn mtu_of(&self, device: u32) -> Option<u32> {
        self.links.mtus.get(&device).copied()
    }

    /// Keeps these tunnels, and no others of ours. Each has the largest packet on the way to the other node, in bytes, if that
    /// is known. Returns the tunnels that the kernel refuses.
    pub async fn keep_tunnels(
        &mut self,
        wanted: &BTreeMap<TunnelEnds, Option<u32>>,
    ) -> Result<BTreeMap<TunnelEnds, NodeError>, NodeError> {
        let present = self.tunnels().clone();
        // A tunnel from a former address of this node has the name of the wanted one.
        for (_, tunnel) in present.iter().filter(|(ends, _)| !wanted.contains_key(ends)) {
            pod_tunnels::remove(&self.handle, *tunnel).await?;
        }
        let mut refused = BTreeMap::new();
        for (ends, below) in wanted {
            let mtu = below.map(|below| pod_tunnels::inner_mtu(ends.other, below));
            let done = match present.get(ends) {
                None => pod_tunnels::add(&self.handle, *ends).await,
                Some(tunnel) => pod_tunnels::correct(&self.handle, *tunnel, mtu).await,
            };
            refused.extend(done.err().map(|error| (*ends, error)));
        }
        Ok(refused)
    }

    /// Returns the addresses of this node's devices.
    pub async fn addresses(&self) -> Result<BTreeSet<IpAddr>, NodeError> {
        let state = query::dump_addresses(&self.handle).await?;
        Ok(state.addresses.into_iter().map(|(_, address)| address).collect())
    }

    /// Returns the kernel's route to each node that has one.
    pub async fn to_nodes(
        &self,
        nodes: impl Iterator<Item = IpAddr>,
    ) -> Result<BTreeMap<IpAddr, Route>, NodeError> {
        query::routes(&self.handle, nodes).await
    }

    /// Removes a route of ours. One that is gone already is no error.
    pub async fn remove(&self, route: OwnRoute) -> Result<(), NodeError> {
        match self.handle.route().del(encode(route, self.tunnels())).execute().await {
            Err(rtnetlink::Error::NetlinkError(error)) if error.raw_code() == -libc::ESRCH => Ok(()),
            result => Ok(result?),
        }
    }
}

impl OwnRoutes {
    /// Removes routes, and returns the last failure.
    async fn remove_all(&self, routes: &BTreeSet<OwnRoute>) -> Option<NodeError> {
        let mut failed = None;
        for route in routes {
            failed = self.remove(*route).await.err().or(failed);
        }
        failed
    }
}

impl Drop for OwnRoutes {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

/// Removes our routes that routing daemons announce, and returns them. Goes on after a failure, and returns the last one
/// then.
pub async fn withdraw_own_routes() -> Result<BTreeSet<OwnRoute>, NodeError> {
    let mut routes = OwnRoutes::open()?;
    let mut found = routes.list().await?;
    found.retain(|route| route.via == Via::Nowhere);
    routes.remove_all(&found).await.map_or(Ok(found), Err)
}

/// Does the same with all of our routes, and removes our tunnels.
pub async fn remove_own_routes() -> Result<BTreeSet<OwnRoute>, NodeError> {
    let mut routes = OwnRoutes::open()?;
    let found = routes.list().await?;
    let failed = routes.remove_all(&found).await;
    let failed = routes.keep_tunnels(&BTreeMap::new()).await.err().or(failed);
    failed.map_or(Ok(found), Err)
}

fn encode(route: OwnRoute, tunnels: &Tunnels) -> RouteMessage {
    let (network, length) = (route.prefix.network(), route.prefix.prefix_len());
    let mut message = match network {
        IpAddr::V4(network) => {
            RouteMessageBuilder::<Ipv4Addr>::new().destination_prefix(network, length).build()
        }
        IpAddr::V6(network) => {
            RouteMessageBuilder::<Ipv6Addr>::new().destination_prefix(network, length).build()
        }
    };
    message.header.protocol = OUR_PROTOCOL;
    message.header.kind = if route.via == Via::Nowhere { RouteType::BlackHole } else { RouteType::Unicast };
    message.attributes.push(RouteAttribute::Priority(METRIC));
    match route.via {
        Via::Nowhere => {}
        Via::Gateway(node) => message.attributes.push(RouteAttribute::Gateway(node.into())),
        Via::Tunnel { node, source } => {
            message.attributes.extend(source.map(|source| RouteAttribute::PrefSource(source.into())));
            let tunnel = tunnels.iter().find(|(ends, _)| ends.other == node);
            message.attributes.extend(tunnel.map(|(_, tunnel)| RouteAttribute::Oif(tunnel.index)));
        }
    }
    message
}

/// Reads a route that [`encode`] has made, in the main table. Others with our protocol number are not ours.
fn decode(message: &RouteMessage, tunnels: &Tunnels) -> Option<OwnRoute> {
    let RouteHeader { protocol, table, kind, destination_prefix_length, .. } = message.header;
    let by_tunnel = |device| {
        let tunnel = tunnels.iter().find(|(_, tunnel)| tunnel.index == device);
        tunnel.map(|(ends, _)| ends.other)
    };
    let (mut destination, mut gateway, mut device, mut source, mut metric) = (None, None, None, None, None);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(found) => destination = ip(found),
            RouteAttribute::Gateway(found) => gateway = ip(found),
            RouteAttribute::Oif(found) => device = by_tunnel(*found),
            RouteAttribute::PrefSource(found) => source = ip(found),
            RouteAttribute::Priority(found) => metric = Some(*found),
            _ => {}
        }
    }
    let via = match (gateway, device, source) {
        (Some(node), _, _) => Via::Gateway(node),
        (None, Some(node), source) => Via::Tunnel { node, source },
        _ => Via::Nowhere,
    };
    let expected = if via == Via::Nowhere { RouteType::BlackHole } else { RouteType::Unicast };
    let is_ours = protocol == OUR_PROTOCOL
        && table == RouteHeader::RT_TABLE_MAIN
        && metric == Some(METRIC)
        && kind == expected;
    // Only a default route has none, and we set no such route.
    let prefix = IpNet::new(destination?, destination_prefix_length).ok()?;
    is_ours.then_some(OwnRoute { prefix, via })
}

#[cfg(test)]
mod tests {
    use rtnetlink::packet_route::route::RouteProtocol;

    use super::*;

    fn route(prefix: &str, via: Via) -> OwnRoute {
        OwnRoute { prefix: prefix.parse().unwrap(), via }
    }

    #[test]
    fn a_route_of_ours_is_read_as_it_was_written_and_others_are_not() {
        let node = |text: &str| text.parse::<IpAddr>().unwrap();
        let tunnels = [("172.30.0.11", "172.30.1.13", 7), ("2001:db8:a::11", "2001:db8:b::13", 8)];
        let tunnels = tunnels.map(|(own, other, index)| {
            (TunnelEnds { own: node(own), other: node(other) }, PodTunnel { index, is_up: true, mtu: None })
        });
        let tunnels = Tunnels::from(tunnels);
        for route in [
            route("203.0.113.7/32", Via::Nowhere),
            route("10.244.2.0/24", Via::Gateway(node("172.30.0.12"))),
            route(
                "10.244.3.0/24",
                Via::Tunnel { node: node("172.30.1.13"), source: Some(node("10.244.1.1")) },
            ),
            route("2001:db8:e::7/128", Via::Nowhere),
            route("2001:db8:f:2::/64", Via::Gateway(node("2001:db8:a::12"))),
            route("2001:db8:f:3::/64", Via::Tunnel { node: node("2001:db8:b::13"), source: None }),
        ] {
            let mut message = encode(route, &tunnels);
            assert_eq!(decode(&message, &tunnels), Some(route));
            let metric = RouteAttribute::Priority(METRIC);
            let mut other = message.clone();
            other.attributes.retain(|attribute| *attribute != metric);
            assert_eq!(decode(&other, &tunnels), None, "without a metric");
            message.header.protocol = RouteProtocol::Static;
            assert_eq!(decode(&message, &tunnels), None);
        }
    }
}
