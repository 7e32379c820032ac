//! `millrace backends`.

use std::collections::BTreeSet;
use std::net::IpAddr;

use clap::Args;
use serde::Serialize;

use super::error::CliError;
use super::ipvs;
use super::output::{Column, Group, List, ListArgs, Row, mark, some_of};
use super::place::Place;
use super::select::{SelectArgs, Selector};
use super::service_port::ServicePort;
use super::shown::Shown;
use crate::config::Refused;
use crate::dataplane::ebpf::read::{BackendView, PinnedMaps, ReadError, ServiceView};

/// Arguments of `millrace backends`.
#[derive(Args, Clone, Debug)]
pub struct BackendsArgs {
    #[command(flatten)]
    select: SelectArgs,
    /// Endpoints on the node with this address, or on this one: here
    #[arg(long, value_name = "ADDRESS|here", value_parser = node)]
    node: Option<OnNode>,
    /// Endpoints that are not ready
    #[arg(long)]
    not_ready: bool,
    /// Endpoints that terminate and still serve
    #[arg(long)]
    draining: bool,
    #[command(flatten)]
    list: ListArgs,
    #[command(flatten)]
    place: Place,
}

/// The node of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnNode {
    Here,
    At(IpAddr),
}

fn node(text: &str) -> Result<OnNode, Refused> {
    match text {
        "here" => Ok(OnNode::Here),
        _ => text.parse().map(OnNode::At).map_err(|_| Refused::new(text, "an address of a node, or here")),
    }
}

/// An endpoint, with its state in one word.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Endpoint {
    #[serde(flatten)]
    view: BackendView,
    /// `ready`, `draining`, `not-ready`, or `gone`: in no EndpointSlice any more, while its id rests.
    state: &'static str,
}

/// Prints the endpoints.
pub fn run(args: &BackendsArgs) -> Result<(), CliError> {
    args.list.show(&args.place, || read(args))
}

fn read(args: &BackendsArgs) -> Result<List, CliError> {
    let of_maps = |maps: &PinnedMaps| {
        let mut backends = maps.backends()?;
        maps.figures()?.fill_backends(&mut backends);
        Ok::<_, ReadError>((maps.services()?, backends))
    };
    let shown = Shown::read(&args.place, of_maps, ipvs::backends)?;
    let is_wide = args.list.is_wide();
    if let Shown::Ipvs(backends) = &shown {
        let places = backends.iter().flat_map(|one| {
            let all = std::iter::once(&one.address).chain(&one.frontends);
            all.map(|place| (place, one.protocol.as_str()))
        });
        args.select.check_places(&places.collect::<Vec<_>>())?;
    }
    shown.list(
        "BackendList",
        |(lists, backends)| Group::of("ebpf", &args.choose(lists, backends)?, is_wide),
        |backends| {
            let keeps = |one: &&ipvs::BackendView| {
                args.select.fits_places(&[[one.address].as_slice(), &one.frontends].concat(), &one.protocol)
                    && args.node.is_none_or(|node| (node == OnNode::Here) == one.local)
                    && (!args.draining || one.weight == 0)
                    && !args.not_ready
            };
            let chosen: Vec<ipvs::BackendView> = backends.iter().filter(keeps).cloned().collect();
            Group::of("ipvs", &chosen, is_wide)
        },
    )
}

impl BackendsArgs {
    fn choose(&self, lists: &[ServiceView], backends: &[BackendView]) -> Result<Vec<Endpoint>, CliError> {
        let is_known = |selector: &Selector| backends.iter().any(|one| selector.is_at(one.address, ""));
        let chosen = self.select.choose(ServicePort::join(lists.to_vec()), is_known)?;
        let labels: BTreeSet<String> = chosen.iter().map(ServicePort::label).collect();
        let is_all = self.select.is_all();
        let keeps = |one: &Endpoint| {
            let is_chosen = is_all
                || one.view.services.iter().any(|label| labels.contains(label))
                || self.select.is_at(one.view.address, "");
            is_chosen
                && self.node.is_none_or(|node| match node {
                    OnNode::Here => one.view.local,
                    OnNode::At(node) => one.view.node == Some(node),
                })
                && (!self.not_ready || one.state != "ready")
                && (!self.draining || one.state == "draining")
        };
        Ok(backends.iter().cloned().map(Endpoint::of).filter(keeps).collect())
    }
}

impl Endpoint {
    fn of(view: BackendView) -> Self {
        let state = match (view.exists, view.ready, view.serving) {
            (false, ..) => "gone",
            (true, true, _) => "ready",
            (true, false, true) => "draining",
            (true, false, false) => "not-ready",
        };
        Self { view, state }
    }
}

