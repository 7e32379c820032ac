//! `millrace flows --entries`: a row for each entry of the flow tables.

use std::cmp::Reverse;

use serde::Serialize;

use super::connection::{ends, path};
use crate::cli::output::{Column, Row};
use crate::dataplane::ebpf::read::FlowView;

/// An entry: one direction of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Entry(FlowView);

impl Entry {
    /// Returns the rows. The two directions of a connection stand one below the other.
    pub fn rows(mut flows: Vec<FlowView>) -> Vec<Self> {
        flows.sort_by_cached_key(|flow| (flow.protocol.clone(), ends(flow), Reverse(flow.direction.clone())));
        flows.into_iter().map(Self).collect()
    }
}

impl Row for Entry {
    const COLUMNS: &'static [Column] = &[
        Column::new("PROTO", "protocol"),
        Column::new("CLIENT", "client"),
        Column::new("FRONTEND", "frontend"),
        Column::new("BACKEND", "backend"),
        Column::new("DIRECTION", "direction"),
        Column::new("STATE", "state"),
        Column::new("TABLE", "table").spare(3),
        Column::new("PATH", "path").spare(1),
        Column::new("IDLE", "idle_seconds").spare(2),
        Column::new("SERVICE", "service"),
    ];

    fn cells(&self, _: bool) -> Vec<String> {
        let flow = &self.0;
        let (client, frontend, backend) = ends(flow);
        vec![
            flow.protocol.clone(),
            client.to_string(),
            frontend.to_string(),
            backend.to_string(),
            flow.direction.to_string(),
            flow.state.clone(),
            flow.table.to_string(),
            path(flow).to_owned(),
            format!("{}s", flow.idle_seconds),
            flow.service.clone(),
        ]
    }

    fn name(&self) -> String {
        format!("{}/{}", self.0.source, self.0.protocol.to_lowercase())
    }
}

#[cfg(test)]
mod tests {
    use super::super::connection::tests::{request, translated_reply};
    use super::*;

    #[test]
    fn the_request_stands_above_its_reply() {
        let rows = Entry::rows(vec![translated_reply(), request()]);
        let cells: Vec<String> = rows.iter().map(|row| row.cells(false).join(" ")).collect();
        let ends = "TCP 198.51.100.7:4711 192.0.2.1:30080 10.1.0.5:8080";
        assert_eq!(
            cells,
            [
                format!("{ends} request established established direct 3s default/web:http"),
                format!("{ends} reply closing established snat 1s default/web:http"),
            ]
        );
        assert_eq!(rows[0].cells(false).len(), Entry::COLUMNS.len());
    }
}
