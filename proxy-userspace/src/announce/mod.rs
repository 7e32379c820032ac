//! Announces addresses of Services on the links of this node (L2 announcement).
//!
//! The model says which nodes may have an address, and a hash puts them in order. On each link, the first node that can
//! answers ARP and neighbour solicitations; see `claim.rs` for how nodes agree without talking to each other or to
//! the API server. The programs answer (map ANNOUNCED); this module decides for what.

mod claim;
mod figures;
mod frame;
mod groups;
mod link;
mod observer;
mod rank;
mod socket;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use tracing::{debug, warn};

use claim::Mac;
pub use figures::{Change, Figures};
use link::{Link, Said, Shared};
pub use observer::AnnounceObserver;
pub use rank::Wanted;

use crate::dataplane::ebpf::Announced;
use crate::node::{DevicePattern, Hook, Topology};

/// Frames of others that may wait.
const SAID: usize = 4096;

/// Time until a socket that could not be opened is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// The settings of the announcer.
#[derive(Clone, Debug)]
pub struct AnnounceSettings {
    /// The BPF file system.
    pub bpffs: PathBuf,
    /// The devices to announce on; empty = all uplinks.
    pub devices: Vec<DevicePattern>,
}

/// Announces the addresses in `wanted` on the devices in `topology`, until one of them ends.
pub async fn announce(
    settings: AnnounceSettings,
    mut wanted: watch::Receiver<Option<Wanted>>,
    mut topology: watch::Receiver<Option<Topology>>,
    figures: Figures,
) {
    if wanted.wait_for(Option::is_some).await.is_err() || topology.wait_for(Option::is_some).await.is_err() {
        return;
    }
    // Where eBPF never served, there is no map.
    let map = match Announced::open(&settings.bpffs) {
        Ok(map) => map,
        Err(error) => return debug!(%error, "nothing answers for addresses on links here"),
    };
    let (sender, mut said) = mpsc::channel(SAID);
    let shared = Shared { map, figures, start: Instant::now() };
    let mut announcer = Announcer {
        settings,
        shared,
        links: BTreeMap::new(),
        said: sender,
        wanted: wanted.clone(),
        own: BTreeSet::new(),
        failed: BTreeMap::new(),
    };
    loop {
        let now = wanted.borrow_and_update().clone().unwrap_or_default();
        announcer.refresh(&now, topology.borrow_and_update().as_ref());
        let retry_at = (!announcer.failed.is_empty()).then(|| tokio::time::Instant::now() + RETRY);
        loop {
            let due = announcer.links.values().filter_map(Link::due).min();
            let due = due.map(|due| tokio::time::Instant::from_std(announcer.shared.start + due));
            tokio::select! {
                changed = wanted.changed() => if changed.is_err() { return } else { break },
                changed = topology.changed() => if changed.is_err() { return } else { break },
                () = sleep_until(retry_at) => break,
                said = said.recv() => if let Some(said) = said { announcer.hear(said) },
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
    wanted: watch::Receiver<Option<Wanted>>,
    /// The MAC addresses of this node: two of its devices may be on one link.
    own: BTreeSet<Mac>,
    /// The devices without a socket, and why. It is told once.
    failed: BTreeMap<u32, String>,
}

impl Announcer {
    fn tick(&mut self) {
        for link in self.links.values_mut() {
            link.tick(&mut self.shared);
        }
    }

    fn hear(&mut self, (index, address, heard): Said) {
        if !self.own.contains(&heard.mac())
            && let Some(link) = self.links.get_mut(&index)
        {
            link.hear(address, heard, &mut self.shared);
        }
    }

    /// Follows a change of the addresses or devices.
    fn refresh(&mut self, wanted: &Wanted, topology: Option<&Topology>) {
        let Wanted { ranks, is_complete, .. } = wanted;
        for link in self.links.values_mut() {
            link.release_others(wanted, &mut self.shared);
        }
        let targets = topology.into_iter().flat_map(|topology| topology.devices.values());
        self.own = targets.filter_map(|target| target.mac).collect();
        let is_idle = ranks.is_empty() && *is_complete;
        let devices = if is_idle { BTreeMap::new() } else { self.devices(topology) };
        self.open_links(&devices);
        let answered = self.answered();
        for (address, index) in answered.keys() {
            let is_left = wanted.is_over(*address) || !devices.contains_key(index);
            let is_let_go = self.links.get(index).is_some_and(|link| link.waits_for(*address));
            if (is_left || is_let_go)
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
        let figures = &self.shared.figures;
        let is_same =
            |index: &u32, link: &Link| devices.get(index).is_some_and(|(name, mac)| link.is(name, *mac));
        self.links
            .extract_if(.., |index, link| !is_same(index, link))
            .for_each(|(_, link)| link.forget(figures));
        self.failed.retain(|index, _| devices.contains_key(index));
        for (index, (name, mac)) in devices {
            if self.links.contains_key(index) {
                continue;
            }
            match Link::open(*index, name, *mac, self.said.clone(), self.wanted.clone()) {
                Ok(link) => {
                    debug!(device = name, "addresses of Services are announced here");
                    self.links.insert(*index, link);
                    self.failed.remove(index);
                }
                Err(error) => {
                    let why = error.to_string();
                    if self.failed.get(index) != Some(&why) {
                        warn!(
                            device = name,
                            error = why,
                            "nothing is announced here: a packet socket can't be opened; it takes CAP_NET_RAW"
                        );
                        self.failed.insert(*index, why);
                    }
                }
            }
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
