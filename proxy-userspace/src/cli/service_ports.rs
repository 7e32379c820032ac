//! `millrace services` without `--frontends`: a row for each Service port.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use super::table::{Table, service_port, some_of};
use crate::dataplane::ebpf::read::ServiceView;

/// Namespace, name, port name and protocol.
type PortName<'a> = (&'a str, &'a str, &'a str, &'a str);

/// The state of a Service port in both families and both lists.
#[derive(Debug, Default)]
struct ServicePort<'a> {
    kinds: BTreeSet<&'a str>,
    addresses: BTreeSet<SocketAddr>,
    node_ports: BTreeSet<u16>,
    lists: BTreeSet<&'a str>,
    forwarding: BTreeSet<&'a str>,
    backends: BTreeSet<SocketAddr>,
    /// A list is empty although there are endpoints elsewhere.
    is_empty_here: bool,
    packets: u64,
}

/// Returns a row for each Service port.
pub fn table(services: &[ServiceView]) -> Table {
    let mut table =
        Table::new(&["SERVICE", "PROTO", "KIND", "ADDRESSES", "LIST", "FORWARDING", "BACKENDS", "PACKETS"]);
    for ((namespace, name, port, protocol), service) in ports(services) {
        table.push([
            service_port(namespace, name, port),
            protocol.to_owned(),
            joined(&service.kinds),
            service.addresses(),
            joined(&service.lists),
            joined(&service.forwarding),
            service.backends(),
            service.packets.to_string(),
        ]);
    }
    table
}

/// Joins families, lists and frontends. A port without frontends is being removed and has no row.
fn ports(services: &[ServiceView]) -> BTreeMap<PortName<'_>, ServicePort<'_>> {
    let mut ports = BTreeMap::<_, ServicePort<'_>>::new();
    for service in services {
        let Some(protocol) = service.frontends.first().map(|frontend| frontend.protocol.as_ref()) else {
            continue;
        };
        let name = (service.namespace.as_str(), service.name.as_str(), service.port.as_str(), protocol);
        let port = ports.entry(name).or_default();
        port.lists.insert(&service.list);
        port.backends.extend(&service.backends);
        port.is_empty_here |= service.elsewhere;
        port.packets += service.packets;
        for frontend in &service.frontends {
            port.kinds.insert(&frontend.kind);
            port.forwarding.insert(&frontend.forwarding);
            if frontend.kind == "NodePort" {
                port.node_ports.insert(frontend.address.port());
            } else {
                port.addresses.insert(frontend.address);
            }
        }
    }
    ports
}

impl ServicePort<'_> {
    /// NodePorts stand for every address of the node that serves them.
    fn addresses(&self) -> String {
        let addresses = self.addresses.iter().map(ToString::to_string);
        let node_ports = self.node_ports.iter().map(|port| format!("node:{port}"));
        some_of(&addresses.chain(node_ports).collect::<Vec<_>>())
    }

    fn backends(&self) -> String {
        match (self.backends.len(), self.is_empty_here) {
            (0, true) => "none here".to_owned(),
            (0, false) => "none".to_owned(),
            (count, true) => format!("{count}, Local none"),
            (count, false) => count.to_string(),
        }
    }
}

fn joined(words: &BTreeSet<&str>) -> String {
    words.iter().copied().collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataplane::ebpf::read::FrontendView;

    fn list(
        list: &str,
        frontends: &[(&str, &'static str)],
        backends: &[&str],
        elsewhere: bool,
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
        ServiceView {
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
            port: "http".to_owned(),
            family: "IPv4".to_owned(),
            list: list.to_owned(),
            id: 1,
            algorithm: "random".into(),
            slots: 1,
            elsewhere,
            frontends: frontends.iter().map(frontend).collect(),
            backends: backends.iter().map(|backend| backend.parse().unwrap()).collect(),
            packets: 7,
            bytes: 700,
        }
    }

    fn rows(services: &[ServiceView]) -> Vec<String> {
        let words = |row: &str| row.split_whitespace().collect::<Vec<_>>().join(" ");
        table(services).to_string().lines().skip(1).map(words).collect()
    }

    #[test]
    fn families_lists_and_frontends_of_a_port_are_one_row() {
        let node_ports = [("192.0.2.1:30080", "NodePort"), ("[fd00::1]:30080", "NodePort")];
        let services = [
            list("Cluster", &[("10.96.0.9:80", "ClusterIP")], &["10.1.0.1:8080", "10.1.0.2:8080"], false),
            list("Cluster", &[("[fd96::9]:80", "ClusterIP")], &["[fd01::1]:8080"], false),
            list("Local", &node_ports, &["10.1.0.1:8080"], false),
        ];
        let row = "shop/web:http TCP ClusterIP,NodePort 10.96.0.9:80,[fd96::9]:80,node:30080 Cluster,Local snat 3 21";
        assert_eq!(rows(&services), [row]);
    }

    #[test]
    fn a_local_list_without_backends_shows_beside_those_that_are_elsewhere() {
        let cluster = list("Cluster", &[("10.96.0.9:80", "ClusterIP")], &["10.1.0.1:8080"], false);
        let local = list("Local", &[("192.0.2.1:30080", "NodePort")], &[], true);
        let gone = list("Local", &[], &[], false);
        let shown = rows(&[cluster, local.clone(), gone]);
        assert!(shown[0].ends_with(" 1, Local none 14"), "{shown:?}");
        assert!(rows(&[local])[0].ends_with(" none here 7"));
        let none = list("Cluster", &[("10.96.0.9:80", "ClusterIP")], &[], false);
        assert!(rows(&[none])[0].ends_with(" none 7"));
    }
}
