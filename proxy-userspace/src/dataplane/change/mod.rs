//! A node that changes its mode: the new one serves what begins, and TCP and SCTP connections stay with the former one until they
//! have ended, or for as long as `--drain` says. Datagrams change over at once.
//!
//! The former mode gives way when the new one has been filled, so that at every instant one of them serves what begins. A change that an
//! agent left unfinished is gone on with by the next one, or turned round.

mod from_kernel;
mod to_ebpf;
mod to_ipvs;

use std::time::Duration;

use tracing::{info, warn};

pub use from_kernel::FromKernel;
pub use to_ebpf::ToEbpf;
pub use to_ipvs::ToIpvs;

use super::ebpf::{EbpfDataplane, Frontends, Share};
use super::ipvs::IpvsDataplane;
use super::{Dataplane, SyncFailure, SyncReport, ebpf, ipvs};
use crate::model::{Desired, Dirty};

/// How often the former mode is asked what is left of it, and what fails is tried again.
const INTERVAL: Duration = Duration::from_secs(30);

/// Serves by eBPF, and goes over to it where IPVS serves yet, or the kernel's rules do: kube-proxy's.
pub fn to_ebpf(
    settings: ebpf::Settings,
    ipvs: &ipvs::Settings,
    drain: Duration,
    desired: &Desired,
) -> Result<Box<dyn Dataplane>, ebpf::OpenError> {
    let frontends = Frontends::of(desired);
    let recorded = ebpf::recorded(&settings.bpffs_path);
    if ipvs::is_here() {
        let share = recorded.to_newer();
        let mut dataplane = EbpfDataplane::open(ebpf::Settings { share, ..settings })?;
        dataplane.note_node_flows(&frontends);
        return Ok(Box::new(ToEbpf::new(dataplane, ipvs.clone(), drain)));
    }
    // Once eBPF has served alone, what the kernel still translates is none of it.
    let may_share = !ebpf::is_attached(&settings.bpffs_path) || matches!(recorded, Share::Newer { .. });
    let connections = if may_share { served_by_kernel(&frontends) } else { 0 };
    let share = if connections == 0 { Share::Alone } else { Share::Newer { turned: false } };
    let mut dataplane = EbpfDataplane::open(ebpf::Settings { share, ..settings })?;
    dataplane.note_node_flows(&frontends);
    if connections == 0 {
        return Ok(Box::new(dataplane));
    }
    info!(
        connections,
        "the kernel's rules serve connections to Services, as those of kube-proxy do; they stay there"
    );
    Ok(Box::new(FromKernel::new(dataplane, frontends, drain)))
}

/// Connections to frontends that rules of the kernel translate.
fn served_by_kernel(frontends: &Frontends) -> usize {
    frontends.translated_by_kernel().unwrap_or_else(|error| {
        warn!(%error, "the kernel's connections can't be listed; those that kube-proxy serves may end");
        0
    })
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
fn readable(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds => format!("{} min", seconds / 60),
    }
}
