//! Faults of tables: Millrace's flow tables are full, or the kernel's connection tracking is emptied.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use aya::maps::{Map, MapData};
use proxy_common::flow::{Flow, FlowKey};
use proxy_common::{Addr4, Addr6};

use super::pins::root;
use crate::drill::fault::{Fault, Mend};
use crate::drill::ground::{FLOWS, Ground, NODES};
use crate::drill::way::Way;
use crate::net::{flush_conntrack, read_sysctl};
use crate::program::FamilyMaps;
use crate::topology::Family;
use crate::traffic::{PAIRS_PER_TICK, TICKS_PER_SECOND, route_strangers, send_datagram_pairs};

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
    for family in Family::ALL {
        let target: SocketAddr = Way::Local.target(ground.cluster(), family)?;
        let ticks = size * 2 / PAIRS_PER_TICK;
        ensure!(ticks / TICKS_PER_SECOND < 30, "the flood takes too long");
        ground.cluster().bed().client().run(async move || send_datagram_pairs(target, ticks).await)?;
        let used = match family {
            Family::V4 => used::<Addr4>(ground)?,
            Family::V6 => used::<Addr6>(ground)?,
        };
        // The agent removes entries from 90 % on.
        ensure!(used >= u64::from(size) / 10 * 9, "the {family} table has only {used} of {size} entries");
    }
    Ok(Box::new(|_| Ok(())))
}

fn used<A: FamilyMaps>(ground: &Ground) -> Result<u64>
where
    FlowKey<A>: aya::Pod + std::fmt::Debug,
    Flow<A>: aya::Pod,
{
    entries::<A>(&root(ground)?.join("maps").join(A::map("FLOWS")))
}

/// Counts the entries of a pinned flow table. `millrace maps` does not.
pub(crate) fn entries<A: FamilyMaps>(pin: &Path) -> Result<u64>
where
    FlowKey<A>: aya::Pod + std::fmt::Debug,
    Flow<A>: aya::Pod,
{
    let map = MapData::from_pin(pin).with_context(|| format!("can't open {}", pin.display()))?;
    let map = aya::maps::HashMap::<_, FlowKey<A>, Flow<A>>::try_from(Map::HashMap(map))?;
    // The walk starts anew where the present key was removed, so keys can come twice.
    let keys: HashSet<String> = map.keys().filter_map(Result::ok).map(|key| format!("{key:?}")).collect();
    Ok(keys.len() as u64)
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
