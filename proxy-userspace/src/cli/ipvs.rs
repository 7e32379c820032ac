//! The subcommands' part for IPVS: the views, and their rows.

use std::net::SocketAddr;

use super::error::CliError;
use super::output::{Column, Group, Row, mark, note, owners, ranges, some_of};
use super::select::SelectArgs;
use crate::dataplane::ipvs::OpenError;

pub use crate::dataplane::ipvs::{
    BackendView, Entry, FlowView, IpvsAnswer, IpvsStep, Question, ServiceView, StatusView, backends, explain,
    services, status,
};

/// Reads the chosen connections. Names lines of the kernel's list that can't be read on standard error.
pub fn flows(limit: usize, keep: impl FnMut(&FlowView) -> bool) -> Result<Option<Vec<FlowView>>, OpenError> {
    let Some(found) = crate::dataplane::ipvs::flows(limit, keep)? else { return Ok(None) };
    if found.unread > 0 {
        note(&format!("{} lines of the kernel's list of connections can't be read", found.unread));
    }
    Ok(Some(found.flows))
}

/// Returns the chosen virtual services.
pub fn service_group(
    services: &[ServiceView],
    select: &SelectArgs,
    is_wide: bool,
) -> Result<Group, CliError> {
    let places = |service: &ServiceView| -> Vec<SocketAddr> {
        service.frontends.iter().map(|frontend| frontend.address).collect()
    };
    let is_chosen = |service: &&ServiceView| select.fits_places(&places(service), protocol(service));
    let chosen: Vec<ServiceView> = services.iter().filter(is_chosen).cloned().collect();
    Group::of("ipvs", &chosen, is_wide)
}

/// Returns the places of virtual services, each with its protocol.
pub fn places(services: &[ServiceView]) -> Vec<(&SocketAddr, &str)> {
    let frontends = services.iter().flat_map(|service| &service.frontends);
    frontends.map(|one| (&one.address, one.protocol.as_str())).collect()
}

fn protocol(service: &ServiceView) -> &str {
    service.frontends.first().map_or("", |frontend| frontend.protocol.as_str())
}

/// A virtual service. A marked one may have several frontends, or none if it is left over from a change.
impl Row for ServiceView {
    const COLUMNS: &'static [Column] = &[
        Column::new("FAMILY", "family").spare(7),
        Column::new("PROTO", "protocol"),
        Column::new("FRONTENDS", "frontends"),
        Column::new("SCOPE", "scope"),
        Column::new("MARK", "mark").spare(2),
        Column::new("FORWARDING", "forwarding").spare(4),
        Column::new("SCHEDULER", "scheduler").spare(5),
        Column::new("AFFINITY", "affinity").spare(6),
        Column::new("SOURCES", "sources").spare(3),
        Column::new("BACKENDS", "backends"),
        Column::new("DRAINING", "draining"),
        Column::new("PACKETS", "packets").spare(1),
        Column::wide("BYTES", "bytes"),
    ];

    fn cells(&self, _: bool) -> Vec<String> {
        let first = self.frontends.first();
        let affinity = first.map_or(0, |frontend| frontend.affinity_seconds);
        let addresses: Vec<String> =
            self.frontends.iter().map(|frontend| frontend.address.to_string()).collect();
        vec![
            self.family.clone(),
            protocol(self).to_owned(),
            some_of(&addresses),
            first.map_or("", |frontend| frontend.scope).to_owned(),
            self.mark.map(|mark| format!("{mark:#x}")).unwrap_or_default(),
            first.map_or("", |frontend| frontend.forwarding).to_owned(),
            self.scheduler.clone(),
            if affinity == 0 { String::new() } else { format!("{affinity}s") },
            first.map(|frontend| ranges(frontend.source_ranges.as_deref())).unwrap_or_default(),
            owners(&self.backends, self.elsewhere),
            some_of(&self.draining),
            self.packets.to_string(),
            self.bytes.to_string(),
        ]
    }

    fn name(&self) -> String {
        match (self.frontends.first(), self.mark) {
            (Some(frontend), _) => format!("{}/{}", frontend.address, frontend.protocol.to_lowercase()),
            (None, mark) => format!("{}/mark/{:#x}", self.family, mark.unwrap_or(0)),
        }
    }
}

