//! `millrace backends`.

use super::shown::Shown;
use super::table::{Table, mark, some_of};
use super::{CliError, Show};
use crate::dataplane::ebpf::read::{BackendView, PinnedMaps};
use crate::dataplane::ipvs;

/// Prints the endpoints.
pub fn run(show: &Show) -> Result<(), CliError> {
    let shown = Shown::read(show, PinnedMaps::backends, ipvs::backends)?;
    show.print(&shown, |shown| shown.tables(|list| table(list), |list| of_ipvs(list)))
}

/// One row an endpoint.
fn table(backends: &[BackendView]) -> Table {
    let mut table = Table::new(&[
        "ADDRESS",
        "ID",
        "GENERATION",
        "LOCAL",
        "POD",
        "READY",
        "SERVING",
        "NODE",
        "HINT",
        "SERVICES",
    ]);
    for backend in backends {
        table.push([
            backend.address.to_string(),
            backend.id.to_string(),
            backend.generation.to_string(),
            mark(backend.local),
            mark(backend.pod),
            mark(backend.ready),
            mark(backend.serving),
            backend.node.map(|node| node.to_string()).unwrap_or_default(),
            if backend.hint == 0 { String::new() } else { backend.hint.to_string() },
            if backend.exists { some_of(&backend.services) } else { "rests".to_owned() },
        ]);
    }
    table
}

/// One row a real server.
fn of_ipvs(backends: &[ipvs::BackendView]) -> Table {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_drains_is_marked() {
        let server = |weight| ipvs::BackendView {
            address: "[fd00::5]:8080".parse().unwrap(),
            protocol: "TCP".to_owned(),
            local: true,
            weight,
            method: "masq",
            active: 3,
            inactive: 1,
            frontends: vec!["[fd00::1]:80".parse().unwrap()],
        };
        let text = of_ipvs(&[server(1), server(0)]).to_string();
        let rows: Vec<Vec<&str>> = text.lines().map(|row| row.split_whitespace().collect()).collect();
        assert_eq!(rows[1], ["[fd00::5]:8080", "TCP", "yes", "masq", "1", "-", "3", "1", "[fd00::1]:80"]);
        assert_eq!(rows[2][4..6], ["0", "yes"]);
    }
}
