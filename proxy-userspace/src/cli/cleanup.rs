//! `millrace cleanup`.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};

use super::error::CliError;
use super::output::{Document, OutputArgs, Table};
use super::place::Place;
use crate::dataplane::ebpf::read::{PinnedMaps, ReadError};
use crate::dataplane::{ebpf, ipvs};
use crate::node::{self, Host};
use crate::source::Signs;
use crate::source::kubernetes::{DaemonSetName, connect, wait_for_daemonset};

/// Time for a routing daemon to tell the routers that a route is gone.
const WITHDRAWAL: Duration = Duration::from_secs(1);

/// Flags of `millrace cleanup`.
#[derive(Args, Clone, Debug)]
pub struct CleanupArgs {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    form: OutputArgs,
    /// Action after the clean-up: end, or wait for SIGTERM, as a DaemonSet's pod needs it
    #[arg(long, value_name = "end|wait", value_enum, default_value_t = Then::End)]
    then: Then,
    /// Wait until this DaemonSet, which cleans nodes up, is ready on each of them; nothing is removed here
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = daemonset, conflicts_with = "then")]
    wait_for: Option<DaemonSetName>,
    /// Kubeconfig file for --wait-for
    #[arg(long, value_name = "PATH", requires = "wait_for")]
    kubeconfig: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Then {
    End,
    Wait,
}

fn daemonset(text: &str) -> Result<DaemonSetName, String> {
    match text.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
            Ok(DaemonSetName { namespace: namespace.to_owned(), name: name.to_owned() })
        }
        _ => Err("takes NAMESPACE/NAME".to_owned()),
    }
}

/// The output of `millrace cleanup -o json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Cleanup {
    /// Links, programs and maps, as paths below the BPF file system; device, table and virtual services of
    /// IPVS.
    removed: Vec<String>,
    /// The number of removed neighbours.
    neighbours: usize,
    /// The prefixes of removed routes.
    routes: Vec<String>,
    /// The outcome for each setting of the host that an agent had changed.
    sysctls: Vec<String>,
}

/// Removes everything that an agent left, here or by waiting for the DaemonSet that does so.
pub async fn run(args: &CleanupArgs) -> Result<(), CliError> {
    if let Some(daemonset) = &args.wait_for {
        let connection = connect(args.kubeconfig.as_deref(), Signs::default()).await?;
        let tell = |state: &_| {
            // If standard output is closed, the exit status tells.
            let _ = writeln!(io::stdout(), "{}/{}: {state}", daemonset.namespace, daemonset.name);
        };
        wait_for_daemonset(&connection, daemonset, tell).await;
        return Ok(());
    }
    args.form.show(&args.place, &clean_up(&args.place).await?)?;
    if args.then == Then::Wait {
        signal(SignalKind::terminate())?.recv().await;
    }
    Ok(())
}

/// Removes everything that an agent with these pins left, and fails if anything is left after that.
///
/// Reserved ports are given back. Forwarding stays on, because pods may rely on it.
async fn clean_up(place: &Place) -> Result<Document, CliError> {
    // Unreadable pins can be removed all the same.
    let ways = place.maps().and_then(|maps| maps.ways()).unwrap_or_default();
    let targets: BTreeSet<IpAddr> = ways.iter().map(|way| way.target).collect();
    let of_ebpf = |error| match error {
        ebpf::OpenError::InUse { process, .. } => CliError::Running { process },
        error => error.into(),
    };
    let of_ipvs = |error| match error {
        ipvs::OpenError::InUse => CliError::Running { process: place.agent().map(|agent| agent.process) },
        error => error.into(),
    };
    ebpf::check_unused(&place.bpffs_path).map_err(of_ebpf)?;
    ipvs::check_unused().map_err(of_ipvs)?;
    // First, while the programs still serve what a routing daemon announces. What fails here keeps nothing else.
    let withdrawn = node::withdraw_own_routes().await;
    if withdrawn.as_ref().is_ok_and(|routes| !routes.is_empty()) {
        tokio::time::sleep(WITHDRAWAL).await;
    }
    let cleaned = ebpf::cleanup(&place.bpffs_path).map_err(of_ebpf)?;
    let of_ipvs = ipvs::cleanup().map_err(of_ipvs)?.removed;
    let neighbours = node::release_for(&targets).await?;
    let others = node::remove_own_routes().await?;
    let routes: BTreeSet<_> = withdrawn?.union(&others).copied().collect();
    let routes = routes.iter().map(|route| route.prefix.to_string()).collect();
    match PinnedMaps::open(&place.bpffs_path) {
        Err(ReadError::Absent { .. }) => {}
        _ => return Err(CliError::Left(format!("maps below {}", place.bpffs_path.display()))),
    }
    // No agent runs, or this had been refused.
    let sysctls = Host::new(Some(&ebpf::notes(&place.bpffs_path))).restore();
    if !sysctls.is_empty() {
        // Made by the agent if it is empty now. A mount point, or one with others' pins, refuses.
        let _ = std::fs::remove_dir(&place.bpffs_path);
    }
    let removed = [cleaned.removed, of_ipvs].concat();
    let cleanup = Cleanup { removed, neighbours, routes, sysctls };
    Document::table("Cleanup", &cleanup, table(&cleanup))
}

fn table(cleanup: &Cleanup) -> Table {
    let mut table = Table::new(&["REMOVED"]);
    for path in &cleanup.removed {
        table.push([path.clone()]);
    }
    if cleanup.neighbours > 0 {
        table.push([format!("{} neighbours", cleanup.neighbours)]);
    }
    for prefix in &cleanup.routes {
        table.push([format!("route {prefix}")]);
    }
    for setting in &cleanup.sysctls {
        table.push([format!("sysctl {setting}")]);
    }
    if cleanup.removed.is_empty()
        && cleanup.neighbours == 0
        && cleanup.routes.is_empty()
        && cleanup.sysctls.is_empty()
    {
        table.push(["nothing was there".to_owned()]);
    }
    table
}
