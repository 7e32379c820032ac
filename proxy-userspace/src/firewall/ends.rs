//! The devices of pods, and what is at their other ends.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use tokio::time::Instant;

use crate::node::{AttachTarget, FarEnd, Hook, NodeError, PodDevices, Topology, device_name};

/// Time after which a device without another end is no pod's. A CNI may make a pair here, and move one end later.
const ALONE: Duration = Duration::from_secs(5);

/// The devices, as they were looked at last.
#[derive(Debug)]
pub(super) struct Ends {
    questions: PodDevices,
    devices: BTreeSet<u32>,
    found: BTreeMap<u32, FarEnd>,
    /// Devices without another end, since when.
    endless: BTreeMap<u32, Instant>,
    has_looked: bool,
}

/// What is to be done with devices at once.
#[derive(Debug, Default)]
pub(super) struct Fresh {
    /// The devices of new pods.
    pub new: BTreeSet<u32>,
    /// Devices that are none of the firewall's.
    pub passing: BTreeSet<u32>,
}

impl Ends {
    pub fn open() -> Result<Self, NodeError> {
        Ok(Self {
            questions: PodDevices::open()?,
            devices: BTreeSet::new(),
            found: BTreeMap::new(),
            endless: BTreeMap::new(),
            has_looked: false,
        })
    }

    /// Returns the other ends, by device.
    pub const fn found(&self) -> &BTreeMap<u32, FarEnd> {
        &self.found
    }

    /// Returns whether a look has succeeded.
    pub const fn has_looked(&self) -> bool {
        self.has_looked
    }

    /// Returns this node's link-local addresses.
    pub async fn link_local(&self) -> Result<BTreeSet<IpAddr>, NodeError> {
        self.questions.link_local().await
    }

    /// Finds the devices that are new in a topology. Those in `known` have their pods. A look that fails finds none, and the
    /// next one of [`Ends::look`] repeats it.
    pub async fn fresh(&self, network: &Topology, known: &BTreeSet<u32>) -> Fresh {
        let all = pod_devices(network);
        let mut passing = not_of_pods(network, &all);
        if all.is_subset(&self.devices) {
            return Fresh { new: BTreeSet::new(), passing };
        }
        // Those that an earlier look has found need no second one.
        let others = all.difference(&self.devices).copied().collect();
        let ends = self.questions.look(&others).await.unwrap_or_default();
        // A second network of a pod that is known already is none of the firewall's. The agent may be a new one.
        let end = |device: &u32| self.found.get(device).or_else(|| ends.get(device));
        let namespaces: BTreeSet<i32> =
            known.iter().filter_map(|device| Some(end(device)?.namespace)).collect();
        let mut new = BTreeSet::new();
        for (device, end) in &ends {
            if !known.contains(device) && namespaces.contains(&end.namespace) {
                passing.insert(*device);
            } else {
                new.insert(*device);
            }
        }
        Fresh { new, passing }
    }

    /// Looks at the other ends. If each pod has its device (`is_settled`), only after a change. What a device showed before
    /// holds until the device is gone: a pod that is known is not open because a question failed. Returns whether anything
    /// has changed; the error is for people.
    pub async fn look(&mut self, network: &Topology, is_settled: bool) -> Result<bool, String> {
        let (devices, now) = (pod_devices(network), Instant::now());
        let is_alone = |since: &Instant| now.duration_since(*since) >= ALONE;
        if is_settled && devices == self.devices && self.endless.values().all(is_alone) {
            return Ok(false);
        }
        let before = self.found.clone();
        self.found.retain(|device, _| device_name(*device).is_some());
        let looked = self.questions.look(&devices).await;
        if let Ok(ends) = &looked {
            self.found.extend(ends.clone());
            let has_none = |device: &u32| !self.found.contains_key(device);
            self.endless.retain(|device, _| devices.contains(device) && has_none(device));
            for device in devices.iter().filter(|device| has_none(device)) {
                self.endless.entry(*device).or_insert(now);
            }
            (self.devices, self.has_looked) = (devices, true);
        }
        looked.map_err(|error| format!("the devices of pods can't be asked for: {error}"))?;
        Ok(self.found != before)
    }

    /// Returns the devices that are no pods', among those that were looked at.
    pub fn others(&self, network: &Topology) -> BTreeSet<u32> {
        let mut others = not_of_pods(network, &pod_devices(network));
        let alone = self.endless.iter().filter(|(_, since)| since.elapsed() >= ALONE);
        others.extend(alone.map(|(device, _)| *device));
        others
    }
}

fn pod_devices(network: &Topology) -> BTreeSet<u32> {
    let leads_to_pod = |target: &AttachTarget| target.hooks.contains(&Hook::TcPodIn);
    network.devices.iter().filter(|(_, target)| leads_to_pod(target)).map(|(device, _)| *device).collect()
}

fn not_of_pods(network: &Topology, of_pods: &BTreeSet<u32>) -> BTreeSet<u32> {
    network.devices.keys().filter(|device| !of_pods.contains(device)).copied().collect()
}
