//! What the agents hold and what the traffic takes at one time.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use aya::maps::MapData;
use proxy_common::flow::{Flow, FlowKey};
use proxy_common::{Addr4, Addr6};

use crate::drill::{Ground, Ledger, NODES, entries, pins};
use crate::program::FamilyMaps;

/// What one agent and its maps hold.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Held {
    /// Bytes of the agent's resident memory.
    pub(super) resident: u64,
    /// The agent's open files.
    pub(super) files: u64,
    /// Bytes of the kernel for the maps.
    pub(super) maps: u64,
    /// Entries of connections and datagrams.
    pub(super) flows: u64,
}

/// One sample.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    /// The time since the begin of the soak.
    pub(super) at: Duration,
    /// In the order of the nodes.
    pub(super) nodes: Vec<Held>,
    /// Bytes of the machine's kernel in slabs and in areas for each CPU.
    pub(super) kernel: u64,
    /// The number of exchanges since the sample before.
    pub(super) exchanges: usize,
    /// The duration that half of them did not exceed.
    pub(super) median: Duration,
    /// The duration that 99 of 100 did not exceed.
    pub(super) slow: Duration,
}

impl Sample {
    /// Takes a sample.
    pub(super) fn take(ground: &Ground, ledger: &Ledger, at: Duration) -> Result<Self> {
        let mut durations = ledger.take_durations();
        durations.sort_unstable();
        let part = |share: usize| durations.get(durations.len() * share / 100).copied().unwrap_or_default();
        Ok(Self {
            at,
            nodes: NODES.into_iter().map(|node| Held::of(ground, node)).collect::<Result<_>>()?,
            kernel: kernel()?,
            exchanges: durations.len(),
            median: part(50),
            slow: part(99),
        })
    }
}

impl Held {
    fn of(ground: &Ground, node: u8) -> Result<Self> {
        let process = ground.cluster().agent(node)?.id();
        let maps = pins(ground, node)?.join("maps");
        Ok(Self {
            resident: kilobytes(&format!("/proc/{process}/status"), &["VmRSS:"])?,
            files: fs::read_dir(format!("/proc/{process}/fd"))?.count() as u64,
            maps: memory(&maps)?,
            flows: flows::<Addr4>(&maps)? + flows::<Addr6>(&maps)?,
        })
    }
}

fn flows<A: FamilyMaps>(maps: &Path) -> Result<u64>
where
    FlowKey<A>: aya::Pod + fmt::Debug,
    Flow<A>: aya::Pod,
{
    ["FLOWS", "FLOWS_NEW"].into_iter().map(|map| entries::<A>(&maps.join(A::map(map)))).sum()
}

/// Returns the bytes of all maps below a directory of pins.
fn memory(maps: &Path) -> Result<u64> {
    let mut bytes = 0;
    for pin in fs::read_dir(maps)? {
        let path = pin?.path();
        let map = MapData::from_pin(&path).with_context(|| format!("can't open {}", path.display()))?;
        let descriptor = map.fd().as_fd().as_raw_fd();
        let text = fs::read_to_string(format!("/proc/self/fdinfo/{descriptor}"))?;
        let field = text.lines().find_map(|line| line.strip_prefix("memlock:"));
        bytes += field.context("no memlock in fdinfo")?.trim().parse::<u64>()?;
    }
    Ok(bytes)
}

fn kernel() -> Result<u64> {
    kilobytes("/proc/meminfo", &["Slab:", "Percpu:"])
}

/// Returns the sum of fields of a file of /proc, in bytes. Each of them is in kB there.
fn kilobytes(path: &str, fields: &[&str]) -> Result<u64> {
    let text = fs::read_to_string(path).with_context(|| format!("can't read {path}"))?;
    let of = |field: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(field))?.split_whitespace().next()?;
        value.parse::<u64>().ok()
    };
    let values: Option<u64> = fields.iter().map(|field| of(field)).sum();
    values.map(|sum| sum << 10).with_context(|| format!("{path} lacks one of {fields:?}"))
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:>6.0} s {:>6} exchanges, {:>5} us, {:>6} us;",
            self.at.as_secs_f32(),
            self.exchanges,
            self.median.as_micros(),
            self.slow.as_micros()
        )?;
        for Held { resident, files, maps, flows } in &self.nodes {
            write!(f, " {} kB, {files} files, maps {} kB, {flows} flows;", resident >> 10, maps >> 10)?;
        }
        write!(f, " kernel {} MB", self.kernel >> 20)
    }
}

/// Dropped packets of all nodes, by reason.
#[derive(Debug, Default)]
pub(super) struct Drops(BTreeMap<String, u64>);

impl Drops {
    /// Reads the counters.
    pub(super) fn read(ground: &Ground) -> Result<Self> {
        let mut drops = BTreeMap::new();
        for node in NODES {
            for counter in ground.cluster().proxy(node)?.counters()?.into_iter().filter(|one| one.drop) {
                *drops.entry(counter.reason.into_owned()).or_default() += counter.packets;
            }
        }
        Ok(Self(drops))
    }

    /// Returns the reasons with more packets than before, and how many more.
    pub(super) fn since(&self, before: &Self) -> BTreeMap<String, u64> {
        let more = |(reason, packets): (&String, &u64)| {
            let more = packets.saturating_sub(before.0.get(reason).copied().unwrap_or(0));
            (more > 0).then(|| (reason.clone(), more))
        };
        self.0.iter().filter_map(more).collect()
    }
}
