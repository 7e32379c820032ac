//! `millrace flows`.

mod connection;
mod count;
mod entry;
mod filter;

use std::collections::BTreeSet;

use clap::Args;

use super::error::CliError;
use super::ipvs;
use super::output::{Group, List, ListArgs, note};
use super::place::Place;
use super::select::SelectArgs;
use super::service_port::ServicePort;
use super::shown::Shown;
use crate::config::Refused;
use crate::dataplane::ebpf::read::{FlowView, PinnedMaps, ReadError};
use connection::{Connection, ends};
use count::CountBy;
use entry::Entry;
use filter::FilterArgs;

/// Flags of `millrace flows`.
#[derive(Args, Clone, Debug)]
pub struct FlowsArgs {
    #[command(flatten)]
    select: SelectArgs,
    #[command(flatten)]
    filter: FilterArgs,
    /// A row for each entry of the flow tables; a connection has one for each direction that passes here
    #[arg(long)]
    entries: bool,
    /// Numbers of connections by this property, instead of connections
    #[arg(long, value_name = "PROPERTY", value_enum, conflicts_with = "entries")]
    count_by: Option<CountBy>,
    /// Limit of the entries to read; a connection has two, with IPVS one
    #[arg(long, value_name = "ENTRIES", default_value_t = 1000, value_parser = entries, allow_negative_numbers = true)]
    limit: usize,
    #[command(flatten)]
    list: ListArgs,
    #[command(flatten)]
    place: Place,
}

/// Prints the connections, and a line if there are more.
pub fn run(args: &FlowsArgs) -> Result<(), CliError> {
    args.list.show(&args.place, || read(args))
}

fn entries(text: &str) -> Result<usize, Refused> {
    let entries = text.parse().ok().filter(|entries| *entries > 0);
    entries.ok_or_else(|| Refused::new(text, "a number from 1 on"))
}

fn read(args: &FlowsArgs) -> Result<List, CliError> {
    let services = Services::chosen(args)?;
    let of_maps = |maps: &PinnedMaps| maps.flows(args.limit, |flow| args.keeps(&services, flow));
    let shown = Shown::read(&args.place, of_maps, || ipvs::flows(args.limit))?;
    if let Shown::Ipvs(_) = &shown {
        args.select.refuse_names()?;
    }
    let is_wide = args.list.is_wide();
    let is_cut = |count: usize| {
        if count == args.limit {
            note(&format!("{count} entries read, there may be more: see --limit"));
        }
    };
    shown.list(
        "FlowList",
        |flows| {
            is_cut(flows.len());
            args.group(flows.clone(), is_wide)
        },
        |flows| {
            is_cut(flows.len());
            let chosen: Vec<ipvs::FlowView> =
                flows.iter().filter(|flow| args.keeps_ipvs(flow)).cloned().collect();
            Group::of("ipvs", &chosen, is_wide)
        },
    )
}

/// The chosen Services, by label; all if none is named.
enum Services {
    All,
    Some(BTreeSet<String>),
}

impl Services {
    /// Fails if an argument is a name that no Service has. An address may be a client's.
    fn chosen(args: &FlowsArgs) -> Result<Self, CliError> {
        if args.select.is_all() {
            return Ok(Self::All);
        }
        let all = match args.place.maps() {
            Err(ReadError::Absent { .. }) => return Ok(Self::Some(BTreeSet::new())),
            maps => maps?.services()?,
        };
        let chosen = args.select.choose(ServicePort::join(all), |selector| !selector.is_name())?;
        let named = chosen.iter().filter(|port| args.select.names(port));
        Ok(Self::Some(named.map(ServicePort::label).collect()))
    }
}

impl FlowsArgs {
    fn keeps(&self, services: &Services, flow: &FlowView) -> bool {
        let is_chosen = match services {
            Services::All => true,
            Services::Some(labels) => {
                let (client, frontend, backend) = ends(flow);
                labels.contains(&flow.service)
                    || [client, frontend, backend].iter().any(|end| self.select.is_at(*end, &flow.protocol))
            }
        };
        is_chosen && self.filter.keeps(flow)
    }

    fn keeps_ipvs(&self, flow: &ipvs::FlowView) -> bool {
        let places: Vec<_> =
            [Some(flow.source), flow.destination, Some(flow.backend)].into_iter().flatten().collect();
        self.select.fits_places(&places, &flow.protocol) && self.filter.keeps_ipvs(flow)
    }

    fn group(&self, flows: Vec<FlowView>, is_wide: bool) -> Result<Group, CliError> {
        if self.entries {
            let rows = flows.into_iter().filter(|flow| self.filter.keeps_age(flow.idle_seconds)).collect();
            return Group::of("ebpf", &Entry::rows(rows), is_wide);
        }
        let connections = Connection::join(flows).into_iter();
        let connections: Vec<Connection> =
            connections.filter(|connection| self.filter.keeps_age(connection.idle_seconds)).collect();
        match self.count_by {
            Some(by) => Group::of("ebpf", &by.count(&connections), is_wide),
            None => Group::of("ebpf", &connections, is_wide),
        }
    }
}
