//! `millrace flows`.

use std::cmp::Reverse;
use std::net::SocketAddr;

use clap::Args;

use super::shown::Shown;
use super::table::Table;
use super::{CliError, Show, ipvs};
use crate::config::Refused;
use crate::dataplane::ebpf::read::FlowView;

/// Flags of `millrace flows`.
#[derive(Args, Clone, Debug)]
pub struct FlowsArgs {
    #[command(flatten)]
    show: Show,
    /// Limit of the entries to show; a connection has two, with IPVS one
    #[arg(long, value_name = "ENTRIES", default_value_t = 1000, value_parser = entries, allow_negative_numbers = true)]
    limit: usize,
}

/// Prints the flow entries, and a line if there are more.
pub fn run(args: &FlowsArgs) -> Result<(), CliError> {
    let limit = args.limit;
    let shown = Shown::read(&args.show, |maps| maps.flows(limit), || ipvs::flows(limit))?;
    args.show.print(&shown, |shown| shown.tables(|flows| table(flows)))?;
    if shown.longest() == limit {
        eprintln!("millrace: {limit} entries shown, there may be more: see --limit");
    }
    Ok(())
}

fn entries(text: &str) -> Result<usize, Refused> {
    let entries = text.parse().ok().filter(|entries| *entries > 0);
    entries.ok_or_else(|| Refused::new(text, "a number from 1 on"))
}

fn table(flows: &[FlowView]) -> Table {
    let mut table = Table::new(&[
        "PROTO",
        "CLIENT",
        "FRONTEND",
        "BACKEND",
        "DIRECTION",
        "STATE",
        "TABLE",
        "PATH",
        "IDLE",
        "SERVICE",
    ]);
    // The two directions of a connection are printed one below the other.
    let mut flows: Vec<&FlowView> = flows.iter().collect();
    flows.sort_by_cached_key(|flow| (flow.protocol.clone(), ends(flow), Reverse(flow.direction.clone())));
    for flow in flows {
        let (client, frontend, backend) = ends(flow);
        table.push([
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
        ]);
    }
    table
}

/// Returns client, frontend and backend for an entry of either direction.
///
/// An encapsulated packet keeps the frontend as its destination, so its backend is beside the tuple.
fn ends(flow: &FlowView) -> (SocketAddr, SocketAddr, SocketAddr) {
    if flow.direction == "reply" {
        let client = flow.new_destination.unwrap_or(flow.destination);
        return (client, flow.new_source.unwrap_or(flow.source), flow.source);
    }
    let backend = flow.new_destination.or(flow.backend).unwrap_or(flow.destination);
    (flow.source, flow.destination, backend)
}

fn path(flow: &FlowView) -> &'static str {
    match flow {
        FlowView { encapsulated: true, .. } => "sent on",
        FlowView { decapsulated: true, .. } => "tunnelled",
        FlowView { translated: true, .. } => "snat",
        _ => "direct",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn both_directions_of_a_connection_name_the_same_three_ends() {
        let (client, frontend, backend) =
            (address("198.51.100.7:4711"), address("192.0.2.1:30080"), address("10.1.0.5:8080"));
        let request = FlowView {
            table: "established".into(),
            protocol: "TCP".to_owned(),
            source: client,
            destination: frontend,
            new_source: None,
            new_destination: Some(backend),
            state: "established".to_owned(),
            direction: "request".into(),
            encapsulated: false,
            decapsulated: false,
            translated: false,
            service: "default/web:http".to_owned(),
            backend: Some(backend),
            idle_seconds: 3,
        };
        let reply = FlowView {
            source: backend,
            destination: client,
            new_source: Some(frontend),
            new_destination: None,
            direction: "reply".into(),
            ..request.clone()
        };
        let sent_on = FlowView { new_destination: None, encapsulated: true, ..request.clone() };
        let own = Some(address("172.16.0.1:61000"));
        let translated = FlowView { new_source: own, translated: true, ..request.clone() };
        let translated_reply = FlowView {
            destination: address("172.16.0.1:61000"),
            new_destination: Some(client),
            translated: true,
            ..reply.clone()
        };
        for flow in [&request, &reply, &sent_on, &translated, &translated_reply] {
            assert_eq!(ends(flow), (client, frontend, backend));
        }
        assert!(table(&[translated]).to_string().contains("snat"));
        assert!(table(&[sent_on]).to_string().contains("sent on"));
    }
}
