//! Bodies of many packets, for which the card computes checksums and cuts segments, and datagrams of all
//! sizes.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use millrace_lab::topology::{Family, vip};
use millrace_lab::traffic::{Fate, Fragments, send_datagram};

use crate::fixture::{Way, shared};

const BODY: usize = 3_000_000;

#[test]
fn large_bodies_cross_in_both_directions() -> Result<()> {
    let cluster = shared();
    for (way, family) in Way::ALL.into_iter().flat_map(|way| Family::ALL.map(|family| (way, family))) {
        let target = SocketAddr::new(vip(way.number()).of(family), 80);
        cluster.exchange(target, BODY).with_context(|| format!("{way:?} {family}"))?;
    }
    Ok(())
}

#[test]
fn datagrams_of_all_sizes_come_back_whole() -> Result<()> {
    let cluster = shared();
    let client = cluster.bed().client();
    for (way, family) in Way::ALL.into_iter().flat_map(|way| Family::ALL.map(|family| (way, family))) {
        let target = SocketAddr::new(vip(way.number()).of(family), 80);
        for bytes in [1, 2, 7, 18, 19, 100, 1000, 1400, 1432, 1452, 1472, 1473, 4000, 20_000, 60_000] {
            let mut fate = send_datagram(client, target, Fragments::Allowed, bytes)?;
            // A sender of IPv6 learns the size of the tunnel, and cuts its datagrams from then on.
            if family == Family::V6 && matches!(fate, Fate::TooLarge(_)) {
                fate = send_datagram(client, target, Fragments::Allowed, bytes)?;
            }
            assert_eq!(fate, Fate::Echoed, "{way:?} {bytes} bytes to {target}");
        }
    }
    Ok(())
}
