//! Connections, joined from their entries.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::Serialize;

use crate::cli::output::{Column, Row};
use crate::dataplane::ebpf::read::FlowView;

/// Client, frontend and backend.
pub type Ends = (SocketAddr, SocketAddr, SocketAddr);

/// A connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Connection {
    /// `TCP`, `UDP`, `SCTP`, or the protocol's number.
    pub protocol: String,
    pub client: SocketAddr,
    pub frontend: SocketAddr,
    pub backend: SocketAddr,
    /// The state of the entry that saw the last packet.
    pub state: String,
    /// `direct`, `snat`, `sent on` or `tunnelled`.
    pub path: &'static str,
    /// This node's address and port that the backend sees as the client (SNAT).
    pub snat: Option<SocketAddr>,
    /// Seconds since the last packet of either direction.
    pub idle_seconds: u32,
    /// The service, as `namespace/name:port`, or its id without a name.
    pub service: String,
    /// The entries, one for each direction that passes here.
    pub entries: Vec<FlowView>,
}

impl Connection {
    /// Joins the entries of each connection. Sorted by protocol and ends.
    pub fn join(entries: Vec<FlowView>) -> Vec<Self> {
        let mut connections: BTreeMap<(String, Ends), Vec<FlowView>> = BTreeMap::new();
        for entry in entries {
            connections.entry((entry.protocol.clone(), ends(&entry))).or_default().push(entry);
        }
        connections
            .into_iter()
            .filter_map(|((protocol, ends), entries)| Self::of(protocol, ends, entries))
            .collect()
    }

    fn of(protocol: String, (client, frontend, backend): Ends, mut entries: Vec<FlowView>) -> Option<Self> {
        entries.sort_by_key(|entry| Reverse(entry.direction.clone()));
        let last = entries.iter().min_by_key(|entry| entry.idle_seconds)?;
        let request = entries.first()?;
        Some(Self {
            protocol,
            client,
            frontend,
            backend,
            state: last.state.clone(),
            path: path(request),
            snat: entries.iter().find_map(snat),
            idle_seconds: last.idle_seconds,
            service: request.service.clone(),
            entries,
        })
    }
}

/// Returns client, frontend and backend for an entry of either direction.
///
/// An encapsulated packet keeps the frontend as its destination, so its backend is beside the tuple.
pub fn ends(flow: &FlowView) -> Ends {
    if flow.direction == "reply" {
        let client = flow.new_destination.unwrap_or(flow.destination);
        return (client, flow.new_source.unwrap_or(flow.source), flow.source);
    }
    let backend = flow.new_destination.or(flow.backend).unwrap_or(flow.destination);
    (flow.source, flow.destination, backend)
}

/// Returns the way of a packet: `sent on` by the director of DSR, `tunnelled` on the backend's node.
pub const fn path(flow: &FlowView) -> &'static str {
    match flow {
        FlowView { encapsulated: true, .. } => "sent on",
        FlowView { decapsulated: true, .. } => "tunnelled",
        FlowView { translated: true, .. } => "snat",
        _ => "direct",
    }
}

/// Returns this node's address and port that the backend sees.
fn snat(flow: &FlowView) -> Option<SocketAddr> {
    if !flow.translated {
        return None;
    }
    if flow.direction == "reply" { Some(flow.destination) } else { flow.new_source }
}

impl Row for Connection {
    const COLUMNS: &'static [Column] = &[
        Column::new("PROTO", "protocol"),
        Column::new("CLIENT", "client"),
        Column::new("FRONTEND", "frontend"),
        Column::new("BACKEND", "backend"),
        Column::new("STATE", "state"),
        Column::new("PATH", "path").spare(1),
        Column::new("IDLE", "idle_seconds").spare(2),
        Column::new("SERVICE", "service"),
        Column::wide("SNAT", "snat"),
        Column::wide("ENTRIES", "entry_count"),
    ];

    fn cells(&self, _: bool) -> Vec<String> {
        vec![
            self.protocol.clone(),
            self.client.to_string(),
            self.frontend.to_string(),
            self.backend.to_string(),
            self.state.clone(),
            self.path.to_owned(),
            format!("{}s", self.idle_seconds),
            self.service.clone(),
            self.snat.map(|snat| snat.to_string()).unwrap_or_default(),
            self.entries.len().to_string(),
        ]
    }

    fn name(&self) -> String {
        format!("{}/{}", self.client, self.protocol.to_lowercase())
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    /// Returns the request's entry of a connection to `default/web:http`.
    pub fn request() -> FlowView {
        FlowView {
            table: "established".into(),
            protocol: "TCP".to_owned(),
            source: address("198.51.100.7:4711"),
            destination: address("192.0.2.1:30080"),
            new_source: None,
            new_destination: Some(address("10.1.0.5:8080")),
            state: "established".to_owned(),
            direction: "request".into(),
            encapsulated: false,
            decapsulated: false,
            translated: false,
            service: "default/web:http".to_owned(),
            backend: Some(address("10.1.0.5:8080")),
            idle_seconds: 3,
        }
    }

    /// Returns the reply's entry of the same connection, by SNAT.
    pub fn translated_reply() -> FlowView {
        FlowView {
            source: address("10.1.0.5:8080"),
            destination: address("172.16.0.1:61000"),
            new_source: Some(address("192.0.2.1:30080")),
            new_destination: Some(address("198.51.100.7:4711")),
            direction: "reply".into(),
            translated: true,
            state: "closing".to_owned(),
            idle_seconds: 1,
            ..request()
        }
    }

    #[test]
    fn both_directions_of_a_connection_name_the_same_three_ends() {
        let request = request();
        let wanted = (address("198.51.100.7:4711"), address("192.0.2.1:30080"), address("10.1.0.5:8080"));
        let reply = FlowView {
            destination: request.source,
            new_destination: None,
            translated: false,
            ..translated_reply()
        };
        let sent_on = FlowView { new_destination: None, encapsulated: true, ..request.clone() };
        let own = Some(address("172.16.0.1:61000"));
        let translated = FlowView { new_source: own, translated: true, ..request.clone() };
        for flow in [&request, &reply, &sent_on, &translated, &translated_reply()] {
            assert_eq!(ends(flow), wanted);
        }
        assert_eq!((path(&translated), path(&sent_on), path(&request)), ("snat", "sent on", "direct"));
    }

    #[test]
    fn the_entries_of_a_connection_are_one_row() {
        let own = address("172.16.0.1:61000");
        let translated = FlowView { new_source: Some(own), translated: true, ..request() };
        let another = FlowView { source: address("198.51.100.8:4711"), ..request() };
        let joined = Connection::join(vec![translated_reply(), another, translated]);
        assert_eq!(joined.len(), 2);
        let first = &joined[0];
        assert_eq!(
            (first.path, first.snat, first.idle_seconds, first.entries.len()),
            ("snat", Some(own), 1, 2)
        );
        assert_eq!((first.state.as_str(), first.entries[0].direction.as_ref()), ("closing", "request"));
        assert_eq!(
            first.cells(false).join(" "),
            "TCP 198.51.100.7:4711 192.0.2.1:30080 10.1.0.5:8080 closing snat 1s default/web:http 172.16.0.1:61000 2"
        );
        assert_eq!((joined[1].snat, joined[1].entries.len()), (None, 1));
        assert_eq!(first.cells(false).len(), Connection::COLUMNS.len());
    }
}
