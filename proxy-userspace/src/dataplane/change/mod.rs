//! A node that changes its mode: the new one serves what begins, and TCP and SCTP connections stay with the former one until they
//! have ended, or for as long as `--drain` says. Datagrams change over at once.
//!
//! The former mode gives way when the new one has been filled, so that at every instant one of them serves what begins. A change that an
//! agent left unfinished is gone on with by the next one, or turned round.

mod to_ebpf;
mod to_ipvs;

use std::time::Duration;

pub use to_ebpf::ToEbpf;
pub use to_ipvs::ToIpvs;

use super::ebpf::EbpfDataplane;
use super::ipvs::IpvsDataplane;
use super::{Dataplane, SyncFailure, SyncReport, ebpf, ipvs};
use crate::model::{Desired, Dirty};

/// How often the former mode is asked what is left of it, and what fails is tried again.
const INTERVAL: Duration = Duration::from_secs(30);

/// Serves by eBPF, and goes over to it where IPVS serves yet.
pub fn to_ebpf(
    settings: ebpf::Settings,
    ipvs: &ipvs::Settings,
    drain: Duration,
) -> Result<Box<dyn Dataplane>, ebpf::OpenError> {
    if !ipvs::is_here() {
        return Ok(Box::new(EbpfDataplane::open(settings)?));
    }
    let share = ebpf::recorded(&settings.bpffs_path).to_newer();
    let dataplane = EbpfDataplane::open(ebpf::Settings { share, ..settings })?;
    Ok(Box::new(ToEbpf::new(dataplane, ipvs.clone(), drain)))
}

/// Serves by IPVS, and goes over to it where eBPF serves yet.
pub fn to_ipvs(
    settings: &ipvs::Settings,
    ebpf: ebpf::Settings,
    drain: Duration,
) -> Result<Box<dyn Dataplane>, ipvs::OpenError> {
    let is_attached = ebpf::is_attached(&ebpf.bpffs_path);
    let dataplane = IpvsDataplane::open(settings)?;
    if !is_attached {
        return Ok(Box::new(dataplane));
    }
    Ok(Box::new(ToIpvs::new(dataplane, ebpf, drain)))
}

/// Whether the new mode serves what begins, as far as it will soon: what it can't serve the former one must not serve for ever either.
/// `is_attached` is whether it could when it was last told of devices.
fn is_filled(is_attached: bool, report: &SyncReport, dirty: &Dirty) -> bool {
    is_attached && !dirty.incomplete && !is_fatal(report)
}

fn is_fatal(report: &SyncReport) -> bool {
    report.failures.iter().any(SyncFailure::is_fatal)
}

/// Everything, for a data plane that was told nothing yet.
fn everything(desired: &Desired, dirty: &Dirty) -> Dirty {
    let ports = desired.ports.keys().cloned().collect();
    Dirty { ports, nodes: true, health: true, incomplete: dirty.incomplete }
}

/// A time in words: full minutes, or seconds.
fn in_words(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds => format!("{} min", seconds / 60),
    }
}
