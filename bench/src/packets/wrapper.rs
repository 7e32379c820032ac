//! Rounds of a program, behind the wrapper that restores the frame.

use anyhow::{Context, Result};
use aya::maps::{Array, MapData, ProgramArray};
use aya::programs::{ProgramFd, SchedClassifier, TestRun, TestRunOptions, Xdp};
use aya::{Ebpf, EbpfLoader};
use millrace_lab::program::{Hook, Ingress, TestContext, object_path};

use super::rounds::{Round, Rounds};

/// The room for the bytes that a program puts in front of the frame.
const HEADROOM: usize = 256;

/// The wrapper of XDP or of TC programs, with a frame.
pub struct Wrapper {
    ebpf: Ebpf,
    hook: Hook,
    frame: Vec<u8>,
    ingress: Ingress,
}

/// How the rounds of a sample are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repetition {
    /// The kernel repeats them in one call.
    InKernel,
    /// There is a call for each round, for a tenth of the rounds.
    ///
    /// The effect of some programs on an skb can't be undone. Caches are colder then, also for the
    /// empty program.
    Single,
}

/// The result of a sample.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The mean of a round in nanoseconds. The kernel reports whole ones.
    pub nanoseconds: f64,
    /// The number of rounds.
    pub rounds: u64,
    /// The last round, and its end.
    pub last: (Round, Outcome),
}

/// The action and the frame of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The program's return value.
    pub action: u32,
    /// The metadata in front of the frame; only XDP has some.
    pub metadata: Vec<u8>,
    /// The frame.
    pub frame: Vec<u8>,
    /// The mark; only TC has one.
    pub mark: u32,
}

impl Wrapper {
    /// Loads the wrapper of a hook's programs. Frames come in by this device.
    pub fn load(hook: Hook, frame: &[u8], device: u32) -> Result<Self> {
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
        let ingress = Ingress { device, ..Ingress::default() };
        Ok(Self { ebpf, hook, frame: frame.to_vec(), ingress })
    }

    /// Lets the frames come in by no device. What comes back to its own device is the pod's own to the firewall.
    pub fn made_on_the_node(mut self) -> Self {
        self.ingress.is_own = true;
        self
    }

    /// Returns the empty program of the hook.
    pub fn empty(&self) -> Result<ProgramFd> {
        let name = if self.hook.is_xdp() { "empty_xdp" } else { "empty_tc" };
        Ok(self.ebpf.program(name).context(name)?.fd()?.try_clone()?)
    }

    /// Sets the rotation of the next rounds.
    pub fn rotate(&mut self, rounds: Rounds) -> Result<()> {
        self.rounds()?.set(0, rounds, 0)?;
        Ok(())
    }

    /// Takes a sample of a program.
    pub fn sample(&mut self, program: &ProgramFd, repetition: Repetition, rounds: u32) -> Result<Sample> {
        self.set_target(program)?;
        let (calls, repeat) = match repetition {
            Repetition::InKernel => (1, rounds),
            Repetition::Single => ((rounds / 10).max(1), 1),
        };
        let (mut total, mut end) = (0.0, None);
        for _ in 0..calls {
            let (nanoseconds, outcome) = self.run(repeat)?;
            total += nanoseconds;
            end = Some(outcome);
        }
        let round = self.rounds()?.get(&0, 0)?.last();
        let last = (round, end.context("nothing was run")?);
        let rounds = u64::from(calls) * u64::from(repeat);
        Ok(Sample { nanoseconds: total / f64::from(calls), rounds, last })
    }

    fn set_target(&mut self, program: &ProgramFd) -> Result<()> {
        let target = if self.hook.is_xdp() { "XDP_TARGET" } else { "TC_TARGET" };
        let mut targets: ProgramArray<_> = self.ebpf.map_mut(target).context(target)?.try_into()?;
        targets.set(0, program, 0)?;
        Ok(())
    }

    fn rounds(&mut self) -> Result<Array<&mut MapData, Rounds>> {
        Ok(self.ebpf.map_mut("ROUNDS").context("ROUNDS")?.try_into()?)
    }

    /// Runs rounds in one call. Returns the kernel's mean in nanoseconds, and the end of the last.
    fn run(&self, repeat: u32) -> Result<(f64, Outcome)> {
        let mut output = vec![0; self.frame.len() + HEADROOM];
        let given = TestContext::new(self.hook, self.ingress, self.frame.len());
        let mut left = given.clone();
        let options = TestRunOptions {
            data_in: Some(&self.frame),
            data_out: Some(&mut output),
            ctx_in: Some(given.bytes()),
            ctx_out: Some(left.bytes_mut()),
            repeat,
            ..TestRunOptions::default()
        };
        let result = if self.hook.is_xdp() {
            <&Xdp>::try_from(self.ebpf.program("wrap_xdp").context("wrap_xdp")?)?.test_run(options)?
        } else {
            <&SchedClassifier>::try_from(self.ebpf.program("wrap_tc").context("wrap_tc")?)?
                .test_run(options)?
        };
        output.truncate(usize::try_from(result.data_size_out)?);
        let frame = output.split_off(left.metadata().min(output.len()));
        let outcome = Outcome { action: result.return_value, metadata: output, frame, mark: left.mark() };
        // The kernel reports whole nanoseconds in 32 bits.
        Ok((f64::from(u32::try_from(result.duration.as_nanos())?), outcome))
    }
}
