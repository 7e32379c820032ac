//! Faults of tables: Millrace's flow tables are full, or the kernel's connection tracking is emptied.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::drill::fault::{Fault, Mend};
use crate::drill::ground::{FLOWS, Ground, NODES};
use crate::drill::way::Way;
use crate::net::{flush_conntrack, read_sysctl};
use crate::topology::Family;
use crate::traffic::{PAIRS_PER_TICK, TICKS_PER_SECOND, route_strangers, send_datagram_pairs};

/// The node whose tables are filled.
const NODE: u8 = 1;

/// The faults of this file.
pub(super) const FAULTS: &[Fault] = &[
    Fault::new(
        "maps-full",
        "Forged datagrams fill both flow tables of node 1 twice. The drill checks that the tables are full.",
        fill,
    )
    .lasting(0, 0),
    Fault::new(
        "conntrack-flushed",
        "All nodes track connections for a firewall, and forget all of them.",
        flush,
    ),
];

fn fill(ground: &mut Ground) -> Result<Mend> {
    let size: u32 = FLOWS.parse()?;
    route_strangers(ground.cluster().bed())?;
    for (family, map) in Family::ALL.into_iter().zip(["FLOWS4", "FLOWS6"]) {
        let target: SocketAddr = Way::Local.target(ground.cluster(), family)?;
        let ticks = size * 2 / PAIRS_PER_TICK;
        ensure!(ticks / TICKS_PER_SECOND < 30, "the flood takes too long");
        ground.cluster().bed().client().run(async move || send_datagram_pairs(target, ticks).await)?;
        let used = used(ground, map)?;
        // The kernel evicts entries in batches for each processor, so a full table is never quite full.
        ensure!(used >= size / 10 * 9, "{map} has only {used} of {size} entries");
    }
    Ok(Box::new(|_| Ok(())))
}

/// Returns the number of entries of a map of node 1.
fn used(ground: &Ground, map: &str) -> Result<u32> {
    let maps = ground.cluster().proxy(NODE)?.items("maps")?;
    let row = maps.iter().find(|row| row.get("name").and_then(|name| name.as_str()) == Some(map));
    let row = row.with_context(|| format!("`millrace maps` has no {map}: {maps:?}"))?;
    let used = row.get("used").and_then(serde_json::Value::as_u64);
    Ok(u32::try_from(used.with_context(|| format!("the entries of {map} were not counted: {row}"))?)?)
}

fn flush(ground: &mut Ground) -> Result<Mend> {
    for node in NODES {
        let rule = "add table inet drill; \
                    add chain inet drill forward { type filter hook forward priority 0; }; \
                    add rule inet drill forward ct state established,related accept";
        ground.run(node, &["nft", rule])?;
    }
    std::thread::sleep(Duration::from_secs(1));
    for node in NODES {
        let namespace = ground.cluster().bed().node(node)?.namespace();
        let tracked = namespace.run(async || {
            let tracked = read_sysctl("net/netfilter/nf_conntrack_count")?;
            flush_conntrack()?;
            Ok(tracked)
        })?;
        ensure!(tracked != "0", "node {node} tracked no connection");
    }
    Ok(Box::new(|ground| {
        NODES.iter().try_for_each(|node| ground.run(*node, &["nft", "delete table inet drill"]))
    }))
}
