//! Both engines on one frame.

use std::net::SocketAddr;
use std::path::PathBuf;

use proxy_common::verdict::{Program, Reason};

use super::step::{End, Walk};
use super::walk::walk;
use super::walker::Past;
use crate::dataplane::ebpf::dry_run::{DryRun, Ran};
use crate::dataplane::ebpf::read::{Lookups, ReadError};

/// Times that both engines are asked while they differ: the agent, and packets, change the tables meanwhile.
pub const TRIES: usize = 3;

/// The engines to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engines {
    /// The walk and the programs.
    Both,
    /// The walk alone.
    Walk,
}

/// A run of a program, or the reason why there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Run {
    /// The result of the run.
    Ran(Ran),
    /// The program was not run, for this reason.
    NotRun(String),
}

/// The way of a frame through one program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pass {
    /// The program.
    pub program: Program,
    /// The walk.
    pub walk: Walk,
    /// The run.
    pub run: Run,
}

impl Pass {
    /// Whether walk and run come to the same reason; `None` if one of them has none.
    #[must_use]
    pub fn agrees(&self) -> Option<bool> {
        match (&self.walk.end, &self.run) {
            (End::Verdict(verdict), Run::Ran(ran)) => Some(verdict.allows(ran.reason)),
            _ => None,
        }
    }

    /// Returns the destination of a call behind the program; `None` if it fails, or is not known before the call.
    #[must_use]
    pub fn reached(&self, to: SocketAddr) -> Option<SocketAddr> {
        match &self.walk.end {
            End::Verdict(verdict) if verdict.reason == Reason::NotOurs => Some(to),
            End::Verdict(verdict) => verdict.backend,
            End::NotWalked(_) => None,
        }
    }

    /// Returns the reason: the program's, else the walk's.
    #[must_use]
    pub const fn reason(&self) -> Option<Reason> {
        match (&self.run, &self.walk.end) {
            (Run::Ran(ran), _) => Some(ran.reason),
            (_, End::Verdict(verdict)) => Some(verdict.reason),
            (_, End::NotWalked(_)) => None,
        }
    }
}

/// The device that a frame comes in by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Door<'a> {
    /// Index of the device.
    pub device: u32,
    /// The programs, in the order in which a frame meets them.
    pub programs: &'a [Program],
    /// Whether its frames have no Ethernet header. A test run can't give a program such a frame.
    pub is_bare: bool,
}

/// Both engines of one node. A program is loaded when it is first asked.
#[derive(Debug)]
pub struct Explainer<'a> {
    lookups: &'a Lookups<'a>,
    bpffs_path: PathBuf,
    engines: Engines,
    past: Past,
    loaded: Vec<(Program, Result<DryRun, String>)>,
}

impl<'a> Explainer<'a> {
    /// Returns the engines over the pinned maps below a BPF file system.
    #[must_use]
    pub const fn new(lookups: &'a Lookups<'a>, bpffs_path: PathBuf, engines: Engines, past: Past) -> Self {
        Self { lookups, bpffs_path, engines, past, loaded: Vec::new() }
    }

    /// Takes a frame through the programs of a device, until one decides. Each hands over to the next if it can't.
    pub fn explain(&mut self, door: Door<'_>, frame: &[u8]) -> Result<Vec<Pass>, ReadError> {
        let mut passes = Vec::new();
        for program in door.programs {
            let pass = self.pass(*program, door, frame)?;
            let goes_on = pass.reason() == Some(Reason::HandedToTc);
            passes.push(pass);
            if !goes_on {
                break;
            }
        }
        Ok(passes)
    }

    fn pass(&mut self, program: Program, door: Door<'_>, frame: &[u8]) -> Result<Pass, ReadError> {
        let mut tries = 0;
        loop {
            tries += 1;
            let walk = walk(self.lookups, program, door.device, frame, self.past);
            self.lookups.take_failure()?;
            let run = if door.is_bare {
                Run::NotRun(format!("{} can't be run on frames without an Ethernet header", program.name()))
            } else {
                self.run(program, door.device, frame, &walk)
            };
            let pass = Pass { program, walk, run };
            if pass.agrees() != Some(false) || tries == TRIES {
                return Ok(pass);
            }
        }
    }

    fn run(&mut self, program: Program, device: u32, frame: &[u8], walk: &Walk) -> Run {
        let name = program.name();
        if self.engines == Engines::Walk {
            return Run::NotRun("not asked".to_owned());
        }
        if walk.may_cut() {
            return Run::NotRun(format!("{name} would cut the packet, and send its first part for real"));
        }
        let ran = self
            .load(program)
            .and_then(|dry| dry.run(frame, device, &walk.concern).map_err(|error| error.to_string()));
        ran.map_or_else(Run::NotRun, Run::Ran)
    }

    fn load(&mut self, program: Program) -> Result<&mut DryRun, String> {
        let index = self.loaded.iter().position(|(known, _)| *known == program).unwrap_or_else(|| {
            let dry = DryRun::open(&self.bpffs_path, program).map_err(|error| error.to_string());
            self.loaded.push((program, dry));
            self.loaded.len() - 1
        });
        match self.loaded.get_mut(index) {
            Some((_, Ok(dry))) => Ok(dry),
            Some((_, Err(error))) => Err(error.clone()),
            None => Err(String::new()),
        }
    }
}
