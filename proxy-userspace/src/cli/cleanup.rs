//! `millrace cleanup`.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde::Serialize;

use super::table::Table;
use super::{CliError, Show};
use crate::dataplane::ebpf::read::{PinnedMaps, ReadError};
use crate::dataplane::{ebpf, ipvs};
use crate::node::{self, Host};

/// The output of `millrace cleanup -o json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Cleanup {
    /// Links, programs and maps, as paths below the BPF file system; device, table and virtual services of
    /// IPVS.
    removed: Vec<String>,
    /// The number of removed neighbours.
    neighbours: usize,
    /// The outcome for each setting of the host that an agent had changed.
    sysctls: Vec<String>,
}

/// Removes everything that an agent with these pins left, and fails if anything is left after that.
///
/// Reserved ports are given back. Forwarding stays on, because pods may rely on it.
pub async fn run(show: &Show) -> Result<(), CliError> {
    // Unreadable pins can be removed all the same.
    let ways = show.maps().and_then(|maps| maps.ways()).unwrap_or_default();
    let targets: BTreeSet<IpAddr> = ways.iter().map(|way| way.target).collect();
    let cleaned = ebpf::cleanup(&show.bpffs_path)?;
    let of_ipvs = ipvs::cleanup()?.removed;
    let neighbours = node::release_for(&targets).await?;
    match PinnedMaps::open(&show.bpffs_path) {
        Err(ReadError::Absent { .. }) => {}
        _ => return Err(CliError::Left(format!("maps below {}", show.bpffs_path.display()))),
    }
    // No agent runs, or this had been refused.
    let sysctls = Host::new(Some(&ebpf::notes(&show.bpffs_path))).restore();
    if !sysctls.is_empty() {
        // Made by the agent if it is empty now. A mount point, or one with others' pins, refuses.
        let _ = std::fs::remove_dir(&show.bpffs_path);
    }
    let removed = [cleaned.removed, of_ipvs].concat();
    show.print(&Cleanup { removed, neighbours, sysctls }, |cleanup| vec![table(cleanup)])
}

fn table(cleanup: &Cleanup) -> Table {
    let mut table = Table::new(&["REMOVED"]);
    for path in &cleanup.removed {
        table.push([path.clone()]);
    }
    if cleanup.neighbours > 0 {
        table.push([format!("{} neighbours", cleanup.neighbours)]);
    }
    for setting in &cleanup.sysctls {
        table.push([format!("sysctl {setting}")]);
    }
    if cleanup.removed.is_empty() && cleanup.neighbours == 0 && cleanup.sysctls.is_empty() {
        table.push(["nothing was there".to_owned()]);
    }
    table
}
