//! `millrace flows --count-by`: connections counted.

use std::collections::BTreeMap;

use clap::ValueEnum;
use serde::Serialize;

use super::connection::Connection;
use crate::cli::output::{Column, Row};

/// The property to count by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CountBy {
    /// Address of the client
    Client,
    /// Service
    Service,
    /// Backend
    Backend,
    /// State
    State,
}

/// The number of connections with one value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Count {
    value: String,
    connections: usize,
}

impl CountBy {
    /// Counts connections, the most frequent value first.
    pub fn count(self, connections: &[Connection]) -> Vec<Count> {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for connection in connections {
            let value = match self {
                Self::Client => connection.client.ip().to_string(),
                Self::Service => connection.service.clone(),
                Self::Backend => connection.backend.to_string(),
                Self::State => connection.state.clone(),
            };
            *counts.entry(value).or_default() += 1;
        }
        let mut counts: Vec<Count> =
            counts.into_iter().map(|(value, connections)| Count { value, connections }).collect();
        counts.sort_by_key(|count| std::cmp::Reverse(count.connections));
        counts
    }
}

impl Row for Count {
    const COLUMNS: &'static [Column] =
        &[Column::new("VALUE", "value"), Column::new("CONNECTIONS", "connections")];

    fn cells(&self, _: bool) -> Vec<String> {
        vec![self.value.clone(), self.connections.to_string()]
    }

    fn name(&self) -> String {
        self.value.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::super::connection::tests::{address, request, translated_reply};
    use super::*;
    use crate::dataplane::ebpf::read::FlowView;

    #[test]
    fn the_most_frequent_value_is_first() {
        let from = |client: &str| FlowView { source: address(client), ..request() };
        let entries = vec![request(), translated_reply(), from("198.51.100.9:1"), from("198.51.100.9:2")];
        let connections = Connection::join(entries);
        let counted = |by: CountBy| -> Vec<String> {
            by.count(&connections).iter().map(|count| count.cells(false).join(" ")).collect()
        };
        assert_eq!(counted(CountBy::Client), ["198.51.100.9 2", "198.51.100.7 1"]);
        assert_eq!(counted(CountBy::State), ["established 2", "closing 1"]);
        assert_eq!(counted(CountBy::Service), ["default/web:http 3"]);
        assert_eq!(counted(CountBy::Backend), ["10.1.0.5:8080 3"]);
    }
}
