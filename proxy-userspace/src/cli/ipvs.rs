//! The subcommands' part for IPVS: the views, and their tables.

use super::shown::IpvsTable;
use super::table::{Table, mark, owners, ranges, some_of};
use crate::dataplane::ipvs::{BackendView, FlowView, FrontendView, OpenError, ServiceView};

pub use crate::dataplane::ipvs::{StatusView, backends, services, status};

/// Reads the connections. Names lines of the kernel's list that can't be read on standard error.
pub fn flows(limit: usize) -> Result<Option<Vec<FlowView>>, OpenError> {
    let Some(found) = crate::dataplane::ipvs::flows(limit)? else { return Ok(None) };
    if found.unread > 0 {
        eprintln!("millrace: {} lines of the kernel's list of connections can't be read", found.unread);
    }
    Ok(Some(found.flows))
}

impl IpvsTable for Vec<ServiceView> {
    fn table(&self) -> Table {
        services_table(self)
    }
}

impl IpvsTable for Vec<BackendView> {
    fn table(&self) -> Table {
        backends_table(self)
    }
}

impl IpvsTable for Vec<FlowView> {
    fn table(&self) -> Table {
        flows_table(self)
    }
}

/// Returns the table with one row; `fails_on` comes from the agent or the kernel.
pub fn status_table(view: &StatusView, fails_on: &str) -> Table {
    let mut table = Table::new(&[
        "MODE",
        "AGENT",
        "VIRTUAL SERVICES",
        "SERVERS",
        "DRAINING",
        "CONNECTIONS",
        "ADDRESSES",
        "FORGED TUNNELS",
        "FAILS ON",
    ]);
    let agent = if view.agent_alive { "alive" } else { "gone; the data path goes on" };
    let counts = [view.virtual_services, view.servers, view.draining].map(|count| count.to_string());
    let [services, servers, draining] = counts;
    let (connections, addresses) = (view.connections.to_string(), view.addresses.to_string());
    let (mode, agent) = (view.mode.to_owned(), agent.to_owned());
    let (forged, fails_on) = (view.forged_tunnel.to_string(), fails_on.to_owned());
    table.push([mode, agent, services, servers, draining, connections, addresses, forged, fails_on]);
    table
}

/// Returns a row for each frontend. A virtual service without an address has a row without one.
fn services_table(services: &[ServiceView]) -> Table {
    let mut table = Table::new(&[
        "FAMILY",
        "PROTO",
        "FRONTEND",
        "SCOPE",
        "MARK",
        "FORWARDING",
        "SCHEDULER",
        "AFFINITY",
        "SOURCES",
        "BACKENDS",
        "DRAINING",
        "PACKETS",
        "BYTES",
    ]);
    for service in services {
        let row = |frontend: Option<&FrontendView>| {
            let affinity = frontend.map_or(0, |frontend| frontend.affinity_seconds);
            [
                service.family.clone(),
                frontend.map(|frontend| frontend.protocol.clone()).unwrap_or_default(),
                frontend.map(|frontend| frontend.address.to_string()).unwrap_or_default(),
                frontend.map_or("", |frontend| frontend.scope).to_owned(),
                service.mark.map(|mark| format!("{mark:#x}")).unwrap_or_default(),
                frontend.map_or("", |frontend| frontend.forwarding).to_owned(),
                service.scheduler.clone(),
                if affinity == 0 { String::new() } else { format!("{affinity}s") },
                frontend.map(|frontend| ranges(frontend.source_ranges.as_deref())).unwrap_or_default(),
                owners(&service.backends, service.elsewhere),
                some_of(&service.draining),
                service.packets.to_string(),
                service.bytes.to_string(),
            ]
        };
        if service.frontends.is_empty() {
            table.push(row(None));
        }
        for frontend in &service.frontends {
            table.push(row(Some(frontend)));
        }
    }
    table
}

/// Returns a row for each real server.
fn backends_table(backends: &[BackendView]) -> Table {
    let mut table = Table::new(&[
        "ADDRESS",
        "PROTO",
        "LOCAL",
        "METHOD",
        "WEIGHT",
        "DRAINING",
        "ACTIVE",
        "INACTIVE",
        "FRONTENDS",
    ]);
    for backend in backends {
        table.push([
            backend.address.to_string(),
            backend.protocol.clone(),
            mark(backend.local),
            backend.method.to_owned(),
            backend.weight.to_string(),
            mark(backend.weight == 0),
            backend.active.to_string(),
            backend.inactive.to_string(),
            some_of(&backend.frontends),
        ]);
    }
    table
}

