//! Routes of Millrace's own in the main table, marked by their protocol number. Those of others are left alone.

use std::collections::BTreeSet;
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
        let (mut connection, handle, _) = rtnetlink::new_connection().map_err(NodeError::Open)?;
        // The kernel then looks through the table alone, which may have a million routes of others.
        let socket = connection.socket_mut().socket_mut();
        socket.set_netlink_get_strict_chk(true).map_err(NodeError::Open)?;
        Ok(Self { handle, connection: tokio::spawn(connection) })
    }

    /// Returns all of our routes.
    pub async fn list(&self) -> Result<BTreeSet<OwnRoute>, NodeError> {
        let mut routes = BTreeSet::new();
        for mut message in
            [RouteMessageBuilder::<Ipv4Addr>::new().build(), RouteMessageBuilder::<Ipv6Addr>::new().build()]
        {
            message.header.protocol = OUR_PROTOCOL;
            message.header.kind = RouteType::Unspec;
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

    /// Removes a route of ours. One that is gone already is no error.
    pub async fn remove(&self, route: OwnRoute) -> Result<(), NodeError> {
        match self.handle.route().del(encode(route)).execute().await {
            Err(rtnetlink::Error::NetlinkError(error)) if error.raw_code() == -libc::ESRCH => Ok(()),
            result => Ok(result?),
        }
    }
}

impl Drop for OwnRoutes {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

/// Removes all of our routes, and returns them. Goes on after a failure, and returns the last one then.
pub async fn remove_own_routes() -> Result<BTreeSet<OwnRoute>, NodeError> {
    let routes = OwnRoutes::open()?;
    let found = routes.list().await?;
    let mut failed = None;
    for route in &found {
        failed = routes.remove(*route).await.err().or(failed);
    }
    failed.map_or(Ok(found), Err)
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

/// Reads a route that [`encode`] has made, in the main table. Others with our protocol number are not ours.
fn decode(message: &RouteMessage) -> Option<OwnRoute> {
    let RouteHeader { protocol, table, kind, destination_prefix_length, .. } = message.header;
    let (mut destination, mut gateway, mut metric) = (None, None, None);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(found) => destination = ip(found),
            RouteAttribute::Gateway(found) => gateway = ip(found),
            RouteAttribute::Priority(found) => metric = Some(*found),
            _ => {}
        }
    }
    let expected = if gateway.is_some() { RouteType::Unicast } else { RouteType::BlackHole };
    let is_ours = protocol == OUR_PROTOCOL
        && table == RouteHeader::RT_TABLE_MAIN
        && metric == Some(METRIC)
        && kind == expected;
    // Only a default route has none, and we set no such route.
    let prefix = IpNet::new(destination?, destination_prefix_length).ok()?;
    is_ours.then_some(OwnRoute { prefix, gateway })
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
            let metric = RouteAttribute::Priority(METRIC);
            let mut other = message.clone();
            other.attributes.retain(|attribute| *attribute != metric);
            assert_eq!(decode(&other), None, "without a metric");
            message.header.protocol = RouteProtocol::Static;
            assert_eq!(decode(&message), None);
        }
    }
}
