//! A Service port: its lists, frontends and families together.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use serde::Serialize;

use millrace_views::Word;

use crate::dataplane::ebpf::read::{ConnectionsView, FrontendView, HandshakesView, ServiceView};

/// The state of a Service port in both families and both lists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ServicePort {
    /// Namespace of the Service.
    pub namespace: String,
    /// Name of the Service.
    pub name: String,
    /// Name of the port, empty for an unnamed one.
    pub port: String,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// Port numbers of the frontends but NodePorts, sorted.
    pub ports: Vec<u16>,
    /// The widest kind of frontend: `LoadBalancer`, `NodePort`, `ExternalIP` or `ClusterIP`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Addresses of the frontends but NodePorts: those for clients outside first.
    pub addresses: Vec<IpAddr>,
    /// NodePorts, sorted.
    pub node_ports: Vec<u16>,
    /// The list for clients outside, `Cluster` or `Local`; none without a frontend for them.
    pub external_policy: Option<String>,
    /// The list behind the ClusterIPs; none without any.
    pub internal_policy: Option<String>,
    /// `dsr` if a frontend asks for it, else `snat`.
    pub forwarding: String,
    /// `random` or `maglev`.
    pub algorithm: String,
    /// Time-out of session affinity; 0 = none.
    pub affinity_seconds: u32,
    /// Usable endpoints of all lists, sorted.
    pub backends: Vec<SocketAddr>,
    /// The number of usable endpoints; of the larger family.
    pub ready: usize,
    /// The number of them on this node.
    pub here: usize,
    /// `NoEndpoints`, or `NoLocalEndpoint`: a list with policy Local has none here.
    pub problem: Option<&'static str>,
    /// Packets from clients.
    pub packets: u64,
    /// Bytes from clients.
    pub bytes: u64,
    /// Packets that were dropped, by reason.
    pub dropped: BTreeMap<Word, u64>,
    /// Connections, and exchanges of datagrams, that this node translated.
    pub connections: ConnectionsView,
    /// Those of TCP and SCTP that were neither established nor refused in time.
    pub unanswered: Option<u64>,
    /// Times to the first answer.
    pub handshakes: HandshakesView,
    /// The lists, one or two for each family.
    pub lists: Vec<ServiceView>,
}

impl ServicePort {
    /// Joins the lists of each Service port. A port without frontends is being removed and is left out.
    pub fn join(lists: Vec<ServiceView>) -> Vec<Self> {
        let mut ports: BTreeMap<(String, String, String), Vec<ServiceView>> = BTreeMap::new();
        for list in lists {
            let key = (list.namespace.clone(), list.name.clone(), list.port.clone());
            ports.entry(key).or_default().push(list);
        }
        ports
            .into_iter()
            .filter_map(|((namespace, name, port), lists)| Self::of(namespace, name, port, lists))
            .collect()
    }

