//! `millrace services`.

mod filter;
mod frontends;
mod ports;

use clap::Args;

use super::error::CliError;
use super::ipvs;
use super::output::{Group, List, ListArgs};
use super::place::Place;
use super::select::SelectArgs;
use super::service_port::ServicePort;
use super::shown::Shown;
use crate::dataplane::ebpf::read::PinnedMaps;
use filter::FilterArgs;
use frontends::FrontendRow;

/// Arguments of `millrace services`.
#[derive(Args, Clone, Debug)]
pub struct ServicesArgs {
    #[command(flatten)]
    select: SelectArgs,
    /// A row for each frontend, with scope, list, algorithm and source ranges
    #[arg(long)]
    frontends: bool,
    #[command(flatten)]
    filter: FilterArgs,
    #[command(flatten)]
    list: ListArgs,
    #[command(flatten)]
    place: Place,
}

/// Prints the Services.
pub fn run(args: &ServicesArgs) -> Result<(), CliError> {
    args.list.show(&args.place, || read(args))
}

fn read(args: &ServicesArgs) -> Result<List, CliError> {
    let of_maps = |maps: &PinnedMaps| {
        let mut lists = maps.services()?;
        maps.figures()?.fill_services(&mut lists);
        Ok(lists)
    };
    let shown = Shown::read(&args.place, of_maps, ipvs::services)?;
    let is_wide = args.list.is_wide();
    if let Shown::Ipvs(services) = &shown {
        args.select.check_places(&ipvs::places(services))?;
    }
    shown.list(
        "ServiceList",
        |lists| {
            let ports = args.select.choose(ServicePort::join(lists.clone()), |_| false)?;
            let ports: Vec<ServicePort> = ports.into_iter().filter(|port| args.filter.keeps(port)).collect();
            if !args.frontends {
                return Group::of("ebpf", &ports, is_wide);
            }
            let rows: Vec<FrontendRow> = ports.iter().flat_map(FrontendRow::of).collect();
            let keeps = |row: &FrontendRow| args.filter.keeps_frontend(&row.frontend);
            Group::of("ebpf", &rows.into_iter().filter(keeps).collect::<Vec<_>>(), is_wide)
        },
        |services| ipvs::service_group(services, &args.select, is_wide),
    )
}