/// Returns a row for each connection.
fn flows_table(flows: &[FlowView]) -> Table {
    let mut table = Table::new(&["PROTO", "CLIENT", "FRONTEND", "BACKEND", "KIND", "STATE", "LEFT"]);
    let mut flows: Vec<&FlowView> = flows.iter().collect();
    flows.sort_by_key(|flow| (&flow.protocol, flow.source, flow.destination, flow.mark, flow.backend));
    for flow in flows {
        let destination = flow.destination.map(|address| address.to_string());
        let mark = || flow.mark.map(|mark| format!("mark {mark:#x}"));
        table.push([
            flow.protocol.clone(),
            flow.source.to_string(),
            destination.or_else(mark).unwrap_or_default(),
            flow.backend.to_string(),
            flow.kind.to_owned(),
            flow.state.clone(),
            format!("{}s", flow.remaining_seconds),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_virtual_service_has_a_row_for_each_frontend_and_one_without_any() {
        let frontend = |address: &str| FrontendView {
            address: address.parse().unwrap(),
            protocol: "UDP".to_owned(),
            scope: "external",
            forwarding: "dsr",
            affinity_seconds: 90,
            source_ranges: Some(vec!["10.0.0.0/8".parse().unwrap()]),
        };
        let service = ServiceView {
            family: "IPv4".to_owned(),
            mark: Some(0x4d10_0001),
            scheduler: "rr".to_owned(),
            elsewhere: false,
            frontends: vec![frontend("192.0.2.1:53"), frontend("192.0.2.2:53")],
            backends: vec!["10.1.0.5:5353".parse().unwrap()],
            draining: Vec::new(),
            packets: 7,
            bytes: 700,
        };
        let left = ServiceView { frontends: Vec::new(), backends: Vec::new(), ..service.clone() };
        let text = services_table(&[service, left]).to_string();
        let rows: Vec<String> =
            text.lines().skip(1).map(|row| row.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        let row = |address| {
            format!("IPv4 UDP {address}:53 external 0x4d100001 dsr rr 90s 10.0.0.0/8 10.1.0.5:5353 - 7 700")
        };
        assert_eq!(rows[..2], [row("192.0.2.1"), row("192.0.2.2")]);
        assert_eq!(rows[2..], ["IPv4 - - - 0x4d100001 - rr - - none - 7 700"]);
    }

    #[test]
    fn a_server_that_drains_is_marked() {
        let server = |weight| BackendView {
            address: "[fd00::5]:8080".parse().unwrap(),
            protocol: "TCP".to_owned(),
            local: true,
            weight,
            method: "masq",
            active: 3,
            inactive: 1,
            frontends: vec!["[fd00::1]:80".parse().unwrap()],
        };
        let text = backends_table(&[server(1), server(0)]).to_string();
        let rows: Vec<Vec<&str>> = text.lines().map(|row| row.split_whitespace().collect()).collect();
        assert_eq!(rows[1], ["[fd00::5]:8080", "TCP", "yes", "masq", "1", "-", "3", "1", "[fd00::1]:80"]);
        assert_eq!(rows[2][4..6], ["0", "yes"]);
    }

    #[test]
    fn what_is_remembered_of_a_client_by_a_mark_names_the_mark() {
        let connection = FlowView {
            protocol: "TCP".to_owned(),
            kind: "connection",
            source: address("198.51.100.7:4711"),
            destination: Some(address("192.0.2.1:80")),
            mark: None,
            backend: address("10.1.0.5:8080"),
            state: "established".to_owned(),
            remaining_seconds: 899,
        };
        let template = FlowView {
            kind: "template",
            source: address("198.51.100.7:0"),
            destination: None,
            mark: Some(0x4d00_0001),
            state: "assured".to_owned(),
            ..connection.clone()
        };
        let text = flows_table(&[connection, template]).to_string();
        let rows: Vec<String> =
            text.lines().skip(1).map(|row| row.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(
            rows,
            [
                "TCP 198.51.100.7:0 mark 0x4d000001 10.1.0.5:8080 template assured 899s",
                "TCP 198.51.100.7:4711 192.0.2.1:80 10.1.0.5:8080 connection established 899s",
            ]
        );
    }
}
