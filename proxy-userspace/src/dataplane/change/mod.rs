//! Mode changes of a node. The new mode serves new connections at once. TCP and SCTP connections
//! stay with the former mode until they end, or for the time of `--drain`. Datagrams change the
//! mode at once.
//!
//! The former mode gives up new connections only when the new mode is filled, so that one of them
//! serves new connections at every instant. The next agent continues an unfinished change, or
//! reverses it.

mod from_ebpf;
mod from_kernel;
mod to_ebpf;

use std::time::Duration;

use tracing::{info, warn};

pub use from_ebpf::FromEbpf;
pub use from_kernel::FromKernel;
pub use to_ebpf::ToEbpf;

use super::ebpf::{EbpfDataplane, Frontends, Share};
use super::ipvs::IpvsDataplane;
use super::kernel_rules::KernelRules;
use super::{Dataplane, SyncReport, ebpf, ipvs};
use crate::model::{Desired, Dirty};

/// The interval of checks of the former mode's connections, and of retries.
const INTERVAL: Duration = Duration::from_secs(30);

/// Returns a data plane for eBPF. It changes the mode if IPVS or the kernel's rules (kube-proxy)
/// still serve.
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
    // While eBPF serves alone, connections translated by the kernel are none of its own.
    let may_share = !ebpf::is_attached(&settings.bpffs_path) || recorded != Share::Alone;
    let connections = if may_share { served_by_kernel(&frontends) } else { 0 };
    let share = if connections == 0 { Share::Alone } else { recorded.to_newer() };
    let mut dataplane = EbpfDataplane::open(ebpf::Settings { share, ..settings })?;
    // First: a full map loses what was noted first.
    if connections > 0 {
        dataplane.note_ports_of_kernel(desired);
    }
    dataplane.note_node_flows(&frontends);
    if connections == 0 {
        return Ok(Box::new(dataplane));
    }
    info!(
        connections,
        "the kernel's rules, such as those of kube-proxy, serve connections to Services; they stay there"
    );
    Ok(Box::new(FromKernel::new(dataplane, frontends, drain)))
}

/// Returns the number of connections to frontends that the kernel's rules translate.
fn served_by_kernel(frontends: &Frontends) -> usize {
    frontends.translated_by_kernel().unwrap_or_else(|error| {
        warn!(%error, "listing the kernel's connections failed; connections served by kube-proxy may end");
        0
    })
}

/// Returns a data plane for IPVS. It changes the mode if eBPF still serves.
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
    Ok(Box::new(FromEbpf::new(dataplane, ebpf, drain)))
}

/// Returns a data plane that gives this node back to kube-proxy. It changes the mode if eBPF still
/// serves.
///
/// A node that IPVS serves has to change to eBPF first: both IPVS and kube-proxy translate in the
/// kernel, so new packets can't be told to pass one of them by.
pub fn to_kernel_rules(ebpf: ebpf::Settings, drain: Duration) -> Result<Box<dyn Dataplane>, IpvsServes> {
    if ipvs::is_here() {
        return Err(IpvsServes);
    }
    let rules = KernelRules::default();
    if !ebpf::is_attached(&ebpf.bpffs_path) {
        return Ok(Box::new(rules));
    }
    Ok(Box::new(FromEbpf::new(rules, ebpf, drain)))
}

/// IPVS serves a node that is to be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "--proxy-mode none: IPVS serves this node, and can't give way to kube-proxy; use --proxy-mode ebpf \
     first, and wait until the mode change is over"
)]
pub struct IpvsServes;

/// Returns whether the new mode serves new connections as far as it can. The former mode must not
/// keep serving for a port that the new mode can't serve.
///
/// `is_attached` tells whether it could serve at the last `set_topology`.
fn is_filled(is_attached: bool, report: &SyncReport, dirty: &Dirty) -> bool {
    is_attached && !dirty.incomplete && report.serves()
}

/// Returns a time as text: full minutes, or seconds.
fn readable(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds => format!("{} min", seconds / 60),
    }
}
