//! `millrace services --frontends`: a row for each frontend.

use std::net::SocketAddr;

use serde::Serialize;

use crate::cli::output::{Column, Row, owners, ranges};
use crate::cli::service_port::ServicePort;
use crate::dataplane::ebpf::read::FrontendView;

/// A frontend with its list. Packets are counted for each list, so frontends of one list show the same number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FrontendRow {
    service: String,
    family: String,
    #[serde(flatten)]
    pub frontend: FrontendView,
    list: String,
    id: u32,
    algorithm: String,
    slots: u32,
    elsewhere: bool,
    backends: Vec<SocketAddr>,
    packets: u64,
    bytes: u64,
}

impl FrontendRow {
    /// Returns the rows of a Service port.
    pub fn of(port: &ServicePort) -> Vec<Self> {
        let rows = port.lists.iter().flat_map(|list| {
            list.frontends.iter().map(|frontend| Self {
                service: port.label(),
                family: list.family.clone(),
                frontend: frontend.clone(),
                list: list.list.clone(),
                id: list.id,
                algorithm: list.algorithm.to_string(),
                slots: list.slots,
                elsewhere: list.elsewhere,
                backends: list.backends.clone(),
                packets: list.packets,
                bytes: list.bytes,
            })
        });
        rows.collect()
    }
}

impl Row for FrontendRow {
    const COLUMNS: &'static [Column] = &[
        Column::new("SERVICE", "service"),
        Column::new("FAMILY", "family").spare(6),
        Column::new("PROTO", "protocol"),
        Column::new("FRONTEND", "address"),
        Column::new("SCOPE", "scope").spare(1),
        Column::new("KIND", "kind").spare(2),
        Column::new("LIST", "list"),
        Column::new("FORWARDING", "forwarding").spare(4),
        Column::new("ALGORITHM", "algorithm").spare(5),
        Column::new("SOURCES", "source_ranges"),
        Column::new("BACKENDS", "backends"),
        Column::new("PACKETS", "packets").spare(3),
        Column::wide("BYTES", "bytes"),
        Column::wide("ID", "id"),
        Column::wide("SLOTS", "slots"),
    ];

    fn cells(&self, _: bool) -> Vec<String> {
        vec![
            self.service.clone(),
            self.family.clone(),
            self.frontend.protocol.to_string(),
            self.frontend.address.to_string(),
            self.frontend.scope.to_string(),
            self.frontend.kind.to_string(),
            self.list.clone(),
            self.frontend.forwarding.to_string(),
            self.algorithm.clone(),
            sources(&self.frontend),
            owners(&self.backends, self.elsewhere),
            self.packets.to_string(),
            self.bytes.to_string(),
            self.id.to_string(),
            self.slots.to_string(),
        ]
    }

    fn name(&self) -> String {
        format!("{}/{}", self.frontend.address, self.frontend.protocol.to_lowercase())
    }
}

fn sources(frontend: &FrontendView) -> String {
    if frontend.inside_only {
        return "cluster".to_owned();
    }
    ranges(frontend.source_ranges.as_deref())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::service_port::tests::list;

    #[test]
    fn a_service_has_a_row_for_each_frontend() {
        let frontends = [
            ("192.0.2.1:30080", "NodePort"),
            ("203.0.113.9:80", "LoadBalancer"),
            ("10.96.0.9:80", "ClusterIP"),
        ];
        let mut list = list("default/web:http", "Local", &frontends, &[]);
        list.elsewhere = true;
        list.frontends[1].source_ranges = Some(vec!["10.0.0.0/8".parse().unwrap()]);
        list.frontends[2].inside_only = true;
        let [port] = ServicePort::join(vec![list]).try_into().unwrap();
        let rows = FrontendRow::of(&port);
        assert_eq!(rows.len(), 3);
        let cells = |row: usize| rows[row].cells(false);
        assert_eq!(cells(0)[..4], ["default/web:http", "IPv4", "TCP", "192.0.2.1:30080"]);
        assert_eq!(
            cells(1)[3..12],
            [
                "203.0.113.9:80",
                "external",
                "LoadBalancer",
                "Local",
                "snat",
                "random",
                "10.0.0.0/8",
                "none here",
                "7"
            ]
        );
        assert_eq!((cells(0)[9].as_str(), cells(2)[9].as_str()), ("all", "cluster"));
        assert_eq!(rows[1].name(), "203.0.113.9:80/tcp");
        assert_eq!(cells(0).len(), FrontendRow::COLUMNS.len());
    }
}
