//! `millrace backends`.

use super::shown::Shown;
use super::table::{Table, mark, some_of};
use super::{CliError, Show, ipvs};
use crate::dataplane::ebpf::read::{BackendView, PinnedMaps};

/// Prints the endpoints.
pub fn run(show: &Show) -> Result<(), CliError> {
    let shown = Shown::read(show, PinnedMaps::backends, ipvs::backends)?;
    show.print(&shown, |shown| shown.tables(|list| table(list)))
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
