//! A run of the firewall's programs on one frame, without an effect on the node.
//!
//! As the dry run of the proxy's programs (decision 160): the object is loaded once more, with the node's own maps where the
//! programs only read, and private ones where they write.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use aya::maps::{Map, PerCpuArray};
use aya::programs::{ProgramError, SchedClassifier, TestRun, TestRunOptions};
use aya::{Ebpf, EbpfLoader};
use proxy_common::policy::{PolicyDirection, PolicyDrop, PolicyFlowKey};
use proxy_common::verdict::Counter;
use proxy_common::{Addr4, Addr6};

use super::maps::COUNTERS;
use super::programs::{load_program, ours};
use super::read::PinnedFirewall;
use super::side::Side;
use crate::dataplane::ebpf::dry_run::{Context, is_of_this_build};
use crate::dataplane::ebpf::error::OpenError;
use crate::dataplane::ebpf::object::POLICY_OBJECT;
use crate::dataplane::ebpf::raw_map::{RawMap, bytes_of};
use crate::dataplane::ebpf::{map, sys};

/// The maps that the programs only read: the node's own.
const SHARED: [&str; 6] =
    ["POLICY_CONFIG", "POLICY_PODS", "POLICY_GUARDED", "POLICY_PEERS4", "POLICY_PEERS6", "POLICY_RULES"];
/// The private maps with an entry for each connection or packet, which need few here.
const SMALL: [&str; 6] = [
    "POLICY_FLOWS4",
    "POLICY_FLOWS6",
    "POLICY_FRAGMENTS4",
    "POLICY_FRAGMENTS6",
    "POLICY_NAMES",
    "POLICY_OWNERS",
];
/// Entries of a private map. An LRU map evicts before it is full: each CPU keeps some free entries for itself.
const ENTRIES: u32 = 1 << 10;
/// What a TC program returns for a packet that it drops: `TC_ACT_SHOT`.
const SHOT: u32 = 2;

/// The reasons why a frame can't be run.
#[derive(Debug, thiserror::Error)]
pub enum PolicyRunError {
    /// The programs are those of another build.
    #[error(
        "the firewall's programs are those of another build; run the `millrace` of the agent that loaded them"
    )]
    OtherBuild,
    /// The object can't be loaded, or a map not be read.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The kernel refused the run.
    #[error("{program} can't be run: {error}")]
    Refused {
        /// The program.
        program: &'static str,
        /// aya's error.
        error: ProgramError,
    },
    /// The program dropped the frame without a reason.
    #[error("{program} counted the frame under no reason")]
    Uncounted {
        /// The program.
        program: &'static str,
    },
}

/// The connection of a frame, whose entry the programs may look up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyKey {
    /// One of POLICY_FLOWS4.
    V4(PolicyFlowKey<Addr4>),
    /// One of POLICY_FLOWS6.
    V6(PolicyFlowKey<Addr6>),
}

impl From<PolicyFlowKey<Addr4>> for PolicyKey {
    fn from(key: PolicyFlowKey<Addr4>) -> Self {
        Self::V4(key)
    }
}

impl From<PolicyFlowKey<Addr6>> for PolicyKey {
    fn from(key: PolicyFlowKey<Addr6>) -> Self {
        Self::V6(key)
    }
}

/// A frame at a device of a pod.
#[derive(Clone, Copy, Debug)]
pub struct Crossing<'a> {
    /// The frame, with an Ethernet header.
    pub frame: &'a [u8],
    /// Its direction, seen from the pod.
    pub direction: PolicyDirection,
    /// Index of the device.
    pub device: u32,
    /// Index of the device that it came in by; 0 for a frame of the node itself.
    pub came_in_by: u32,
    /// Its connection; none if no entry is to be known.
    pub key: Option<PolicyKey>,
}

/// The result of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyRan {
    /// The reason of the drop; none if the packet passed.
    pub dropped: Option<PolicyDrop>,
    /// Time of the run.
    pub duration: Duration,
}

/// The firewall's programs, ready to run on frames.
pub struct PolicyDryRun {
    object: Ebpf,
    counters: PerCpuArray<aya::maps::MapData, Counter>,
    flows4: Pair,
    flows6: Pair,
}

impl std::fmt::Debug for PolicyDryRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PolicyDryRun").finish_non_exhaustive()
    }
}

/// A private map beside the node's.
#[derive(Debug)]
struct Pair {
    own: RawMap,
    nodes: RawMap,
}

