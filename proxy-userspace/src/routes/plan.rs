//! The routes that this node is to have.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::model::{Candidates, Desired, Family};
use crate::node::{OwnRoute, PodRoutes, RouteSettings, Via};

/// Returns the routes that a desired state asks for.
pub(super) fn plan(desired: &Desired, settings: &RouteSettings) -> BTreeSet<OwnRoute> {
    let mut routes: BTreeSet<OwnRoute> = served(desired, settings)
        .map(|address| OwnRoute { prefix: IpNet::from(address), via: Via::Nowhere })
        .collect();
    if settings.own_pods {
        let own = desired.pod_ranges.get(&desired.node_name).into_iter().flatten();
        routes.extend(own.map(|range| OwnRoute { prefix: range.trunc(), via: Via::Nowhere }));
    }
    if settings.to_pods != PodRoutes::Off {
        routes.extend(to_pods(desired));
    }
    routes
}

/// Returns the addresses that this node serves and may announce.
fn served(desired: &Desired, settings: &RouteSettings) -> impl Iterator<Item = IpAddr> {
    let is_candidate = |candidates: &Candidates| match candidates {
        Candidates::All => true,
        Candidates::Only(nodes) => nodes.iter().any(|node| **node == desired.node_name),
    };
    let served = desired.announced.iter().filter(move |(_, candidates)| is_candidate(candidates));
    served
        .map(|(address, _)| *address)
        .filter(|address| settings.announced_ranges.iter().any(|range| range.contains(address)))
}

/// Returns a route to each range of pods of another node, by that node's first address of the same family.
fn to_pods(desired: &Desired) -> impl Iterator<Item = OwnRoute> {
    // A range of pods that has a node in it would take that node's traffic, if it is not a mistake.
    let has_node = |range: &IpNet| desired.nodes.values().flatten().any(|address| range.contains(address));
    let others = desired.pod_ranges.iter().filter(|(node, _)| **node != desired.node_name);
    let ranges = others.flat_map(|(node, ranges)| ranges.iter().map(move |range| (node, range)));
    ranges.filter(move |(_, range)| !has_node(range)).filter_map(|(node, range)| {
        let mut addresses = desired.nodes.get(node).into_iter().flatten();
        let family = Family::of(range.network());
        let gateway = addresses.find(|address| Family::of(**address) == family)?;
        Some(OwnRoute { prefix: range.trunc(), via: Via::Gateway(*gateway) })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn desired() -> Desired {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let node = |name: &str, addresses: &[&str]| {
            (name.to_owned(), addresses.iter().map(|text| address(text)).collect())
        };
        let only = |node: &str| Candidates::Only([node.into()].into());
        Desired {
            node_name: "node-1".to_owned(),
            nodes: [
                node("node-1", &["172.30.0.11", "2001:db8:a::11"]),
                node("node-2", &["172.30.0.12", "2001:db8:a::12"]),
                node("node-2b", &["172.30.0.22"]),
                node("node-3", &["172.30.0.13"]),
            ]
            .into(),
            announced: [
                (address("203.0.113.1"), Candidates::All),
                (address("203.0.113.2"), only("node-1")),
                (address("203.0.113.3"), only("node-2")),
                (address("198.51.100.1"), Candidates::All),
                (address("2001:db8:e::1"), Candidates::All),
            ]
            .into(),
            pod_ranges: [
                ("node-1".to_owned(), vec!["10.244.1.0/24".parse().unwrap()]),
                (
                    "node-2".to_owned(),
                    vec!["10.244.2.0/24".parse().unwrap(), "2001:db8:f:2::/64".parse().unwrap()],
                ),
                ("node-3".to_owned(), vec!["2001:db8:f:3::/64".parse().unwrap()]),
                ("node-2b".to_owned(), vec!["172.30.0.0/16".parse().unwrap(), "0.0.0.0/0".parse().unwrap()]),
                ("node-4".to_owned(), vec!["10.244.4.0/24".parse().unwrap()]),
            ]
            .into(),
            ..Desired::default()
        }
    }

    fn shown(settings: &RouteSettings) -> Vec<String> {
        let show = |route: &OwnRoute| match route.via.node() {
            Some(gateway) => format!("{} {gateway}", route.prefix),
            None => route.prefix.to_string(),
        };
        plan(&desired(), settings).iter().map(show).collect()
    }

    #[test]
    fn addresses_inside_the_ranges_have_a_route_where_they_are_served() {
        let ranges = ["203.0.113.0/24", "2001:db8:e::/64"].map(|range| range.parse().unwrap());
        let settings = RouteSettings { announced_ranges: ranges.into(), ..RouteSettings::default() };
        assert_eq!(shown(&settings), ["203.0.113.1/32", "203.0.113.2/32", "2001:db8:e::1/128"]);
    }

    #[test]
    fn pods_of_other_nodes_are_reached_by_the_nodes_address_of_the_same_family() {
        let settings = RouteSettings { to_pods: PodRoutes::Subnet, ..RouteSettings::default() };
        assert_eq!(shown(&settings), ["10.244.2.0/24 172.30.0.12", "2001:db8:f:2::/64 2001:db8:a::12"]);
        assert!(shown(&RouteSettings::default()).is_empty());
    }

    #[test]
    fn a_nodes_own_range_of_pods_has_a_route_that_leads_nowhere() {
        let settings = RouteSettings { own_pods: true, ..RouteSettings::default() };
        assert_eq!(shown(&settings), ["10.244.1.0/24"]);
    }
}
