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
use crate::dataplane::ipvs::OpenError;
use connection::{Connection, ends};
use count::{Count, CountBy, Counter};
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
    /// Numbers of connections by this property, of all that fit, instead of connections
    #[arg(long, value_name = "PROPERTY", value_enum, conflicts_with = "entries")]
    count_by: Option<CountBy>,
    /// Limit of the entries to show, of those that fit; a connection has two, with IPVS one
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
    let of_maps = |maps: &PinnedMaps| args.of_maps(maps, &services);
    let shown = Shown::read(&args.place, of_maps, || args.of_ipvs())?;
    if let Shown::Ipvs(_) = &shown {
        args.select.refuse_names()?;
    }
    let is_wide = args.list.is_wide();
    shown.list("FlowList", |rows| rows.group("ebpf", is_wide), |rows| rows.group("ipvs", is_wide))
}

/// The rows of a data plane.
enum Rows {
    Connections(Vec<Connection>),
    Entries(Vec<Entry>),
    Ipvs(Vec<ipvs::FlowView>),
    Counts(Vec<Count>),
}

impl Rows {
    fn group(&self, mode: &'static str, is_wide: bool) -> Result<Group, CliError> {
        match self {
            Self::Connections(rows) => Group::of(mode, rows, is_wide),
            Self::Entries(rows) => Group::of(mode, rows, is_wide),
            Self::Ipvs(rows) => Group::of(mode, rows, is_wide),
            Self::Counts(rows) => Group::of(mode, rows, is_wide),
        }
    }
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
    /// Reads the flow tables. The limit is of the entries that are shown: a count takes none, and all are counted.
    fn of_maps(&self, maps: &PinnedMaps, services: &Services) -> Result<Rows, ReadError> {
        if let Some(by) = self.count_by {
            let mut counter = Counter::new(by);
            maps.flows(usize::MAX, |flow, twin| {
                if self.keeps(services, flow) && self.filter.keeps_age_of_both(flow, twin) {
                    counter.add(flow, || twin().filter(|twin| self.keeps(services, twin)));
                }
                false
            })?;
            return Ok(Rows::Counts(counter.rows()));
        }
        let flows = maps.flows(self.limit, |flow, twin| {
            self.keeps(services, flow)
                && if self.entries {
                    self.filter.keeps_age(flow)
                } else {
                    self.filter.keeps_age_of_both(flow, twin)
                }
        })?;
        self.tell_cut(flows.len());
        Ok(if self.entries {
            Rows::Entries(Entry::rows(flows))
        } else {
            Rows::Connections(Connection::join(flows))
        })
    }

    /// Reads the connections of IPVS; `None` if it does not serve.
    fn of_ipvs(&self) -> Result<Option<Rows>, OpenError> {
        if let Some(by) = self.count_by {
            let mut counter = Counter::new(by);
            let found = ipvs::flows(usize::MAX, |flow| {
                if self.keeps_ipvs(flow) {
                    counter.add_ipvs(flow);
                }
                false
            })?;
            return Ok(found.map(|_| Rows::Counts(counter.rows())));
        }
        let found = ipvs::flows(self.limit, |flow| self.keeps_ipvs(flow))?;
        Ok(found.map(|flows| {
            self.tell_cut(flows.len());
            Rows::Ipvs(flows)
        }))
    }

    fn tell_cut(&self, count: usize) {
        if count == self.limit {
            note(&format!("{count} entries read, there may be more: see --limit"));
        }
    }

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
}
