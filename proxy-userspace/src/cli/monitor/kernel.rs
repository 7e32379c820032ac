//! The packets of Services that the kernel drops.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use millrace_views::service_port_label;
use proxy_common::addr::mapped;
use proxy_common::config::global;
use proxy_common::kernel_drop::Place;

use super::clock::Clock;
use super::row::EventRow;
use crate::cli::error::CliError;
use crate::dataplane::ebpf::kernel_drops::{KernelDropView, KernelDrops, Watched};
use crate::dataplane::ebpf::read::{PinnedMaps, ServiceView, Tables, protocol_text};

/// Time between two looks for new Services and endpoints.
const RENEWAL: Duration = Duration::from_secs(5);

/// Watches the kernel.
#[derive(Debug)]
pub struct Kernel {
    drops: KernelDrops,
    labels: Labels,
    /// The inode of this process's network namespace.
    namespace: u32,
    /// The devices with an XDP program of ours.
    of_xdp: BTreeSet<u32>,
    renewed: Instant,
}

impl Kernel {
    /// Begins to watch the frontends and backends in the maps.
    pub fn start(maps: &PinnedMaps, rate: u32) -> Result<Self, CliError> {
        let mut labels = Labels::default();
        let watched = Watched { places: labels.places(&maps.services()?), mark: mark(maps)?, rate };
        let namespace = fs::metadata("/proc/self/ns/net").map_or(0, |namespace| namespace.ino());
        Ok(Self {
            drops: KernelDrops::start(&watched)?,
            labels,
            namespace: u32::try_from(namespace).unwrap_or(0),
            of_xdp: devices_of_xdp(maps)?,
            renewed: Instant::now(),
        })
    }

    /// Returns the drops since the last reading, and the number of those left out.
    pub fn rows(&mut self, maps: &PinnedMaps, clock: &Clock) -> Result<(Vec<EventRow>, u64), CliError> {
        if self.renewed.elapsed() >= RENEWAL {
            self.drops.watch(&self.labels.places(&maps.services()?))?;
            self.of_xdp = devices_of_xdp(maps)?;
            self.renewed = Instant::now();
        }
        let (mut drops, left_out) = self.drops.read()?;
        drops.retain(|drop| !self.is_told(drop));
        let row = |drop| EventRow::of_kernel(drop, self.labels.get(drop.place), clock, self.namespace);
        Ok((drops.iter().map(row).collect(), left_out))
    }

    /// Whether the XDP program of ours dropped it, and told of it. A device has no second one.
    fn is_told(&self, drop: &KernelDropView) -> bool {
        drop.namespace == self.namespace && self.of_xdp.contains(&drop.device) && is_by_xdp(drop)
    }
}

/// Whether the kernel frees the packet for an XDP program: in the generic hook, or on a veth. Other drivers have no
/// packet of the kernel's yet.
fn is_by_xdp(drop: &KernelDropView) -> bool {
    // This reason has what the kernel could not redirect.
    const NOT_REDIRECTED: &str = "XDP";
    let is_in = |names: &[&str]| names.iter().any(|name| drop.function.starts_with(name));
    is_in(&["do_xdp_generic", "netif_receive_generic_xdp"]) && drop.reason != NOT_REDIRECTED
        || is_in(&["veth_xdp_rcv"])
}

fn devices_of_xdp(maps: &PinnedMaps) -> Result<BTreeSet<u32>, CliError> {
    let attached = maps.status()?.attached;
    Ok(attached.iter().filter(|one| one.hook == "xdp").map(|one| one.device_index).collect())
}

/// Returns the mark of packets that the programs pass to the stack, and its mask.
fn mark(maps: &PinnedMaps) -> Result<(u32, u32), CliError> {
    let Some(lookups) = maps.lookups()? else { return Ok((0, 0)) };
    let tables = lookups.v4();
    let constants = tables.constants();
    Ok((constants.word(global::MARK_VALUE), constants.word(global::MARK_MASK)))
}

/// The Service ports behind the numbers of frontends and backends. A number keeps its meaning.
#[derive(Debug, Default)]
struct Labels(Vec<String>);

impl Labels {
    /// Returns the Service ports, joined by commas; empty if only the address is one of a Service.
    fn get(&self, number: u32) -> &str {
        let index = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
        index.and_then(|index| self.0.get(index)).map_or("", String::as_str)
    }