    fn of(namespace: String, name: String, port: String, lists: Vec<ServiceView>) -> Option<Self> {
        let frontends = || lists.iter().flat_map(|list| list.frontends.iter().map(move |one| (list, one)));
        let protocol = frontends().next()?.1.protocol.to_string();
        let is_node_port = |one: &FrontendView| one.kind == "NodePort";
        let numbers = |of_nodes: bool| {
            let chosen = frontends().filter(|(_, one)| is_node_port(one) == of_nodes);
            chosen.map(|(_, one)| one.address.port()).collect::<BTreeSet<_>>().into_iter().collect()
        };
        let policy = |wanted: fn(&FrontendView) -> bool| {
            frontends().find(|(_, one)| wanted(one)).map(|(list, _)| list.list.clone())
        };
        let backends: BTreeSet<SocketAddr> = lists.iter().flat_map(|list| &list.backends).copied().collect();
        let of_family = |count: fn(&ServiceView) -> usize| {
            let mut families: BTreeMap<&str, usize> = BTreeMap::new();
            for list in &lists {
                let most = families.entry(&list.family).or_default();
                *most = (*most).max(count(list));
            }
            families.into_values().max().unwrap_or(0)
        };
        let (mut dropped, mut handshakes) = (BTreeMap::new(), HandshakesView::default());
        let mut connections = ConnectionsView::default();
        for list in &lists {
            connections += list.connections;
            handshakes += &list.handshakes;
            list.dropped.iter().for_each(|(reason, packets)| {
                *dropped.entry(reason.clone()).or_default() += packets;
            });
        }
        Some(Self {
            ports: numbers(false),
            kind: kind(frontends().map(|(_, one)| one.kind.as_ref())).to_owned(),
            addresses: addresses(frontends().map(|(_, one)| one).filter(|one| !is_node_port(one))),
            node_ports: numbers(true),
            external_policy: policy(|one| one.scope == "external" && one.kind != "ClusterIP"),
            internal_policy: policy(|one| one.kind == "ClusterIP"),
            forwarding: if frontends().any(|(_, one)| one.forwarding == "dsr") { "dsr" } else { "snat" }
                .to_owned(),
            algorithm: lists.first().map(|list| list.algorithm.to_string()).unwrap_or_default(),
            affinity_seconds: frontends().map(|(_, one)| one.affinity_seconds).max().unwrap_or(0),
            ready: of_family(|list| list.backends.len()),
            here: of_family(|list| list.here),
            problem: problem(&lists),
            packets: lists.iter().map(|list| list.packets).sum(),
            bytes: lists.iter().map(|list| list.bytes).sum(),
            dropped,
            unanswered: (protocol != "UDP").then(|| connections.unanswered()),
            connections,
            handshakes,
            backends: backends.into_iter().collect(),
            namespace,
            name,
            port,
            protocol,
            lists,
        })
    }

    /// Returns `namespace/name:port`, without the colon for an unnamed port.
    pub fn label(&self) -> String {
        millrace_views::service_port_label(&self.namespace, &self.name, &self.port)
    }

    /// Returns the number of dropped packets.
    pub fn drops(&self) -> u64 {
        self.dropped.values().sum()
    }

    /// Returns the frontends of all lists.
    pub fn frontends(&self) -> impl Iterator<Item = &FrontendView> {
        self.lists.iter().flat_map(|list| &list.frontends)
    }
}

/// Returns the widest kind: a LoadBalancer has NodePorts and a ClusterIP, too.
fn kind<'a>(kinds: impl Iterator<Item = &'a str>) -> &'a str {
    const WIDEST: [&str; 4] = ["ClusterIP", "ExternalIP", "NodePort", "LoadBalancer"];
    kinds.max_by_key(|kind| WIDEST.iter().position(|one| one == kind)).unwrap_or_default()
}

fn addresses<'a>(frontends: impl Iterator<Item = &'a FrontendView>) -> Vec<IpAddr> {
    let ranked = frontends.map(|one| (one.kind == "ClusterIP", one.address.ip()));
    let ranked: BTreeSet<(bool, IpAddr)> = ranked.collect();
    ranked.into_iter().map(|(_, address)| address).collect()
}