impl Row for Endpoint {
    const COLUMNS: &'static [Column] = &[
        Column::new("ADDRESS", "address"),
        Column::new("NODE", "node"),
        Column::new("STATE", "state"),
        Column::new("OPENED", "opened").spare(2),
        Column::new("REFUSED", "refused").spare(1),
        Column::new("SERVICES", "services"),
        Column::wide("ACTIVE", "active"),
        Column::wide("ESTABLISHED", "established"),
        Column::wide("RESET", "reset"),
        Column::wide("POD", "pod"),
        Column::wide("HINT", "hint"),
        Column::wide("ID", "id"),
        Column::wide("GENERATION", "generation"),
    ];

    fn cells(&self, is_wide: bool) -> Vec<String> {
        let Self { view, state } = self;
        let node = if view.local { Some("here".to_owned()) } else { view.node.map(|node| node.to_string()) };
        vec![
            view.address.to_string(),
            node.unwrap_or_default(),
            (*state).to_owned(),
            view.connections.opened.to_string(),
            view.connections.refused.to_string(),
            if is_wide { view.services.join(",") } else { some_of(&view.services) },
            view.connections.active.to_string(),
            view.connections.established.to_string(),
            view.connections.reset.to_string(),
            mark(view.pod),
            if view.hint == 0 { String::new() } else { view.hint.to_string() },
            view.id.to_string(),
            view.generation.to_string(),
        ]
    }

    fn name(&self) -> String {
        self.view.address.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::argument::parsed;
    use crate::cli::service_port::tests::list;
    use crate::dataplane::ebpf::read::ConnectionsView;

    fn backend(address: &str, services: &[&str]) -> BackendView {
        BackendView {
            address: address.parse().unwrap(),
            id: 1,
            generation: 0,
            exists: true,
            local: false,
            pod: false,
            ready: true,
            serving: true,
            node: Some("192.0.2.12".parse().unwrap()),
            hint: 0,
            services: services.iter().map(|service| (*service).to_owned()).collect(),
            connections: ConnectionsView { opened: 9, refused: 1, ..ConnectionsView::default() },
        }
    }

    fn chosen(arguments: &str) -> Result<Vec<String>, String> {
        let lists = [
            list("shop/web:http", "Cluster", &[("10.96.0.9:80", "ClusterIP")], &["10.1.0.1:8080"]),
            list("shop/db", "Cluster", &[("10.96.0.10:5432", "ClusterIP")], &["10.1.0.7:5432"]),
        ];
        let draining = BackendView { ready: false, ..backend("10.1.0.2:8080", &["shop/web:http"]) };
        let gone =
            BackendView { exists: false, ready: false, serving: false, ..backend("10.1.0.3:8080", &[]) };
        let here = BackendView { local: true, node: None, ..backend("10.1.0.1:8080", &["shop/web:http"]) };
        let backends = [here, draining, gone, backend("10.1.0.7:5432", &["shop/db"])];
        let args: BackendsArgs = parsed(arguments);
        let rows = args.choose(&lists, &backends).map_err(|error| error.to_string())?;
        Ok(rows.iter().map(|row| format!("{} {}", row.view.address, row.state)).collect())
    }

    #[test]
    fn endpoints_are_chosen_by_service_address_node_and_state() {
        for (arguments, wanted) in [
            (
                "",
                &[
                    "10.1.0.1:8080 ready",
                    "10.1.0.2:8080 draining",
                    "10.1.0.3:8080 gone",
                    "10.1.0.7:5432 ready",
                ][..],
            ),
            ("web", &["10.1.0.1:8080 ready", "10.1.0.2:8080 draining"]),
            ("10.96.0.10:5432", &["10.1.0.7:5432 ready"]),
            ("10.1.0.3", &["10.1.0.3:8080 gone"]),
            ("-n shop --draining", &["10.1.0.2:8080 draining"]),
            ("--not-ready", &["10.1.0.2:8080 draining", "10.1.0.3:8080 gone"]),
            ("--node here", &["10.1.0.1:8080 ready"]),
            ("db --node 192.0.2.12", &["10.1.0.7:5432 ready"]),
        ] {
            let wanted: Vec<String> = wanted.iter().map(|row| (*row).to_owned()).collect();
            assert_eq!(chosen(arguments), Ok(wanted), "{arguments}");
        }
        assert_eq!(chosen("shop/wep"), Err("no Service matches \"shop/wep\"; nearest: shop/web".to_owned()));
    }

    #[test]
    fn a_row_has_a_cell_for_each_column() {
        let row = Endpoint::of(backend("10.1.0.2:8080", &["a/a", "a/b", "a/c", "a/d"]));
        assert_eq!(
            row.cells(false)[..6],
            ["10.1.0.2:8080", "192.0.2.12", "ready", "9", "1", "a/a,a/b,a/c,+1"]
        );
        assert_eq!(row.cells(true)[5], "a/a,a/b,a/c,a/d");
        assert_eq!(row.cells(true).len(), Endpoint::COLUMNS.len());
    }
}
