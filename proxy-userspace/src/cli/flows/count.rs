//! `millrace flows --count-by`: connections counted.

use std::collections::BTreeMap;

use clap::ValueEnum;
use serde::Serialize;

use super::connection::ends;
use crate::cli::output::{Column, Row};
use crate::dataplane::ebpf::read::FlowView;
use crate::dataplane::ipvs;

/// The property to count by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CountBy {
    /// Address of the client
    Client,
    /// Service; with IPVS, its frontend
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

/// A count of connections while their entries are read. The tables may have millions of them, so none is kept.
#[derive(Debug)]
pub struct Counter {
    by: CountBy,
    counts: BTreeMap<String, usize>,
}

impl Counter {
    /// Returns a count of nothing yet.
    pub const fn new(by: CountBy) -> Self {
        Self { by, counts: BTreeMap::new() }
    }

    /// Counts the connection of an entry. `twin` returns the entry of the other direction, if that is chosen as well.
    ///
    /// Of two entries the request's counts, and the last packet's has the state.
    pub fn add(&mut self, flow: &FlowView, twin: impl FnOnce() -> Option<FlowView>) {
        let is_reply = flow.direction == "reply";
        let twin = if is_reply || self.by == CountBy::State { twin() } else { None };
        if is_reply && twin.is_some() {
            return;
        }
        let (client, _, backend) = ends(flow);
        self.count(match self.by {
            CountBy::Client => client.ip().to_string(),
            CountBy::Service => flow.service.clone(),
            CountBy::Backend => backend.to_string(),
            CountBy::State => {
                let later = twin.filter(|twin| twin.idle_seconds < flow.idle_seconds);
                later.map_or_else(|| flow.state.clone(), |twin| twin.state)
            }
        });
    }

    /// Counts a connection of IPVS, which knows a Service by its frontend. A template is none.
    pub fn add_ipvs(&mut self, flow: &ipvs::FlowView) {
        if flow.kind != "connection" {
            return;
        }
        self.count(match self.by {
            CountBy::Client => flow.source.ip().to_string(),
            CountBy::Service => flow.destination.map(|frontend| frontend.to_string()).unwrap_or_default(),
            CountBy::Backend => flow.backend.to_string(),
            CountBy::State => flow.state.clone(),
        });
    }

    fn count(&mut self, value: String) {
        *self.counts.entry(value).or_default() += 1;
    }

    /// Returns the counts, the most frequent value first.
    pub fn rows(self) -> Vec<Count> {
        let counts = self.counts.into_iter();
        let mut counts: Vec<Count> =
            counts.map(|(value, connections)| Count { value, connections }).collect();
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
    use crate::cli::ipvs::tests::connection;

    fn rows(counter: Counter) -> Vec<String> {
        counter.rows().iter().map(|count| count.cells(false).join(" ")).collect()
    }

    #[test]
    fn a_connection_counts_once_and_the_most_frequent_value_is_first() {
        let from = |client: &str| FlowView { source: address(client), ..request() };
        let other_reply = FlowView { new_destination: Some(address("198.51.100.8:1")), ..translated_reply() };
        let counted = |by: CountBy| {
            let mut counter = Counter::new(by);
            counter.add(&translated_reply(), || Some(request()));
            counter.add(&request(), || Some(translated_reply()));
            counter.add(&other_reply, || None);
            counter.add(&from("198.51.100.9:1"), || None);
            counter.add(&from("198.51.100.9:2"), || None);
            rows(counter)
        };
        assert_eq!(counted(CountBy::Client), ["198.51.100.9 2", "198.51.100.7 1", "198.51.100.8 1"]);
        assert_eq!(counted(CountBy::State), ["closing 2", "established 2"]);
        assert_eq!(counted(CountBy::Service), ["default/web:http 4"]);
        assert_eq!(counted(CountBy::Backend), ["10.1.0.5:8080 4"]);
    }

    #[test]
    fn a_connection_of_ipvs_counts_by_its_frontend_and_a_template_is_none() {
        let connection = ipvs::FlowView { state: "fin_wait".to_owned(), ..connection() };
        for (by, row) in [
            (CountBy::Client, "198.51.100.7 1"),
            (CountBy::Service, "192.0.2.1:80 1"),
            (CountBy::Backend, "10.1.0.5:8080 1"),
            (CountBy::State, "fin_wait 1"),
        ] {
            let mut counter = Counter::new(by);
            counter.add_ipvs(&connection);
            counter.add_ipvs(&ipvs::FlowView { kind: "template", ..connection.clone() });
            assert_eq!(rows(counter), [row]);
        }
    }
}
