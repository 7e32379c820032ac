//! Timed rounds of a program, behind the wrapper that restores the frame.

use anyhow::{Context, Result, ensure};
use aya::maps::{Array, MapData, ProgramArray};
use aya::programs::{ProgramFd, SchedClassifier, TestRun, TestRunOptions, Xdp};
use aya::{Ebpf, EbpfLoader};
use millrace_lab::program::{Hook, object_path};
use serde::Serialize;

use super::rounds::Rounds;

/// The room for the bytes that a program puts in front of the frame.
const HEADROOM: usize = 256;

/// The wrapper of XDP or of TC programs, with a frame.
pub struct Wrapper {
    ebpf: Ebpf,
    is_xdp: bool,
    frame: Vec<u8>,
    last: Option<Outcome>,
}

/// How the rounds of a sample are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Repetition {
    /// The kernel repeats them in one call.
    InKernel,
    /// There is a call for each round, for a tenth of the rounds.
    ///
    /// The effect of some programs on an skb can't be undone. Caches are colder then, also for the
    /// empty program.
    Single,
}

/// The extent of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// How rounds are repeated.
    pub repetition: Repetition,
    /// Rounds in a sample.
    pub rounds: u32,
    /// The number of samples.
    pub samples: usize,
}

/// The action and the frame (with metadata) of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Outcome {
    action: u32,
    frame: Vec<u8>,
}

impl Wrapper {
    /// Loads the wrapper of a hook's programs.
    pub fn load(hook: Hook, frame: &[u8]) -> Result<Self> {
        let path = object_path().with_file_name("millrace-bench-bpf");
        let object = std::fs::read(&path)
            .with_context(|| format!("{}: `cargo xtask bench` builds it", path.display()))?;
        let mut ebpf = EbpfLoader::new().load(&object)?;
        for name in ["wrap_xdp", "empty_xdp"] {
            <&mut Xdp>::try_from(ebpf.program_mut(name).context(name)?)?.load()?;
        }
        for name in ["wrap_tc", "empty_tc"] {
            <&mut SchedClassifier>::try_from(ebpf.program_mut(name).context(name)?)?.load()?;
        }
        Ok(Self { ebpf, is_xdp: hook == Hook::XdpIngress, frame: frame.to_vec(), last: None })
    }

    /// Returns the empty program of the hook.
    pub fn empty(&self) -> Result<ProgramFd> {
        let name = if self.is_xdp { "empty_xdp" } else { "empty_tc" };
        Ok(self.ebpf.program(name).context(name)?.fd()?.try_clone()?)
    }

    /// Sets the rotation of the next rounds.
    pub fn rotate(&mut self, rounds: Rounds) -> Result<()> {
        self.rounds()?.set(0, rounds, 0)?;
        Ok(())
    }

    /// Runs a program for this number of rounds.
    pub fn run(&mut self, program: &ProgramFd, rounds: u32) -> Result<()> {
        self.set_target(program)?;
        self.sample(rounds).map(drop)
    }

    /// Returns the median, over the samples, of a round's mean nanoseconds.
    pub fn median(&mut self, program: &ProgramFd, plan: Plan) -> Result<u64> {
        self.set_target(program)?;
        let mut means = (0..plan.samples).map(|_| self.mean(plan)).collect::<Result<Vec<_>>>()?;
        means.sort_unstable();
        means.get(plan.samples / 2).copied().context("no samples")
    }

    /// Repeats the last round of the last sample alone. It must end the same way.
    pub fn check_last_round(&mut self, program: &ProgramFd) -> Result<()> {
        let last = self.last.take().context("nothing was run yet")?;
        let state = self.rounds()?.get(&0, 0)?;
        self.rotate(state.back())?;
        self.run(program, 1)?;
        let single = self.last.take().context("nothing was run")?;
        ensure!(
            last == single,
            "the last round of a sample left {last:02x?}, but alone it leaves {single:02x?}"
        );
        Ok(())
    }

    fn set_target(&mut self, program: &ProgramFd) -> Result<()> {
        let target = if self.is_xdp { "XDP_TARGET" } else { "TC_TARGET" };
        let mut targets: ProgramArray<_> = self.ebpf.map_mut(target).context(target)?.try_into()?;
        targets.set(0, program, 0)?;
        Ok(())
    }

    fn mean(&mut self, plan: Plan) -> Result<u64> {
        match plan.repetition {
            Repetition::InKernel => self.sample(plan.rounds),
            Repetition::Single => {
                let calls = (plan.rounds / 10).max(1);
                let total = (0..calls).map(|_| self.sample(1)).sum::<Result<u64>>()?;
                Ok(total / u64::from(calls))
            }
        }
    }

    fn rounds(&mut self) -> Result<Array<&mut MapData, Rounds>> {
        Ok(self.ebpf.map_mut("ROUNDS").context("ROUNDS")?.try_into()?)
    }

    fn sample(&mut self, rounds: u32) -> Result<u64> {
        let mut output = vec![0; self.frame.len() + HEADROOM];
        let options = TestRunOptions {
            data_in: Some(&self.frame),
            data_out: Some(&mut output),
            repeat: rounds,
            ..TestRunOptions::default()
        };
        let result = if self.is_xdp {
            <&Xdp>::try_from(self.ebpf.program("wrap_xdp").context("wrap_xdp")?)?.test_run(options)?
        } else {
            <&SchedClassifier>::try_from(self.ebpf.program("wrap_tc").context("wrap_tc")?)?
                .test_run(options)?
        };
        output.truncate(usize::try_from(result.data_size_out)?);
        self.last = Some(Outcome { action: result.return_value, frame: output });
        Ok(u64::try_from(result.duration.as_nanos())?)
    }
}