    fn number(&mut self, known: &mut BTreeMap<String, u32>, label: String) -> u32 {
        let next = u32::try_from(self.0.len() + 1).unwrap_or(u32::MAX);
        *known.entry(label).or_insert_with_key(|label| {
            self.0.push(label.clone());
            next
        })
    }

    /// Returns the frontends and backends of the lists, with the numbers of their Service ports.
    fn places(&mut self, lists: &[ServiceView]) -> BTreeMap<Place, u32> {
        let mut owners: BTreeMap<(SocketAddr, u16), BTreeSet<String>> = BTreeMap::new();
        for list in lists {
            let Some(protocol) = list.frontends.first().and_then(|one| number(&one.protocol)) else {
                continue;
            };
            let frontends = list.frontends.iter().map(|one| one.address);
            for place in frontends.chain(list.backends.iter().copied()) {
                owners.entry((place, protocol)).or_default().insert(service_port_label(
                    &list.namespace,
                    &list.name,
                    &list.port,
                ));
            }
        }
        let mut known: BTreeMap<String, u32> =
            (1..).zip(&self.0).map(|(number, label)| (label.clone(), number)).collect();
        let nameless = self.number(&mut known, String::new());
        let mut places = BTreeMap::new();
        for ((place, protocol), owners) in owners {
            let address = if place.ip().is_unspecified() { [0; 4] } else { mapped(place.ip()) };
            let joined = owners.into_iter().collect::<Vec<_>>().join(",");
            let number = self.number(&mut known, joined);
            places.insert(Place { address, port: place.port().to_be(), protocol }, number);
            if address != [0; 4] {
                places.insert(Place { address, port: 0, protocol: 0 }, nameless);
            }
        }
        places
    }
}

/// Returns the number of a protocol by its name.
fn number(protocol: &str) -> Option<u16> {
    const WITH_PORTS: [u8; 3] = [6, 17, 132];
    WITH_PORTS.into_iter().find(|number| protocol_text(*number) == protocol).map(u16::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::service_port::tests::list;

    fn place(address: &str, protocol: u16) -> Place {
        let at: SocketAddr = address.parse().unwrap();
        let words = if at.ip().is_unspecified() { [0; 4] } else { mapped(at.ip()) };
        Place { address: words, port: at.port().to_be(), protocol }
    }

    #[test]
    fn places_have_the_service_ports_that_share_them_and_a_number_keeps_its_meaning() {
        let mut labels = Labels::default();
        let web = [("192.0.2.1:80", "LoadBalancer"), ("0.0.0.0:30080", "NodePort")];
        let web = list("shop/web:http", "Cluster", &web, &["10.1.0.1:8080"]);
        let api = [("[2001:db8::1]:80", "ClusterIP")];
        let api = list("shop/api:http", "Cluster", &api, &["10.1.0.1:8080", "10.1.0.2:8080"]);
        let both = labels.places(&[web.clone(), api.clone()]);
        let label = |labels: &Labels, places: &BTreeMap<Place, u32>, address, protocol| {
            places.get(&place(address, protocol)).map(|number| labels.get(*number).to_owned())
        };
        let of = |address, protocol| label(&labels, &both, address, protocol);
        assert_eq!(of("192.0.2.1:80", 6).unwrap(), "shop/web:http");
        assert_eq!(of("0.0.0.0:30080", 6).unwrap(), "shop/web:http", "a node port is at each address");
        assert_eq!(of("[2001:db8::1]:80", 6).unwrap(), "shop/api:http");
        assert_eq!(of("10.1.0.1:8080", 6).unwrap(), "shop/api:http,shop/web:http");
        assert_eq!(of("10.1.0.2:0", 0).unwrap(), "", "the address, for packets without ports");
        assert_eq!(of("10.1.0.2:8080", 17), None);
        assert_eq!(of("0.0.0.0:0", 0), None);
        assert!(both.values().all(|number| *number != 0), "0 is no place: {both:?}");

        let before = both[&place("192.0.2.1:80", 6)];
        let later = labels.places(&[
            api,
            web,
            list("shop/new:http", "Cluster", &[("192.0.2.9:80", "ClusterIP")], &[]),
        ]);
        assert_eq!(later[&place("192.0.2.1:80", 6)], before);
        assert_eq!(label(&labels, &later, "192.0.2.9:80", 6).unwrap(), "shop/new:http");
    }

    #[test]
    fn the_number_of_no_place_has_no_service() {
        let labels = Labels(vec!["shop/web".to_owned()]);
        assert_eq!([labels.get(0), labels.get(1), labels.get(2)], ["", "shop/web", ""]);
    }
}
