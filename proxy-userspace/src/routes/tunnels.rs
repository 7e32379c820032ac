//! Which nodes are reached by a tunnel.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use crate::model::Family;
use crate::node::{OwnRoute, Route, TunnelEnds, Tunnels, Via};

/// This node as far as tunnels need it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OwnEnd {
    /// Its addresses by its Node object.
    pub addresses: BTreeSet<IpAddr>,
    /// The ranges of its pods.
    pub ranges: Vec<IpNet>,
}

impl OwnEnd {
    /// Returns the end of tunnels of a family.
    fn address(&self, family: Family) -> Option<IpAddr> {
        self.addresses.iter().copied().find(|address| Family::of(*address) == family)
    }

    /// Returns the sources of packets of this node's own, by family: an address among its pods if it has one, such as their
    /// bridge's. Answers then come by the tunnel, too. Else its address in the Node object, if a device has it. `present` are
    /// the addresses of its devices.
    pub fn sources(&self, present: &BTreeSet<IpAddr>) -> BTreeMap<Family, IpAddr> {
        let is_among_pods = |address: &&IpAddr| self.ranges.iter().any(|range| range.contains(*address));
        let sources = Family::ALL.into_iter().filter_map(|family| {
            let mut among_pods = present.iter().filter(is_among_pods).copied();
            let source = among_pods.find(|address| Family::of(*address) == family);
            let own = || self.address(family).filter(|own| present.contains(own));
            Some((family, source.or_else(own)?))
        });
        sources.collect()
    }
}

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
    sources: &BTreeMap<Family, IpAddr>,
) -> BTreeSet<OwnRoute> {
    let via = |route: &OwnRoute| {
        let Some(node) = route.via.node() else { return route.via };
        let is_tunnel = |via| matches!(via, Via::Tunnel { node: to, .. } if to == node);
        let has_tunnel = || found.iter().any(|one| one.prefix == route.prefix && is_tunnel(one.via));
        let is_behind_router = match reached.get(&node) {
            // A gateway of itself is on the link.
            Some(way) => way.gateway.is_some_and(|gateway| gateway != node),
            None => has_tunnel(),
        };
        let source = sources.get(&Family::of(node)).copied();
        if is_behind_router { Via::Tunnel { node, source } } else { route.via }
    };
    wanted.iter().map(|route| OwnRoute { via: via(route), ..*route }).collect()
}

/// Returns the ends of the tunnels that routes lead to. A present tunnel keeps its own end if this node has no address
/// now.
pub(super) fn ends<'a>(
    routes: impl Iterator<Item = &'a OwnRoute>,
    own: &OwnEnd,
    present: &Tunnels,
) -> BTreeSet<TunnelEnds> {
    let ends = routes.filter_map(|route| {
        let Via::Tunnel { node: other, .. } = route.via else { return None };
        let present = || present.keys().find(|ends| ends.other == other).map(|ends| ends.own);
        Some(TunnelEnds { own: own.address(Family::of(other)).or_else(present)?, other })
    });
    ends.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::PodTunnel;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn own() -> OwnEnd {
        OwnEnd {
            addresses: ["172.30.0.11", "2001:db8:a::11"].map(address).into(),
            ranges: vec!["10.244.1.0/24".parse().unwrap(), "2001:db8:f:1::/64".parse().unwrap()],
        }
    }

    #[test]
    fn nodes_behind_a_router_get_a_tunnel_and_unreachable_ones_keep_what_they_have() {
        let node = |number| IpAddr::from([172, 30, 0, number]);
        let route =
            |number: u8, via| OwnRoute { prefix: format!("10.244.{number}.0/24").parse().unwrap(), via };
        let served = OwnRoute { prefix: "203.0.113.7/32".parse().unwrap(), via: Via::Nowhere };
        let source = Some(address("10.244.1.1"));
        let to = |number| route(number, Via::Gateway(node(number)));
        let by_tunnel = |number| route(number, Via::Tunnel { node: node(number), source });
        let way =
            |gateway: Option<u8>| Route { device: 2, gateway: gateway.map(node), source: None, mtu: None };
        let reached = [(node(1), way(None)), (node(2), way(Some(254))), (node(6), way(Some(6)))].into();
        let found = [by_tunnel(1), to(2), by_tunnel(3), to(4)].into();
        let wanted = [to(1), to(2), to(3), to(4), to(5), to(6), served].into();
        let sources = [(Family::V4, address("10.244.1.1"))].into();
        let chosen = choose(&wanted, &found, &reached, &sources);
        assert_eq!(chosen, [to(1), by_tunnel(2), by_tunnel(3), to(4), to(5), to(6), served].into());
    }

    #[test]
    fn the_nodes_own_packets_have_an_address_among_its_pods_if_there_is_one() {
        let present = ["10.244.1.1", "10.244.9.9", "172.30.0.11", "192.0.2.1"].map(address).into();
        let expected = [(Family::V4, address("10.244.1.1")), (Family::V6, address("2001:db8:a::11"))];
        assert_eq!(own().sources(&present), expected[..1].iter().copied().collect());
        let present = ["10.244.9.9", "172.30.0.11", "2001:db8:a::11"].map(address).into();
        assert_eq!(own().sources(&present), [(Family::V4, address("172.30.0.11")), expected[1]].into());
        assert!(OwnEnd::default().sources(&present).is_empty());
    }

    #[test]
    fn a_tunnel_begins_at_this_nodes_address_of_the_same_family() {
        let tunnel = |node: &str| Via::Tunnel { node: address(node), source: None };
        let route = |prefix: &str, via| OwnRoute { prefix: prefix.parse().unwrap(), via };
        let routes = [
            route("10.244.2.0/24", tunnel("172.30.1.12")),
            route("10.244.3.0/24", Via::Gateway(address("172.30.0.13"))),
            route("2001:db8:f:2::/64", tunnel("2001:db8:b::12")),
        ];
        let ends_of = |own: &str, other: &str| TunnelEnds { own: address(own), other: address(other) };
        let expected = [ends_of("172.30.0.11", "172.30.1.12"), ends_of("2001:db8:a::11", "2001:db8:b::12")];
        assert_eq!(ends(routes.iter(), &own(), &Tunnels::new()), expected.into());
        // Without an address, a tunnel stays.
        let present = PodTunnel { index: 7, is_up: true, mtu: None };
        let present = [(ends_of("172.30.0.99", "172.30.1.12"), present)].into();
        assert_eq!(
            ends(routes.iter(), &OwnEnd::default(), &present),
            [ends_of("172.30.0.99", "172.30.1.12")].into()
        );
    }
}
