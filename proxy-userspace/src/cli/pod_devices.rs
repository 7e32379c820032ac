//! Questions to the kernel about devices of pods, as far as the pinned maps have no answer.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;

use super::output::note;
use crate::dataplane::ebpf::firewall::NewDevicesView;
use crate::node::{NodeError, PodDevices};

/// The reasons for which a question has no answer.
#[derive(Debug, thiserror::Error)]
pub enum Unanswered {
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Returns these devices by the addresses at their other ends.
pub fn by_address(devices: &BTreeSet<u32>) -> Result<BTreeMap<IpAddr, u32>, Unanswered> {
    if devices.is_empty() {
        return Ok(BTreeMap::new());
    }
    let ends = runtime()?.block_on(async { PodDevices::open()?.look(devices).await })?;
    let by_address =
        ends.into_iter().map(|(device, end)| end.addresses.into_iter().map(move |ip| (ip, device)));
    Ok(by_address.flatten().collect())
}

/// Returns the devices that rules of nftables close, by index, with their names. Without an answer there is none, and a line says so.
///
/// Where the cluster has no policy there are no such rules, and the question could make the kernel load nftables.
pub fn closed() -> BTreeMap<u32, String> {
    let closed = || -> Result<_, Unanswered> {
        let rules = NewDevicesView::read()?;
        let veths = runtime()?.block_on(async { PodDevices::open()?.veths().await })?;
        Ok(rules.closed(veths))
    };
    closed().unwrap_or_else(|error| {
        note(&format!("nftables can't be asked for the devices that it closes: {error}"));
        BTreeMap::new()
    })
}

fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}
