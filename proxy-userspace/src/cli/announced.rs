//! `millrace announced`.

use std::net::IpAddr;

use clap::Args;
use serde::Serialize;

use super::error::CliError;
use super::output::{Column, Group, List, ListArgs, Row};
use super::place::Place;
use crate::dataplane::ebpf::Announced;
use crate::node::{device_name, mac_text};

/// Arguments of `millrace announced`.
#[derive(Args, Clone, Debug)]
pub struct AnnouncedArgs {
    #[command(flatten)]
    list: ListArgs,
    #[command(flatten)]
    place: Place,
}

/// An address that this node answers for on a link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Announcement {
    address: IpAddr,
    /// Index of the device.
    device: u32,
    /// Name of the device; none if it is gone.
    device_name: Option<String>,
    /// The MAC address in the answers.
    mac: String,
}

/// Prints the addresses that this node answers for.
pub fn run(args: &AnnouncedArgs) -> Result<(), CliError> {
    args.list.show(&args.place, || {
        args.place.maps()?;
        let entries = Announced::open(&args.place.bpffs_path)?.entries()?;
        let announcements: Vec<Announcement> = entries
            .into_iter()
            .map(|((address, device), mac)| Announcement::new(address, device, mac))
            .collect();
        Ok(List::new("AnnouncedList", vec![Group::of("ebpf", &announcements, args.list.is_wide())?]))
    })
}

impl Announcement {
    fn new(address: IpAddr, device: u32, mac: [u8; 6]) -> Self {
        Self { address, device, device_name: device_name(device), mac: mac_text(mac) }
    }
}

impl Row for Announcement {
    const COLUMNS: &'static [Column] = &[
        Column::new("ADDRESS", "address"),
        Column::new("DEVICE", "device_name"),
        Column::new("MAC", "mac"),
        Column::wide("INDEX", "device"),
    ];

    fn cells(&self, _: bool) -> Vec<String> {
        vec![
            self.address.to_string(),
            self.device_name.clone().unwrap_or_default(),
            self.mac.clone(),
            self.device.to_string(),
        ]
    }

    fn name(&self) -> String {
        self.address.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_names_address_device_and_mac() {
        let row = Announcement::new("203.0.113.7".parse().unwrap(), 1, [2, 0, 0, 0, 0, 0xab]);
        assert_eq!(row.cells(true), ["203.0.113.7", "lo", "02:00:00:00:00:ab", "1"]);
        assert_eq!(row.cells(true).len(), Announcement::COLUMNS.len());
        let gone = Announcement::new("203.0.113.7".parse().unwrap(), 0x7fff_ffff, [0; 6]);
        assert_eq!(gone.cells(false)[1], "");
    }
}
