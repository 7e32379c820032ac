//! `millrace ways`.

use clap::Args;
use serde::Serialize;

use super::error::CliError;
use super::output::{Column, Group, List, ListArgs, Row, mark};
use super::place::Place;
use crate::dataplane::ebpf::read::WayView;
use crate::node::device_name;

/// Arguments of `millrace ways`.
#[derive(Args, Clone, Debug)]
pub struct WaysArgs {
    /// Nodes without a resolved next hop
    #[arg(long)]
    unresolved: bool,
    #[command(flatten)]
    list: ListArgs,
    #[command(flatten)]
    place: Place,
}

/// A route to another node, with the name of its device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Way {
    #[serde(flatten)]
    view: WayView,
    /// Name of the device; none if it is gone.
    device_name: Option<String>,
}

/// Prints the routes to other nodes.
pub fn run(args: &WaysArgs) -> Result<(), CliError> {
    args.list.show(&args.place, || {
        let ways = args.place.maps()?.ways()?.into_iter().filter(|way| !args.unresolved || !way.resolved);
        let ways: Vec<Way> = ways.map(|view| Way { device_name: device_name(view.device), view }).collect();
        Ok(List::new("WayList", vec![Group::of("ebpf", &ways, args.list.is_wide())?]))
    })
}

impl Row for Way {
    const COLUMNS: &'static [Column] = &[
        Column::new("WAY TO", "target"),
        Column::new("SOURCE", "source").spare(2),
        Column::new("DEVICE", "device_name"),
        Column::new("MTU", "mtu"),
        Column::new("RESOLVED", "resolved"),
        Column::new("XDP", "xdp").spare(1),
        Column::new("NEXT HOP", "destination_mac"),
        Column::wide("ID", "id"),
        Column::wide("INDEX", "device"),
        Column::wide("SOURCE MAC", "source_mac"),
    ];

    fn cells(&self, _: bool) -> Vec<String> {
        let Self { view: way, device_name } = self;
        let mac = |mac: &str| if way.resolved { mac.to_owned() } else { String::new() };
        vec![
            way.target.to_string(),
            way.source.map(|source| source.to_string()).unwrap_or_default(),
            device_name.clone().unwrap_or_default(),
            way.mtu.to_string(),
            if way.resolved { "yes" } else { "no" }.to_owned(),
            mark(way.xdp),
            mac(&way.destination_mac),
            way.id.to_string(),
            way.device.to_string(),
            mac(&way.source_mac),
        ]
    }

    fn name(&self) -> String {
        self.view.target.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_without_a_next_hop_says_no() {
        let view = WayView {
            id: 3,
            target: "192.0.2.12".parse().unwrap(),
            source: None,
            device: 2,
            mtu: 1500,
            resolved: false,
            xdp: true,
            destination_mac: "00:00:00:00:00:00".to_owned(),
            source_mac: "00:00:00:00:00:00".to_owned(),
        };
        let way = |resolved| Way {
            view: WayView { resolved, ..view.clone() },
            device_name: Some("eth0".to_owned()),
        };
        assert_eq!(way(false).cells(false)[..7], ["192.0.2.12", "", "eth0", "1500", "no", "yes", ""]);
        assert_eq!(way(true).cells(false)[4..7], ["yes", "yes", "00:00:00:00:00:00"]);
        assert_eq!(way(true).cells(false).len(), Way::COLUMNS.len());
    }
}
