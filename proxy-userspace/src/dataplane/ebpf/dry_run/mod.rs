//! A run of the node's programs on one frame, without an effect on the node.
//!
//! The object is loaded once more. The maps that programs only read are the node's own. The maps that they write are
//! private, and begin with copies of the entries that the frame concerns (decision 160). `BPF_PROG_TEST_RUN` carries
//! out no redirect. Only two helpers would still send something: those that cut a packet and those that release held
//! fragments. The caller keeps such frames away.

mod concern;
mod context;
mod maps;

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;

use aya::programs::{
    Program as LoadedBy, ProgramError, SchedClassifier, TestRun, TestRunOptions, TestRunResult, Xdp,
};
use aya::{Ebpf, EbpfLoader};
use proxy_common::config::HANDOVER_MAGIC;
use proxy_common::part::parts_of;
use proxy_common::verdict::{Program, Reason};

use super::error::OpenError;
use super::layout::Layout;
use super::load::load_programs;
use super::node_programs::{NodeConstants, constants_in, directory};
use super::object::OBJECT;
use super::{parts, sys};
pub use concern::{Concern, Keys};
pub(super) use context::Context;
use maps::{PrivateMaps, SHARED, check_pins, private_size};

/// Bytes by which a program may lengthen a frame: the headroom of an XDP buffer, which metadata shares.
const HEADROOM: usize = 256;

/// The reasons why a frame can't be run.
#[derive(Debug, thiserror::Error)]
pub enum DryRunError {
    /// No programs are pinned.
    #[error("no programs are on this node")]
    NoPrograms,
    /// The programs are those of another build.
    #[error(
        "the programs on this node are those of another build; run the `millrace` of the agent that loaded them"
    )]
    OtherBuild,
    /// The program has no test run that makes sense.
    #[error("{0} can't be run on a frame")]
    NotRunnable(&'static str),
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
    /// The program counted the frame under no reason, or under several.
    #[error("{program} counted the frame under {count} reasons")]
    Count {
        /// The program.
        program: &'static str,
        /// The number of reasons.
        count: usize,
    },
}

/// A program of this node, ready to run on frames.
#[derive(Debug)]
pub struct DryRun {
    object: Ebpf,
    program: Program,
    maps: PrivateMaps,
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran {
    /// The reason that the program counted the frame under.
    pub reason: Reason,
    /// The program's return value.
    pub action: u32,
    /// The frame as the program left it.
    pub frame: Vec<u8>,
    /// Whether XDP put its metadata in front, which tells `tc_ingress` that the frame is served.
    pub is_handed_over: bool,
    /// The packet's mark; 0 for XDP.
    pub mark: u32,
    /// Time of the run.
    pub duration: Duration,
}

/// Returns whether a pinned program is the one of the object.
pub(super) fn is_of_this_build(
    object: &Ebpf,
    program: &'static str,
    pinned: BorrowedFd<'_>,
    pin: &Path,
) -> Result<bool, OpenError> {
    let tag = |fd: BorrowedFd<'_>| {
        sys::program_tag(fd).map_err(|error| OpenError::File { path: pin.to_owned(), error })
    };
    Ok(tag(parts::fd_of(object, program)?.as_fd())? == tag(pinned)?)
}

impl DryRun {
    /// Loads a program of uplinks or of pods' devices beside the one that serves.
    pub fn open(bpffs_path: &Path, program: Program) -> Result<Self, DryRunError> {
        let layout = Layout::new(bpffs_path);
        let serving = directory(&layout)?.ok_or(DryRunError::NoPrograms)?;
        let pin = serving.join(program.name());
        let object = load(&layout, &constants_in(&serving)?, program)?;
        let pinned = sys::obj_get(&pin).map_err(|error| OpenError::File { path: pin.clone(), error })?;
        if !is_of_this_build(&object, program.name(), pinned.as_fd(), &pin)? {
            return Err(DryRunError::OtherBuild);
        }
        let maps = PrivateMaps::open(&object, &layout)?;
        Ok(Self { object, program, maps })
    }

    /// Returns the program.
    #[must_use]
    pub const fn program(&self) -> Program {
        self.program
    }

    /// Runs the program on a frame with an Ethernet header that comes in by a device of this network namespace.
    ///
    /// `concern` names the entries that the program may look up; the private maps are made equal to the node's there.
    pub fn run(&mut self, frame: &[u8], device: u32, concern: &Concern) -> Result<Ran, DryRunError> {
        self.maps.prepare(concern, frame, device)?;
        let before = self.maps.counted(self.program)?;
        let mut output = vec![0; frame.len() + HEADROOM];
        let given = Context::new(self.program, device, frame.len());
        let mut left = given.clone();
        let options = TestRunOptions {
            data_in: Some(frame),
            data_out: Some(&mut output),
            ctx_in: Some(given.bytes()),
            ctx_out: Some(left.bytes_mut()),
            ..TestRunOptions::default()
        };
        let result = self.test_run(options)?;
        output.truncate(usize::try_from(result.data_size_out).unwrap_or(0));
        let frame = output.split_off(left.metadata().min(output.len()));
        let after = self.maps.counted(self.program)?;
        let moved: Vec<Reason> = before
            .into_iter()
            .zip(after)
            .filter(|(old, new)| old != new)
            .map(|((reason, _), _)| reason)
            .collect();
        let [reason] = moved.as_slice() else {
            return Err(DryRunError::Count { program: self.program.name(), count: moved.len() });
        };
        Ok(Ran {
            reason: *reason,
            action: result.return_value,
            is_handed_over: output == HANDOVER_MAGIC.to_ne_bytes(),
            frame,
            mark: left.mark(),
            duration: result.duration,
        })
    }

    fn test_run(&self, options: TestRunOptions<'_>) -> Result<TestRunResult, DryRunError> {
        let name = self.program.name();
        let refused = |error| DryRunError::Refused { program: name, error };
        match self.object.program(name) {
            Some(LoadedBy::Xdp(program)) => Xdp::test_run(program, options).map_err(refused),
            Some(LoadedBy::SchedClassifier(program)) => {
                SchedClassifier::test_run(program, options).map_err(refused)
            }
            _ => Err(DryRunError::NotRunnable(name)),
        }
    }
}

/// Loads the object with the node's constants and the maps that programs only read, and the program with its parts.
fn load(layout: &Layout, constants: &NodeConstants, program: Program) -> Result<Ebpf, DryRunError> {
    // The loader would make a map that is not there, and pin it.
    check_pins(layout)?;
    let mut loader = EbpfLoader::new();
    for (name, words) in constants.all() {
        loader.override_global(name, words, true);
    }
    for (name, _) in super::inventory::maps(&super::Sizes::default()) {
        let pin = layout.maps().join(name);
        if SHARED.contains(&name) {
            loader.map_pin_path(name, pin);
        } else if let Some(size) = private_size(name, &pin, constants) {
            loader.map_max_entries(name, size);
        }
    }
    let mut object = loader.load(OBJECT).map_err(OpenError::Object)?;
    let parts: Vec<_> = parts_of(program.name()).collect();
    let mut names: Vec<&'static str> = parts.iter().map(|part| part.name).collect();
    names.push(program.name());
    load_programs(&mut object, &names)?;
    for part in parts {
        parts::fill(&mut object, part)?;
    }
    Ok(object)
}
