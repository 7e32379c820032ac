//! ANNOUNCED: the addresses for which the programs answer ARP requests and Neighbour Solicitations.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

use proxy_common::addr::{mapped, unmapped};
use proxy_common::announced::AnnouncedKey;
use proxy_common::device_mac::{mac_number, mac_of};

use super::error::OpenError;
use super::layout::Layout;
use super::maps::Table;

/// The addresses for which the programs answer, by device.
#[derive(Debug)]
pub struct Announced {
    table: Table<AnnouncedKey, u64>,
}

/// An address and the index of the device by which questions for it come in.
type Place = (IpAddr, u32);

impl Announced {
    /// Opens the pinned map below a BPF file system.
    ///
    /// # Errors
    /// If there is no such map: no agent has opened the data plane, or only one of an earlier build.
    pub fn open(bpffs: &Path) -> Result<Self, OpenError> {
        Ok(Self { table: Table::open(&Layout::new(bpffs).maps(), "ANNOUNCED")? })
    }

    /// Returns the MAC address of the answers, by address and device.
    pub fn entries(&self) -> Result<BTreeMap<Place, [u8; 6]>, OpenError> {
        let entries = self.table.all()?;
        Ok(entries.into_iter().map(|(key, mac)| (place_of(&key), mac_of(mac))).collect())
    }

    /// Lets the programs answer for an address on a device with this MAC address.
    pub fn set(&mut self, address: IpAddr, device: u32, mac: [u8; 6]) -> Result<(), String> {
        self.table.insert(&key_of((address, device)), &mac_number(mac))
    }

    /// Ends the answers for an address on a device. A missing entry is no error.
    pub fn remove(&mut self, address: IpAddr, device: u32) -> Result<(), String> {
        self.table.remove(&key_of((address, device)))
    }
}

fn key_of((address, device): Place) -> AnnouncedKey {
    AnnouncedKey { address: mapped(address), device }
}

fn place_of(key: &AnnouncedKey) -> Place {
    (unmapped(key.address), key.device)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataplane::ebpf::scratch::Scratch;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 7];

    fn places() -> [Place; 3] {
        let [v4, v6] = ["203.0.113.1", "2001:db8:113::1"].map(|address| address.parse().unwrap());
        [(v4, 2), (v4, 3), (v6, 2)]
    }

    #[test]
    fn a_key_is_its_address_and_device() {
        for place in places() {
            assert_eq!(place_of(&key_of(place)), place);
        }
        let [v4, ..] = places();
        let words = [0, 0, 0xffff_u32.to_be(), u32::from_ne_bytes([203, 0, 113, 1])];
        assert_eq!(key_of(v4), AnnouncedKey { address: words, device: 2 });
    }

    #[test]
    fn entries_are_written_read_and_removed() {
        let scratch = Scratch::new("announced");
        assert!(Announced::open(&scratch.path).is_err());
        drop(scratch.open());
        let mut announced = Announced::open(&scratch.path).unwrap();
        assert!(announced.entries().unwrap().is_empty());
        for (address, device) in places() {
            announced.set(address, device, [0xff; 6]).unwrap();
            announced.set(address, device, MAC).unwrap();
        }
        assert_eq!(announced.entries().unwrap(), places().map(|place| (place, MAC)).into());
        let [(address, device), ..] = places();
        announced.remove(address, device).unwrap();
        announced.remove(address, device).unwrap();
        assert_eq!(announced.entries().unwrap().len(), 2);
    }
}
