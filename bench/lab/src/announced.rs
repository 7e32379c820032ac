//! Addresses on the nodes' own network: which node answers for them.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::cluster::Cluster;
use crate::patience::patience;

/// Time between two looks.
const PAUSE: Duration = Duration::from_millis(20);

/// Returns those of `nodes` that answer for an address. Each of them has programs.
pub fn holders(cluster: &Cluster, address: IpAddr, nodes: &[u8]) -> Result<BTreeSet<u8>> {
    let mut holders = BTreeSet::new();
    for node in nodes {
        let items = cluster.proxy(*node)?.items("announced")?;
        if items.iter().any(|item| item["address"] == address.to_string()) {
            holders.insert(*node);
        }
    }
    Ok(holders)
}

/// Waits until one of `nodes` alone answers for an address, and returns it.
pub fn wait_for_holder(cluster: &Cluster, address: IpAddr, nodes: &[u8], limit: Duration) -> Result<u8> {
    let end = Instant::now() + patience(limit);
    loop {
        let found: Vec<u8> = holders(cluster, address, nodes)?.into_iter().collect();
        if let [one] = found[..] {
            return Ok(one);
        }
        ensure!(Instant::now() < end, "{address} is answered by {found:?} of {nodes:?}");
        sleep(PAUSE);
    }
}