impl PolicyDryRun {
    /// Loads the programs beside those that judge.
    pub fn open(firewall: &PinnedFirewall) -> Result<Self, PolicyRunError> {
        let maps = firewall.maps();
        let mut object = load(&maps)?;
        for side in Side::ALL {
            check_build(&object, side, &ours(&firewall.programs()))?;
        }
        let counters = object.take_map(COUNTERS).ok_or_else(|| unknown(COUNTERS))?;
        let counters = PerCpuArray::try_from(counters);
        let counters = counters.map_err(|error| OpenError::Map { map: COUNTERS.to_owned(), error })?;
        let pair = |name: &'static str| {
            let Some(Map::LruHashMap(own)) = object.map(name) else { return Err(unknown(name)) };
            Ok(Pair { own: RawMap::of(name, own)?, nodes: RawMap::of(name, &map::open(&maps, name)?.0)? })
        };
        let (flows4, flows6) = (pair("POLICY_FLOWS4")?, pair("POLICY_FLOWS6")?);
        Ok(Self { object, counters, flows4, flows6 })
    }

    /// Runs the program of a direction on a frame.
    pub fn run(&mut self, crossing: &Crossing<'_>) -> Result<PolicyRan, PolicyRunError> {
        let program = Side::of(crossing.direction).program();
        self.flows4.own.clear()?;
        self.flows6.own.clear()?;
        match crossing.key {
            Some(PolicyKey::V4(key)) => self.flows4.own.copy(&self.flows4.nodes, &bytes_of(&key))?,
            Some(PolicyKey::V6(key)) => self.flows6.own.copy(&self.flows6.nodes, &bytes_of(&key))?,
            None => {}
        }
        let before = self.dropped(crossing.direction)?;
        let context = Context::of_skb(crossing.device, crossing.came_in_by);
        let mut output = vec![0; crossing.frame.len()];
        let mut left = context.clone();
        let options = TestRunOptions {
            data_in: Some(crossing.frame),
            data_out: Some(&mut output),
            ctx_in: Some(context.bytes()),
            ctx_out: Some(left.bytes_mut()),
            ..TestRunOptions::default()
        };
        let refused = |error| PolicyRunError::Refused { program, error };
        let loaded = self.object.program(program).ok_or(OpenError::NoProgram { program })?;
        let loaded: &SchedClassifier = loaded.try_into().map_err(refused)?;
        let result = loaded.test_run(options).map_err(refused)?;
        let dropped = if result.return_value == SHOT {
            let after = self.dropped(crossing.direction)?;
            let moved = PolicyDrop::ALL.into_iter().zip(before.iter().zip(&after));
            let mut moved = moved.filter(|(_, (old, new))| old != new).map(|(reason, _)| reason);
            Some(moved.next().ok_or(PolicyRunError::Uncounted { program })?)
        } else {
            None
        };
        Ok(PolicyRan { dropped, duration: result.duration })
    }

    /// Returns the number of frames dropped for each reason.
    fn dropped(&self, direction: PolicyDirection) -> Result<Vec<u64>, OpenError> {
        let count = |reason: PolicyDrop| {
            let failed = |error| OpenError::Map { map: COUNTERS.to_owned(), error };
            let values = self.counters.get(&reason.counter(direction), 0).map_err(failed)?;
            Ok(values.iter().map(|counter| counter.packets).sum())
        };
        PolicyDrop::ALL.into_iter().map(count).collect()
    }
}

/// Loads the object with the node's tables.
fn load(maps: &Path) -> Result<Ebpf, OpenError> {
    let mut loader = EbpfLoader::new();
    for name in SHARED {
        // The loader would make a map that is not there, and pin it.
        map::open(maps, name)?;
        loader.map_pin_path(name, maps.join(name));
    }
    for name in SMALL {
        loader.map_max_entries(name, ENTRIES);
    }
    let mut object = loader.load(POLICY_OBJECT).map_err(OpenError::Object)?;
    for side in Side::ALL {
        load_program(&mut object, side)?;
    }
    Ok(object)
}

/// Fails if the node's program is not the one of this build.
fn check_build(object: &Ebpf, side: Side, directory: &Path) -> Result<(), PolicyRunError> {
    let pin: PathBuf = directory.join(side.program());
    let pinned = sys::obj_get(&pin).map_err(|_| PolicyRunError::OtherBuild)?;
    let is_ours = is_of_this_build(object, side.program(), pinned.as_fd(), &pin)?;
    if is_ours { Ok(()) } else { Err(PolicyRunError::OtherBuild) }
}

fn unknown(map: &str) -> OpenError {
    OpenError::UnknownMap { map: map.to_owned() }
}