/// A real server.
impl Row for BackendView {
    const COLUMNS: &'static [Column] = &[
        Column::new("ADDRESS", "address"),
        Column::new("PROTO", "protocol"),
        Column::new("LOCAL", "local"),
        Column::new("METHOD", "method"),
        Column::new("WEIGHT", "weight"),
        Column::new("DRAINING", "draining"),
        Column::new("ACTIVE", "active"),
        Column::new("INACTIVE", "inactive"),
        Column::new("FRONTENDS", "frontends"),
    ];

    fn cells(&self, _: bool) -> Vec<String> {
        vec![
            self.address.to_string(),
            self.protocol.clone(),
            mark(self.local),
            self.method.to_owned(),
            self.weight.to_string(),
            mark(self.weight == 0),
            self.active.to_string(),
            self.inactive.to_string(),
            some_of(&self.frontends),
        ]
    }

    fn name(&self) -> String {
        format!("{}/{}", self.address, self.protocol.to_lowercase())
    }
}

/// A connection, or the entry for a client with session affinity.
impl Row for FlowView {
    const COLUMNS: &'static [Column] = &[
        Column::new("PROTO", "protocol"),
        Column::new("CLIENT", "source"),
        Column::new("FRONTEND", "destination"),
        Column::new("BACKEND", "backend"),
        Column::new("KIND", "kind"),
        Column::new("STATE", "state"),
        Column::new("LEFT", "remaining_seconds"),
    ];

    fn cells(&self, _: bool) -> Vec<String> {
        let destination = self.destination.map(|address| address.to_string());
        let mark = || self.mark.map(|mark| format!("mark {mark:#x}"));
        vec![
            self.protocol.clone(),
            self.source.to_string(),
            destination.or_else(mark).unwrap_or_default(),
            self.backend.to_string(),
            self.kind.to_owned(),
            self.state.clone(),
            format!("{}s", self.remaining_seconds),
        ]
    }

    fn name(&self) -> String {
        format!("{}/{}", self.source, self.protocol.to_lowercase())
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::dataplane::ipvs::FrontendView;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    /// Returns an established connection.
    pub fn connection() -> FlowView {
        FlowView {
            protocol: "TCP".to_owned(),
            kind: "connection",
            source: address("198.51.100.7:4711"),
            destination: Some(address("192.0.2.1:80")),
            mark: None,
            backend: address("10.1.0.5:8080"),
            state: "established".to_owned(),
            remaining_seconds: 899,
        }
    }

    #[test]
    fn a_virtual_service_has_a_row_with_its_frontends() {
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
        let row = "IPv4 UDP 192.0.2.1:53,192.0.2.2:53 external 0x4d100001 dsr rr 90s 10.0.0.0/8 10.1.0.5:5353  7 700";
        assert_eq!(service.cells(false).join(" "), row);
        assert_eq!(left.cells(false).join("|"), "IPv4||||0x4d100001||rr|||none||7|700");
        assert_eq!(
            (service.name().as_str(), left.name().as_str()),
            ("192.0.2.1:53/udp", "IPv4/mark/0x4d100001")
        );
        assert_eq!(left.cells(false).len(), ServiceView::COLUMNS.len());
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
        assert_eq!(
            server(1).cells(false),
            ["[fd00::5]:8080", "TCP", "yes", "masq", "1", "", "3", "1", "[fd00::1]:80"]
        );
        assert_eq!(server(0).cells(false)[4..6], ["0", "yes"]);
        assert_eq!(server(0).cells(false).len(), BackendView::COLUMNS.len());
    }

    #[test]
    fn what_is_remembered_of_a_client_by_a_mark_names_the_mark() {
        let connection = connection();
        let template = FlowView {
            kind: "template",
            source: address("198.51.100.7:0"),
            destination: None,
            mark: Some(0x4d00_0001),
            state: "assured".to_owned(),
            ..connection.clone()
        };
        assert_eq!(
            connection.cells(false).join(" "),
            "TCP 198.51.100.7:4711 192.0.2.1:80 10.1.0.5:8080 connection established 899s"
        );
        assert_eq!(
            template.cells(false).join(" "),
            "TCP 198.51.100.7:0 mark 0x4d000001 10.1.0.5:8080 template assured 899s"
        );
        assert_eq!(template.cells(false).len(), FlowView::COLUMNS.len());
    }
}
