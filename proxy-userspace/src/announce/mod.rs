//! Announces addresses of Services on the links of this node (L2 announcement).
//!
//! The model says which nodes may have an address, and a hash puts them in order. On each link, the first node that can
//! answers ARP and neighbour solicitations; see [`claim`] for how nodes agree without talking to each other or to
//! the API server. The programs answer (map ANNOUNCED); this module decides for what.

pub mod claim;
mod figures;
mod frame;
mod groups;
mod link;
mod observer;
pub mod rank;
mod socket;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Instant;

use tokio::sync::{mpsc, watch};
use tracing::{debug, warn};

use claim::Mac;
pub use figures::{Change, Figures};
use link::{Link, Said, Shared};
pub use observer::AnnounceObserver;
use rank::Ranks;

use crate::dataplane::ebpf::Announced;
use crate::node::{DevicePattern, Hook, Topology};

/// Frames of others that may wait.
const SAID: usize = 1024;

/// The settings of the announcer.
#[derive(Clone, Debug)]
pub struct AnnounceSettings {
    /// The BPF file system.
    pub bpffs: PathBuf,
    /// The devices to announce on; empty = all uplinks.
    pub devices: Vec<DevicePattern>,
    /// Whether any address may be announced.
    pub is_wanted: bool,
}

/// Announces the addresses in `ranks` on the devices in `topology`, until one of them ends.
pub async fn announce(
    settings: AnnounceSettings,
    mut ranks: watch::Receiver<Option<Ranks>>,
    mut topology: watch::Receiver<Option<Topology>>,
    figures: Figures,
) {
    if ranks.wait_for(Option::is_some).await.is_err() || topology.wait_for(Option::is_some).await.is_err() {
        return;
    }
    let map = match Announced::open(&settings.bpffs) {
        Ok(map) => map,
        Err(error) => {
            if settings.is_wanted {
                warn!(%error, "--l2-announce has no effect: the programs that answer are not there");
            }
            return;
        }
    };
    let (sender, mut said) = mpsc::channel(SAID);
    let shared = Shared { map, figures, start: Instant::now() };
    let mut announcer = Announcer { settings, shared, links: BTreeMap::new(), said: sender, failed: None };
    loop {
        announcer.refresh(
            &ranks.borrow_and_update().clone().unwrap_or_default(),
            topology.borrow_and_update().as_ref(),
        );
        loop {
            let due = announcer.links.values().filter_map(Link::due).min();
            let due = due.map(|due| tokio::time::Instant::from_std(announcer.shared.start + due));
            tokio::select! {
                changed = ranks.changed() => if changed.is_err() { return } else { break },
                changed = topology.changed() => if changed.is_err() { return } else { break },
                said = said.recv() => if let Some((index, address, heard)) = said
                    && let Some(link) = announcer.links.get_mut(&index)
                {
                    link.hear(address, heard, &mut announcer.shared);
                },
                () = sleep_until(due) => announcer.tick(),
            }
        }
    }
}

async fn sleep_until(due: Option<tokio::time::Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

struct Announcer {
    settings: AnnounceSettings,
    shared: Shared,
    links: BTreeMap<u32, Link>,
    said: mpsc::Sender<Said>,
    /// The last failure to open a socket, which is told once.
    failed: Option<String>,
}

impl Announcer {
    fn tick(&mut self) {
        for link in self.links.values_mut() {
            link.tick(&mut self.shared);
        }
    }

    /// Follows a change of the addresses or devices.
    fn refresh(&mut self, ranks: &Ranks, topology: Option<&Topology>) {
        let devices = if ranks.is_empty() { BTreeMap::new() } else { self.devices(topology) };
        self.open_links(&devices);
        let answered = self.answered();
        for (address, index) in answered.keys() {
            let is_wanted = ranks.contains_key(address) && self.links.contains_key(index);
            // A link that has the address tells that it lets it go.
            let is_of_link = self.links.get(index).is_some_and(|link| link.has(*address));
            if !is_wanted
                && !is_of_link
                && let Err(error) = self.shared.map.remove(*address, *index)
            {
                warn!(%address, %error, "still announced");
            }
        }
        for link in self.links.values_mut() {
            link.set_ranks(ranks, &answered, &mut self.shared);
        }
    }

    /// Returns the devices to announce on, by interface index.
    fn devices(&self, topology: Option<&Topology>) -> BTreeMap<u32, (String, Mac)> {
        let targets = topology.into_iter().flat_map(|topology| &topology.devices);
        let is_wanted = |name: &str| {
            let devices = &self.settings.devices;
            devices.is_empty() || devices.iter().any(|pattern| pattern.matches(name))
        };
        targets
            .filter(|(_, target)| target.hooks.contains(&Hook::TcIngress) && is_wanted(&target.name))
            .filter_map(|(index, target)| Some((*index, (target.name.clone(), target.mac?))))
            .collect()
    }

    fn open_links(&mut self, devices: &BTreeMap<u32, (String, Mac)>) {
        let is_same =
            |index: &u32, link: &Link| devices.get(index).is_some_and(|(name, mac)| link.is(name, *mac));
        let gone: Vec<u32> = self
            .links
            .iter()
            .filter(|(index, link)| !is_same(index, link))
            .map(|(index, _)| *index)
            .collect();
        for index in gone {
            if let Some(link) = self.links.remove(&index) {
                link.forget(&self.shared.figures);
            }
        }
        for (index, (name, mac)) in devices {
            if self.links.contains_key(index) {
                continue;
            }
            match Link::open(*index, name, *mac, self.said.clone()) {
                Ok(link) => {
                    debug!(device = name, "addresses of Services are announced here");
                    self.links.insert(*index, link);
                }
                Err(error) => self.tell_failure(name, &error),
            }
        }
    }

    fn tell_failure(&mut self, device: &str, error: &std::io::Error) {
        let message = format!("{device}: {error}");
        if self.failed.as_ref() != Some(&message) {
            warn!(device, %error, "nothing is announced here: a packet socket can't be opened; it takes CAP_NET_RAW");
            self.failed = Some(message);
        }
    }

    /// Returns what the programs answer for now.
    fn answered(&self) -> BTreeMap<(IpAddr, u32), Mac> {
        self.shared.map.entries().unwrap_or_else(|error| {
            warn!(%error, "the announced addresses can't be read");
            BTreeMap::new()
        })
    }
}
