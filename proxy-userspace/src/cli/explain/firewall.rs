//! The pod firewall's part of an answer.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::Serialize;

use crate::cli::error::CliError;
use crate::cli::output::note;
use crate::cli::place::Place;
use crate::cli::pod_devices::{Unanswered, by_address, closed};
use crate::dataplane::ebpf::firewall::{PinnedFirewall, PolicyLookups, PolicyTables};
use crate::dataplane::ebpf::read::ReadError;
use crate::explain::{Crossed, Engines, Guard, Judged, Past, PolicyRun, Ruling, Step};

/// A packet at a device of a pod, as in JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GuardRow {
    /// The program, or `nftables`.
    pub program: &'static str,
    /// The direction, seen from the pod.
    direction: &'static str,
    /// `namespace/name` of the pod; none if it is not known.
    pod: Option<String>,
    device: String,
    pub steps: Vec<Step>,
    /// The end by the tables: why the packet passes, or the reason of the drop.
    pub ruling: &'static str,
    /// Each policy that has a rule for the connection, as `namespace/name`.
    allowed_by: Vec<String>,
    /// The policies that isolate the pod in the connection's direction, as `namespace/name`.
    isolated_by: Vec<String>,
    /// The end of the run: `passed`, or the reason of the drop.
    pub run: Option<&'static str>,
    /// Why there is no run.
    pub not_run: Option<String>,
    /// Time of the run.
    nanoseconds: Option<u128>,
    /// The end by the tables in the words of a run.
    #[serde(skip)]
    pub walk: &'static str,
}

impl GuardRow {
    pub fn of(crossed: &Crossed) -> Self {
        let Judged { direction, device, pod, steps, ruling, isolated_by, .. } = &crossed.judged;
        let (ran, not_run) = match &crossed.run {
            PolicyRun::Ran(ran) => (Some(ran), None),
            PolicyRun::NotRun(why) => (None, Some(why.clone())),
        };
        Self {
            program: if *ruling == Ruling::ClosedByNftables {
                "nftables"
            } else {
                PolicyLookups::program(*direction)
            },
            direction: direction.name(),
            pod: pod.clone(),
            device: PolicyLookups::device_name(*device),
            steps: steps.clone(),
            ruling: ruling.name(),
            allowed_by: if let Ruling::Allowed(policies) = ruling { policies.clone() } else { Vec::new() },
            isolated_by: isolated_by.clone(),
            run: ran.map(|ran| ran.dropped.map_or("passed", |reason| reason.name())),
            not_run,
            nanoseconds: ran.map(|ran| ran.duration.as_nanos()),
            walk: if ruling.is_drop() { ruling.name() } else { "passed" },
        }
    }
}

/// Returns a command that shows the policies behind a drop.
pub fn next(judged: &Judged) -> Option<String> {
    match judged.ruling {
        Ruling::Denied if !judged.isolated_by.is_empty() => {
            let (namespace, _) = judged.isolated_by.first()?.split_once('/')?;
            let names = judged.isolated_by.iter().filter_map(|policy| policy.split_once('/'));
            let names: Vec<&str> = names.map(|(_, name)| name).collect();
            Some(format!("kubectl -n {namespace} get networkpolicy {} -o yaml", names.join(" ")))
        }
        Ruling::UnknownPod | Ruling::ClosedByNftables => Some("millrace policies".to_owned()),
        _ => None,
    }
}

/// The pinned firewall of this node.
pub struct Pinned {
    firewall: PinnedFirewall,
    lookups: PolicyLookups,
    /// The devices that rules of nftables close, by index, with their names.
    closed: BTreeMap<u32, String>,
}

impl Pinned {
    /// Opens the firewall; `None` where it is off.
    pub fn open(place: &Place) -> Result<Option<Self>, CliError> {
        let Some(firewall) = PinnedFirewall::find(&place.bpffs_path)? else { return Ok(None) };
        let lookups = firewall.lookups()?;
        let closed = if lookups.v4().is_open_to_unknown() { BTreeMap::new() } else { closed() };
        lookups.take_failure()?;
        Ok(Some(Self { firewall, lookups, closed }))
    }

    /// Returns both engines.
    pub const fn guard(&self, engines: Engines, past: Past) -> Guard<'_> {
        Guard::new(&self.firewall, &self.lookups, &self.closed, engines, past)
    }

    /// Whether rules of nftables close a device.
    pub fn closes(&self, device: &str) -> bool {
        self.closed.values().any(|name| name == device)
    }

    /// Returns the devices with an unknown pod behind them, by the addresses at their other ends.
    fn unknown(&self) -> BTreeMap<IpAddr, u32> {
        let unknown = || -> Result<BTreeMap<IpAddr, u32>, Failure> {
            let mut devices = self.lookups.unknown_devices()?;
            devices.extend(self.closed.keys());
            Ok(by_address(&devices)?)
        };
        unknown().unwrap_or_else(|error| {
            note(&format!("devices without a known pod can't be asked for their addresses: {error}"));
            BTreeMap::new()
        })
    }
}

/// The devices with an unknown pod, which are looked for when one is first asked for.
pub struct Unknown<'a> {
    pinned: Option<&'a Pinned>,
    found: Option<BTreeMap<IpAddr, u32>>,
}

impl<'a> Unknown<'a> {
    pub const fn of(pinned: Option<&'a Pinned>) -> Self {
        Self { pinned, found: None }
    }

    /// Returns the device of the pod with an address.
    pub fn device_of(&mut self, address: IpAddr) -> Option<u32> {
        let pinned = self.pinned?;
        self.found.get_or_insert_with(|| pinned.unknown()).get(&address).copied()
    }
}

/// The reasons for which the other ends of devices are not known.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Kernel(#[from] Unanswered),
}
