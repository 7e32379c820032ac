//! `millrace cleanup`.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde::Serialize;

use super::table::Table;
use super::{CliError, Show};
use crate::dataplane::ebpf::read::{PinnedMaps, ReadError};
use crate::dataplane::{ebpf, ipvs};
use crate::node;

/// What `millrace cleanup -o json` prints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Cleanup {
    /// Links, programs and maps, as paths below the BPF file system; device, table and virtual services of IPVS.
    removed: Vec<String>,
    /// Number of neighbours that were removed.
    neighbours: usize,
}

/// Removes everything that an agent with these pins left, and fails if something is still there after that.
/// Sysctls stay: others may have come to rely on them.
pub async fn run(show: &Show) -> Result<(), CliError> {
    // What can't be read can be removed all the same.
    let ways = show.maps().and_then(|maps| maps.ways()).unwrap_or_default();
    let targets: BTreeSet<IpAddr> = ways.iter().map(|way| way.target).collect();
    let cleaned = ebpf::cleanup(&show.bpffs_path)?;
    let of_ipvs = ipvs::cleanup()?.removed;
    let neighbours = node::release_for(&targets).await?;
    match PinnedMaps::open(&show.bpffs_path) {
        Err(ReadError::Absent { .. }) => {}
        _ => return Err(CliError::Left(format!("maps below {}", show.bpffs_path.display()))),
    }
    let removed = [cleaned.removed, of_ipvs].concat();
    show.print(&Cleanup { removed, neighbours }, |cleanup| vec![table(cleanup)])
}

fn table(cleanup: &Cleanup) -> Table {
    let mut table = Table::new(&["REMOVED"]);
    for path in &cleanup.removed {
        table.push([path.clone()]);
    }
    if cleanup.neighbours > 0 {
        table.push([format!("{} neighbours", cleanup.neighbours)]);
    }
    if cleanup.removed.is_empty() && cleanup.neighbours == 0 {
        table.push(["nothing was there".to_owned()]);
    }
    table
}
