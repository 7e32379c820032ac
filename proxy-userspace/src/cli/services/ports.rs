//! A row for each Service port.

use crate::cli::output::{Column, Row, bucket_end, some_of};
use crate::cli::service_port::ServicePort;

impl Row for ServicePort {
    const COLUMNS: &'static [Column] = &[
        Column::new("NAMESPACE", "namespace"),
        Column::new("NAME", "name"),
        Column::new("PORT", "ports"),
        Column::new("TYPE", "type"),
        Column::new("ADDRESSES", "addresses"),
        Column::new("POLICY", "external_policy").spare(3),
        Column::new("FORWARD", "forwarding").spare(4),
        Column::new("READY", "ready"),
        Column::new("HERE", "here").spare(2),
        Column::new("PACKETS", "packets").spare(5),
        Column::new("DROPS", "drops").spare(1),
        Column::new("PROBLEM", "problem"),
        Column::wide("BYTES", "bytes"),
        Column::wide("ALGORITHM", "algorithm"),
        Column::wide("AFFINITY", "affinity_seconds"),
        Column::wide("OPENED", "opened"),
        Column::wide("ACTIVE", "active"),
        Column::wide("REFUSED", "refused"),
        Column::wide("UNANSWERED", "unanswered"),
        Column::wide("RESET", "reset"),
        Column::wide("P50", "handshakes.p50_microseconds"),
        Column::wide("P99", "handshakes.p99_microseconds"),
        Column::wide("BACKENDS", "backends"),
    ];

    fn cells(&self, is_wide: bool) -> Vec<String> {
        let policy = self.external_policy.as_ref().or(self.internal_policy.as_ref());
        vec![
            self.namespace.clone(),
            self.name.clone(),
            port(self),
            self.kind.clone(),
            addresses(self, is_wide),
            policy.cloned().unwrap_or_default(),
            self.forwarding.clone(),
            self.ready.to_string(),
            self.here.to_string(),
            self.packets.to_string(),
            self.drops().to_string(),
            self.problem.unwrap_or_default().to_owned(),
            self.bytes.to_string(),
            self.algorithm.clone(),
            if self.affinity_seconds == 0 { String::new() } else { format!("{}s", self.affinity_seconds) },
            self.connections.opened.to_string(),
            self.connections.active.to_string(),
            self.connections.refused.to_string(),
            self.unanswered.map(|count| count.to_string()).unwrap_or_default(),
            self.connections.reset.to_string(),
            bucket_end(self.handshakes.p50_microseconds),
            bucket_end(self.handshakes.p99_microseconds),
            all(&self.backends),
        ]
    }

    fn name(&self) -> String {
        self.label()
    }
}

/// Returns the port's name, number and protocol.
fn port(service: &ServicePort) -> String {
    let numbers = if service.ports.is_empty() { &service.node_ports } else { &service.ports };
    let number = format!("{}/{}", some_of(numbers), service.protocol);
    if service.port.is_empty() { number } else { format!("{} {number}", service.port) }
}

/// NodePorts stand for every address of the node that serves them.
fn addresses(service: &ServicePort, is_wide: bool) -> String {
    let addresses = service.addresses.iter().map(ToString::to_string);
    let node_ports = service.node_ports.iter().map(|port| format!("node:{port}"));
    let places: Vec<String> = addresses.chain(node_ports).collect();
    if is_wide { all(&places) } else { some_of(&places) }
}

fn all<T: ToString>(items: &[T]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use crate::cli::output::{Group, List, Style, parse_format};
    use crate::cli::service_port::tests::shop;
    use crate::dataplane::ebpf::read::HandshakesView;

    use super::*;

    #[test]
    fn slow_answers_are_sorted_by_their_time() {
        let [mut db, mut web] = <[ServicePort; 2]>::try_from(shop()).unwrap();
        let mut idle = db.clone();
        (idle.namespace, idle.handshakes) = ("a".to_owned(), HandshakesView::default());
        (db.handshakes.p99_microseconds, web.handshakes.p99_microseconds) = (Some(2048), Some(16_384));
        let ports = [idle, db, web];
        let mut list = List::new("ServiceList", vec![Group::of("ebpf", &ports, true).unwrap()]);
        let style = Style {
            format: &parse_format("name").unwrap(),
            no_headers: false,
            width: None,
            node: &String::new,
        };
        for (column, order) in
            [("p99", "shop/db\nshop/web:http\na/db\n"), ("-p99", "shop/web:http\nshop/db\na/db\n")]
        {
            list.sort(column).unwrap();
            assert_eq!(list.render(&style).unwrap(), order, "{column}");
        }
    }

    #[test]
    fn a_service_port_has_one_row() {
        let [db, web] = shop().try_into().unwrap();
        assert_eq!(
            web.cells(false)[..12],
            [
                "shop",
                "web",
                "http 80/TCP",
                "LoadBalancer",
                "203.0.113.9,10.96.0.9,fd96::9,+1",
                "Local",
                "snat",
                "2",
                "1",
                "21",
                "6",
                ""
            ]
        );
        assert_eq!(web.cells(true)[4], "203.0.113.9,10.96.0.9,fd96::9,node:30080");
        assert_eq!(web.name(), "shop/web:http");
        assert_eq!((db.cells(false)[2].as_str(), db.cells(false)[5].as_str()), ("5432/TCP", "Cluster"));
        assert_eq!(web.cells(false).len(), ServicePort::COLUMNS.len());
    }
}
