//! Which nodes are reached by a tunnel.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::model::Family;
use crate::node::{OwnRoute, Route, TunnelEnds, Via};

/// Returns the nodes that routes lead to.
pub(super) fn nodes(routes: &BTreeSet<OwnRoute>) -> impl Iterator<Item = IpAddr> {
    routes.iter().filter_map(|route| route.via.node()).collect::<BTreeSet<_>>().into_iter()
}

/// Returns the routes, with a tunnel to each node that the kernel reaches by a router.
///
/// `found` are the present ones: a node that the kernel has no route to just now keeps what it has.
pub(super) fn choose(
    wanted: &BTreeSet<OwnRoute>,
    found: &BTreeSet<OwnRoute>,
    reached: &BTreeMap<IpAddr, Route>,
) -> BTreeSet<OwnRoute> {
    let via = |route: &OwnRoute| {
        let Some(node) = route.via.node() else { return route.via };
        let tunnel = OwnRoute { via: Via::Tunnel(node), ..*route };
        let is_behind_router = match reached.get(&node) {
            Some(route) => route.gateway.is_some(),
            None => found.contains(&tunnel),
        };
        if is_behind_router { tunnel.via } else { route.via }
    };
    wanted.iter().map(|route| OwnRoute { via: via(route), ..*route }).collect()
}

/// Returns the ends of the tunnels that routes lead to, from an address of this node.
pub(super) fn ends<'a>(
    routes: impl Iterator<Item = &'a OwnRoute>,
    own: &BTreeSet<IpAddr>,
) -> BTreeSet<TunnelEnds> {
    let ends = routes.filter_map(|route| {
        let Via::Tunnel(other) = route.via else { return None };
        let own = own.iter().find(|own| Family::of(**own) == Family::of(other))?;
        Some(TunnelEnds { own: *own, other })
    });
    ends.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_behind_a_router_get_a_tunnel_and_unreachable_ones_keep_what_they_have() {
        let node = |number| IpAddr::from([172, 30, 0, number]);
        let route =
            |number: u8, via| OwnRoute { prefix: format!("10.244.{number}.0/24").parse().unwrap(), via };
        let served = OwnRoute { prefix: "203.0.113.7/32".parse().unwrap(), via: Via::Nowhere };
        let to = |number| route(number, Via::Gateway(node(number)));
        let by_tunnel = |number| route(number, Via::Tunnel(node(number)));
        let way =
            |gateway: Option<u8>| Route { device: 2, gateway: gateway.map(node), source: None, mtu: None };
        let reached = [(node(1), way(None)), (node(2), way(Some(254)))].into();
        let found = [by_tunnel(1), to(2), by_tunnel(3), to(4)].into();
        let chosen = choose(&[to(1), to(2), to(3), to(4), to(5), served].into(), &found, &reached);
        assert_eq!(chosen, [to(1), by_tunnel(2), by_tunnel(3), to(4), to(5), served].into());
    }

    #[test]
    fn a_tunnel_begins_at_this_nodes_address_of_the_same_family() {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let route = |prefix: &str, via| OwnRoute { prefix: prefix.parse().unwrap(), via };
        let routes = [
            route("10.244.2.0/24", Via::Tunnel(address("172.30.1.12"))),
            route("10.244.3.0/24", Via::Gateway(address("172.30.0.13"))),
            route("2001:db8:f:2::/64", Via::Tunnel(address("2001:db8:b::12"))),
        ];
        let own = ["172.30.0.11", "2001:db8:a::11"].map(address);
        let expected = [("172.30.0.11", "172.30.1.12"), ("2001:db8:a::11", "2001:db8:b::12")];
        let expected = expected.map(|(own, other)| TunnelEnds { own: address(own), other: address(other) });
        assert_eq!(ends(routes.iter(), &own.into()), expected.into());
        assert_eq!(ends(routes.iter(), &[address("172.30.0.11")].into()), [expected[0]].into());
    }
}
