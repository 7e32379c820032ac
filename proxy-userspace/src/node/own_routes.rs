//! Routes of Millrace's own in the main table, marked by their protocol number. Those of others are left alone.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::pin::pin;

use futures_util::TryStreamExt;
use ipnet::IpNet;
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteType};
use rtnetlink::{Handle, RouteMessageBuilder};
use tokio::task::JoinHandle;

use super::NodeError;
use super::decode::OUR_PROTOCOL;

/// The metric of our routes: any route that a person or another program sets without one is preferred.
const METRIC: u32 = 4096;

/// The settings of routes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteSettings {
    /// Prefixes of the addresses that get a route while this node serves them, for routing daemons to announce.
    pub announced_ranges: Vec<IpNet>,
    /// Whether this node has routes to the pods of other nodes.
    pub to_pods: bool,
}

/// A route to a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OwnRoute {
    /// Its destinations.
    pub prefix: IpNet,
    /// The next hop; `None` = a route for others to read, which leads nowhere (blackhole).
    pub gateway: Option<IpAddr>,
}

/// Reads and changes our routes.
#[derive(Debug)]
pub struct OwnRoutes {
    handle: Handle,
    connection: JoinHandle<()>,
}

impl OwnRoutes {
    /// Opens a netlink socket in this network namespace.
    pub fn open() -> Result<Self, NodeError> {
        let (connection, handle, _) = rtnetlink::new_connection().map_err(NodeError::Open)?;
        Ok(Self { handle, connection: tokio::spawn(connection) })
    }

    /// Returns all of our routes.
    pub async fn list(&self) -> Result<BTreeSet<OwnRoute>, NodeError> {
        let mut routes = BTreeSet::new();
        for message in
            [RouteMessageBuilder::<Ipv4Addr>::new().build(), RouteMessageBuilder::<Ipv6Addr>::new().build()]
        {
            let mut dump = pin!(self.handle.route().get(message).execute());
            while let Some(message) = dump.try_next().await? {
                routes.extend(decode(&message));
            }
        }
        Ok(routes)
    }

    /// Adds a route. An error if another one of the same prefix and metric is there.
    pub async fn add(&self, route: OwnRoute) -> Result<(), NodeError> {
        Ok(self.handle.route().add(encode(route)).execute().await?)
    }

    /// Removes a route of ours.
    pub async fn remove(&self, route: OwnRoute) -> Result<(), NodeError> {
        Ok(self.handle.route().del(encode(route)).execute().await?)
    }
}

impl Drop for OwnRoutes {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

/// Removes all of our routes, and returns them.
pub async fn remove_own_routes() -> Result<BTreeSet<OwnRoute>, NodeError> {
    let routes = OwnRoutes::open()?;
    let found = routes.list().await?;
    for route in &found {
        routes.remove(*route).await?;
    }
    Ok(found)
}

fn encode(route: OwnRoute) -> RouteMessage {
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
    message.header.kind = if route.gateway.is_some() { RouteType::Unicast } else { RouteType::BlackHole };
    message.attributes.push(RouteAttribute::Priority(METRIC));
    if let Some(gateway) = route.gateway {
        message.attributes.push(RouteAttribute::Gateway(gateway.into()));
    }
    message
}

/// Reads a route of ours in the main table.
fn decode(message: &RouteMessage) -> Option<OwnRoute> {
    let RouteHeader { protocol, table, destination_prefix_length, .. } = message.header;
    if protocol != OUR_PROTOCOL || table != RouteHeader::RT_TABLE_MAIN {
        return None;
    }
    let address = |address: &RouteAddress| match address {
        RouteAddress::Inet(address) => Some(IpAddr::V4(*address)),
        RouteAddress::Inet6(address) => Some(IpAddr::V6(*address)),
        _ => None,
    };
    let (mut destination, mut gateway) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(found) => destination = address(found),
            RouteAttribute::Gateway(found) => gateway = address(found),
            _ => {}
        }
    }
    let prefix = IpNet::new(destination?, destination_prefix_length).ok()?;
    Some(OwnRoute { prefix, gateway })
}

#[cfg(test)]
mod tests {
    use rtnetlink::packet_route::route::RouteProtocol;

    use super::*;

    fn route(prefix: &str, gateway: Option<&str>) -> OwnRoute {
        OwnRoute { prefix: prefix.parse().unwrap(), gateway: gateway.map(|text| text.parse().unwrap()) }
    }

    #[test]
    fn a_route_of_ours_is_read_as_it_was_written_and_others_are_not() {
        for route in [
            route("203.0.113.7/32", None),
            route("10.244.2.0/24", Some("172.30.0.12")),
            route("2001:db8:e::7/128", None),
            route("2001:db8:f:2::/64", Some("2001:db8:a::12")),
        ] {
            let mut message = encode(route);
            assert_eq!(decode(&message), Some(route));
            message.header.protocol = RouteProtocol::Static;
            assert_eq!(decode(&message), None);
        }
    }
}
