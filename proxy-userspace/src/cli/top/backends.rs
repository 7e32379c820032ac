//! Rates of endpoints.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::Interval;
use super::rate::{rate, some_rate};
use crate::cli::output::{Column, Row, some_of};
use crate::cli::select::SelectArgs;
use crate::dataplane::ebpf::read::BackendView;

/// The rates of an endpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BackendRate {
    /// Address and port.
    address: SocketAddr,
    /// Address of its node; none for this one.
    node: Option<IpAddr>,
    /// On this node.
    local: bool,
    /// Connections that were opened.
    connections_per_second: f64,
    /// Connections that are established now.
    active: u64,
    /// Connections that it refused.
    refused_per_second: f64,
    /// Established connections that it ended by a RST.
    reset_per_second: f64,
    /// Services with a slot of it.
    services: Vec<String>,
}

/// Returns a row for each endpoint that both readings have and that is chosen.
pub fn rows(interval: &Interval<'_>, select: &SelectArgs) -> Vec<BackendRate> {
    let key = |one: &BackendView| (one.address, one.id, one.generation);
    let before: BTreeMap<_, _> = interval.before.backends.iter().map(|one| (key(one), one)).collect();
    let is_chosen = |one: &&BackendView| {
        let labels = &interval.now.services;
        let is_named = one.services.iter().any(|label| labels.contains_key(label));
        select.is_all() || is_named || select.is_at(one.address, "")
    };
    let chosen = interval.now.backends.iter().filter(is_chosen);
    chosen.filter_map(|now| Some(BackendRate::of(interval, before.get(&key(now))?, now))).collect()
}

impl BackendRate {
    fn of(interval: &Interval<'_>, before: &BackendView, now: &BackendView) -> Self {
        let (was, is) = (&before.connections, &now.connections);
        Self {
            address: now.address,
            node: now.node,
            local: now.local,
            connections_per_second: interval.per_second(was.opened, is.opened),
            active: is.active,
            refused_per_second: interval.per_second(was.refused, is.refused),
            reset_per_second: interval.per_second(was.reset, is.reset),
            services: now.services.clone(),
        }
    }
}

impl Row for BackendRate {
    const COLUMNS: &'static [Column] = &[
        Column::new("ADDRESS", "address"),
        Column::new("NODE", "node").spare(1),
        Column::new("CONN/S", "connections_per_second"),
        Column::new("ACTIVE", "active"),
        Column::new("REFUSED/S", "refused_per_second"),
        Column::new("RESET/S", "reset_per_second").spare(2),
        Column::new("SERVICES", "services"),
    ];

    fn cells(&self, is_wide: bool) -> Vec<String> {
        let node = if self.local { Some("here".to_owned()) } else { self.node.map(|node| node.to_string()) };
        vec![
            self.address.to_string(),
            node.unwrap_or_default(),
            rate(self.connections_per_second),
            self.active.to_string(),
            some_rate(self.refused_per_second),
            some_rate(self.reset_per_second),
            if is_wide { self.services.join(",") } else { some_of(&self.services) },
        ]
    }

    fn name(&self) -> String {
        self.address.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{interval, reading};
    use super::*;
    use crate::cli::argument::parsed;

    fn rates(arguments: &str) -> Vec<(String, f64)> {
        let (before, mut now) = (reading(), reading());
        now.backends[0].connections.opened += 30;
        // Another endpoint has the id of the last one now.
        now.backends[2].generation = 5;
        let select: SelectArgs = parsed(arguments);
        if !select.is_all() {
            // No Service has the address of an endpoint.
            now.services.clear();
        }
        let rows = rows(&interval(&before, &now, 2.0), &select);
        rows.iter().map(|row| (row.address.to_string(), row.connections_per_second)).collect()
    }

    #[test]
    fn an_endpoint_is_compared_with_itself_alone() {
        assert_eq!(rates(""), [("10.1.0.1:8080".to_owned(), 15.0), ("10.1.0.2:8080".to_owned(), 0.0)]);
        assert_eq!(rates("10.1.0.2"), [("10.1.0.2:8080".to_owned(), 0.0)]);
    }

    #[test]
    fn a_row_has_a_cell_for_each_column() {
        let reading = reading();
        let interval = interval(&reading, &reading, 1.0);
        let row = &rows(&interval, &parsed(""))[0];
        assert_eq!(row.cells(false), ["10.1.0.1:8080", "here", "0", "0", "", "", "shop/web:http"]);
        assert_eq!(row.cells(false).len(), BackendRate::COLUMNS.len());
    }
}