fn problem(lists: &[ServiceView]) -> Option<&'static str> {
    let is_empty = |list: &&ServiceView| list.backends.is_empty() && !list.frontends.is_empty();
    let mut empty = lists.iter().filter(is_empty).peekable();
    empty.peek()?;
    Some(if empty.any(|list| !list.elsewhere) { "NoEndpoints" } else { "NoLocalEndpoint" })
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Returns a list of a port with frontends `(address, kind)`.
    pub fn list(
        name: &str,
        list: &str,
        frontends: &[(&str, &'static str)],
        backends: &[&str],
    ) -> ServiceView {
        let frontend = |(address, kind): &(&str, &'static str)| FrontendView {
            address: address.parse().unwrap(),
            protocol: "TCP".into(),
            scope: "external".into(),
            kind: (*kind).into(),
            forwarding: "snat".into(),
            affinity_seconds: 0,
            source_ranges: None,
            inside_only: false,
        };
        let (namespace, name) = name.split_once('/').unwrap();
        let (name, port) = name.split_once(':').unwrap_or((name, ""));
        let is_v6 = frontends.first().is_some_and(|(address, _)| address.starts_with('['));
        ServiceView {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            port: port.to_owned(),
            family: if is_v6 { "IPv6" } else { "IPv4" }.to_owned(),
            list: list.to_owned(),
            id: 1,
            algorithm: "random".into(),
            slots: 1,
            elsewhere: false,
            frontends: frontends.iter().map(frontend).collect(),
            backends: backends.iter().map(|backend| backend.parse().unwrap()).collect(),
            here: usize::from(!backends.is_empty()),
            packets: 7,
            bytes: 700,
            dropped: BTreeMap::from([("no_endpoint".into(), 2)]),
            connections: ConnectionsView {
                opened: 5,
                established: 3,
                refused: 1,
                ..ConnectionsView::default()
            },
            handshakes: HandshakesView::of(vec![0, 1]),
        }
    }

    /// Returns the Service ports `shop/web:http`, with NodePorts and policy Local, and `shop/db`.
    pub fn shop() -> Vec<ServicePort> {
        let node_ports = [("203.0.113.9:80", "LoadBalancer"), ("192.0.2.1:30080", "NodePort")];
        let ipv6 = [("[fd96::9]:80", "ClusterIP"), ("[fd00::1]:30080", "NodePort")];
        ServicePort::join(vec![
            list(
                "shop/web:http",
                "Cluster",
                &[("10.96.0.9:80", "ClusterIP")],
                &["10.1.0.1:8080", "10.1.0.2:8080"],
            ),
            list("shop/web:http", "Local", &node_ports, &["10.1.0.1:8080"]),
            list("shop/web:http", "Cluster", &ipv6, &["[fd01::1]:8080", "[fd01::2]:8080"]),
            list("shop/db", "Cluster", &[("10.96.0.10:5432", "ClusterIP")], &["10.1.0.7:5432"]),
        ])
    }

    #[test]
    fn families_lists_and_frontends_of_a_port_are_one() {
        let [db, web] = shop().try_into().unwrap();
        assert_eq!((db.label().as_str(), web.label().as_str()), ("shop/db", "shop/web:http"));
        assert_eq!((web.kind.as_str(), db.kind.as_str()), ("LoadBalancer", "ClusterIP"));
        let addresses: Vec<String> = web.addresses.iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["203.0.113.9", "10.96.0.9", "fd96::9"]);
        assert_eq!((web.ports.as_slice(), web.node_ports.as_slice()), ([80].as_slice(), [30080].as_slice()));
        assert_eq!(
            (web.external_policy.as_deref(), web.internal_policy.as_deref()),
            (Some("Local"), Some("Cluster"))
        );
        assert_eq!((db.external_policy, db.internal_policy.as_deref()), (None, Some("Cluster")));
        // Two pods, each with an address of both families.
        assert_eq!((web.ready, web.here, web.backends.len(), web.packets), (2, 1, 4, 21));
        assert_eq!((web.problem, db.problem), (None, None));
    }

    #[test]
    fn an_empty_list_is_a_problem_and_the_endpoints_elsewhere_say_which() {
        let cluster = || list("a/b", "Cluster", &[("10.96.0.9:80", "ClusterIP")], &["10.1.0.1:8080"]);
        let local = || ServiceView {
            elsewhere: true,
            ..list("a/b", "Local", &[("192.0.2.1:30080", "NodePort")], &[])
        };
        let unled = ServiceView { frontends: Vec::new(), ..list("a/b", "Local", &[], &[]) };
        let none = || ServiceView { backends: Vec::new(), ..cluster() };
        let problem = |lists: Vec<ServiceView>| ServicePort::join(lists).pop().unwrap().problem;
        assert_eq!(problem(vec![cluster(), local()]), Some("NoLocalEndpoint"));
        assert_eq!(problem(vec![none(), local()]), Some("NoEndpoints"));
        assert_eq!(problem(vec![cluster(), unled.clone()]), None);
        assert_eq!(ServicePort::join(vec![unled]), [], "a port without frontends is being removed");
    }
}
