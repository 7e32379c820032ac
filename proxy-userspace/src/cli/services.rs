//! `millrace services`.

use super::table::{Table, some_of};
use crate::dataplane::ebpf::read::{FrontendView, ServiceView};

/// One row a frontend; packets are counted for each list, so frontends of one list show the same number.
pub fn table(services: &[ServiceView]) -> Table {
    let mut table = Table::new(&[
        "SERVICE",
        "FAMILY",
        "PROTO",
        "FRONTEND",
        "SCOPE",
        "KIND",
        "LIST",
        "FORWARDING",
        "ALGORITHM",
        "SOURCES",
        "BACKENDS",
        "PACKETS",
    ]);
    for service in services {
        let separator = if service.port.is_empty() { "" } else { ":" };
        let name = format!("{}/{}{separator}{}", service.namespace, service.name, service.port);
        for frontend in &service.frontends {
            table.push([
                name.clone(),
                service.family.clone(),
                frontend.protocol.to_owned(),
                frontend.address.to_string(),
                frontend.scope.to_owned(),
                frontend.kind.to_owned(),
                service.list.clone(),
                frontend.forwarding.to_owned(),
                service.algorithm.to_owned(),
                sources(frontend),
                backends(service),
                service.packets.to_string(),
            ]);
        }
    }
    table
}

fn sources(frontend: &FrontendView) -> String {
    match frontend.source_ranges.as_deref() {
        _ if frontend.inside_only => "cluster".to_owned(),
        None => "all".to_owned(),
        Some([]) => "none".to_owned(),
        Some(ranges) => some_of(ranges),
    }
}

fn backends(service: &ServiceView) -> String {
    match (service.backends.as_slice(), service.elsewhere) {
        ([], true) => "none here".to_owned(),
        ([], false) => "none".to_owned(),
        (backends, _) => some_of(backends),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_has_a_row_for_each_frontend() {
        let frontend = |address: &str, kind, source_ranges, inside_only| FrontendView {
            address: address.parse().unwrap(),
            protocol: "TCP",
            scope: "external",
            kind,
            forwarding: "dsr",
            affinity_seconds: 0,
            source_ranges,
            inside_only,
        };
        let service = ServiceView {
            namespace: "default".to_owned(),
            name: "web".to_owned(),
            port: "http".to_owned(),
            family: "IPv4".to_owned(),
            list: "Local".to_owned(),
            id: 1,
            algorithm: "maglev",
            slots: 4093,
            elsewhere: true,
            frontends: vec![
                frontend("192.0.2.1:30080", "NodePort", None, false),
                frontend("203.0.113.9:80", "LoadBalancer", Some(vec!["10.0.0.0/8".parse().unwrap()]), false),
                frontend("10.96.0.9:80", "ClusterIP", None, true),
            ],
            backends: Vec::new(),
            packets: 7,
            bytes: 700,
        };
        let text = table(&[service]).to_string();
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows.len(), 4);
        assert_eq!(rows[1][..4], ["default/web:http", "IPv4", "TCP", "192.0.2.1:30080"]);
        assert_eq!(
            rows[2][3..],
            [
                "203.0.113.9:80",
                "external",
                "LoadBalancer",
                "Local",
                "dsr",
                "maglev",
                "10.0.0.0/8",
                "none",
                "here",
                "7"
            ]
        );
        assert_eq!((rows[1][9], rows[3][9]), ("all", "cluster"));
    }
}
