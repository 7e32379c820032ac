//! Test targets inside machines. They are built on this machine and carried there with their
//! libraries.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::Value;

use super::image::{self, Contents};
use super::kernel::{self, Build, Kernel};
use super::nic::{Nic, Wire};
use super::parallel::in_parallel;
use super::target::Target;
use super::{OBJECT_IN_GUEST, POLICY_IN_GUEST, boot};
use crate::test::{self, Outcome, Tally};
use crate::workspace::Workspace;
use crate::{command, setup};

/// The longest duration of a part of a target, under emulation and on a busy machine. A longer one
/// is a hang.
const BOUND: Duration = Duration::from_mins(45);
/// The longest duration of a whole target.
const WHOLE_BOUND: Duration = Duration::from_hours(3);
/// The factor by which tests wait longer than on a real machine.
const PATIENCE: &str = "10";
/// The most lines of failed tests that are shown. The console has all.
const MOST_FAILURE_LINES: usize = 200;
const PROGRAM: &str = "/tests";
/// The place of the agent in machines that have one.
pub const AGENT: &str = "/millrace";
const PATH: &str = "/usr/sbin:/usr/bin";

/// The profile in which agents are built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// The profile of all tests.
    Debug,
    /// The profile of installed agents.
    Release,
}

impl Profile {
    const fn directory(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Release => "release",
        }
    }
}

/// How much of the targets the test layer runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// The tests that each target names.
    Named,
    /// All tests on all kernels, which takes hours.
    Whole,
}

impl Extent {
    const fn bound(self) -> Duration {
        match self {
            Self::Named => BOUND,
            Self::Whole => WHOLE_BOUND,
        }
    }
}

/// Returns the machines of the test layer's part of each target, built.
pub fn layer<'a>(workspace: &Workspace, targets: &[Target], extent: Extent) -> Result<Vec<Run<'a>>> {
    let mut runs = Vec::new();
    for target in targets {
        let (names, parts): (&[&str], &[&[&str]]) = match extent {
            Extent::Named => (target.kernels, target.machines),
            Extent::Whole => (&kernel::NAMES, &[&[]]),
        };
        if names.is_empty() {
            continue;
        }
        let programs = build(workspace, *target, Profile::Debug)?;
        let nics = match extent {
            Extent::Named => target.nics.first().into_iter().collect(),
            Extent::Whole => target.nics_named(&[])?,
        };
        let is_wanted = |kernel: &&Kernel| names.contains(&kernel.name);
        for kernel in kernel::KERNELS.iter().filter(is_wanted) {
            let nics = machines(&nics);
            let each = nics.into_iter().flat_map(|nic| (1..).zip(parts).map(move |part| (nic, part)));
            runs.extend(each.map(|(nic, (part, filters))| Run {
                kernel,
                target: *target,
                nic,
                part,
                programs: programs.clone(),
                filters: filters.iter().map(|filter| (*filter).to_owned()).collect(),
                extent,
            }));
        }
    }
    Ok(runs)
}

fn all(workspace: &Workspace, runs: &[Run<'_>]) -> Tally {
    in_parallel(runs, |run| run.count(workspace)).into_iter().sum()
}

/// Returns the card of each machine: one machine for each card, or one without any.
fn machines(nics: &[&'static Nic]) -> Vec<Option<&'static Nic>> {
    if nics.is_empty() { vec![None] } else { nics.iter().copied().map(Some).collect() }
}

/// Runs a target on the kernels that are not this machine's own. Layers of their own have those
/// tests.
pub fn run_on<'a>(
    workspace: &Workspace,
    kernels: impl Iterator<Item = &'a Kernel>,
    target: Target,
    nics: &[&'static Nic],
    profile: Profile,
    filters: &[String],
) -> Result<Tally> {
    let programs = build(workspace, target, profile)?;
    let extent = if filters.is_empty() { Extent::Whole } else { Extent::Named };
    let run = |kernel, nic| Run {
        kernel,
        target,
        nic,
        part: 1,
        programs: programs.clone(),
        filters: filters.to_vec(),
        extent,
    };
    let runs = kernels.flat_map(|kernel| machines(nics).into_iter().map(move |nic| (kernel, nic)));
    Ok(all(workspace, &runs.map(|(kernel, nic)| run(kernel, nic)).collect::<Vec<_>>()))
}

/// A target on a kernel.
pub struct Run<'a> {
    kernel: &'a Kernel,
    target: Target,
    /// The cards of its machine.
    nic: Option<&'static Nic>,
    /// The number of the machine, among those with the same target, kernel and card.
    part: usize,
    programs: Vec<(PathBuf, &'static str)>,
    filters: Vec<String>,
    extent: Extent,
}

impl Run<'_> {
    /// Runs its machine.
    pub fn count(&self, workspace: &Workspace) -> Tally {
        // This machine's own kernel runs its tests in layers of their own.
        self.kernel
            .suite
            .map_or_else(Tally::default, |suite| test::count(&self.title(), self.perform(workspace, suite)))
    }

    fn title(&self) -> String {
        let card = self.nic.map(|nic| format!(" with {}", nic.name)).unwrap_or_default();
        let part = if self.part > 1 { format!(", machine {}", self.part) } else { String::new() };
        format!("{} on kernel {}{card}{part}", self.target.name, self.kernel.name)
    }

    fn perform(&self, workspace: &Workspace, suite: &str) -> Result<Outcome> {
        let Self { kernel, target, nic, part, programs, filters, extent } = self;
        if let Some(reason) = kernel.obstacle()? {
            return Ok(Outcome::Unable(reason));
        }
        if nic.is_some_and(|nic| nic.wire != Wire::Hub) && !setup::is_root()? {
            return Ok(Outcome::Unable("bridges between network cards take root".to_owned()));
        }
        let start = Instant::now();
        let build = nic.map_or(Build::Cloud, |nic| nic.build);
        let unpacked = kernel::ensure(workspace, kernel.name, suite, build)?;
        let guest = workspace.target().join("debug/vm-guest");
        let mut words = vec![PROGRAM];
        words.extend(filters.iter().map(String::as_str));
        words.extend(target.skipped.iter().flat_map(|name| ["--skip", *name]));
        let mut environment = vec![
            ("CI", "true"),
            ("MILLRACE_BPF_OBJECT", OBJECT_IN_GUEST),
            ("MILLRACE_POLICY_BPF_OBJECT", POLICY_IN_GUEST),
            ("MILLRACE_BIN", AGENT),
            ("MILLRACE_PATIENCE", PATIENCE),
            ("PATH", PATH),
        ];
        if std::env::var_os("MILLRACE_LONG").is_some() {
            environment.push(("MILLRACE_LONG", "1"));
        }
        let queues = nic.map_or(1, Nic::processors).to_string();
        let mut modules = target.modules.concat();
        let mut name = format!("{}-{}", kernel.name, target.name);
        if *part > 1 {
            write!(name, "-{part}")?;
        }
        if let Some(nic) = nic {
            nic.require_driver(kernel.name, &unpacked)?;
            environment.push(("MILLRACE_NIC", nic.driver));
            environment.push(("MILLRACE_QUEUES", &queues));
            modules.extend(nic.modules);
            write!(name, "-{}", nic.name)?;
        }
        let contents = Contents {
            guest: &guest,
            words: &words,
            environment: &environment,
            modules: &modules,
            programs,
            files: &[
                (workspace.bpf_object(), OBJECT_IN_GUEST),
                (workspace.policy_bpf_object(), POLICY_IN_GUEST),
            ],
        };
        let (ran, console) = boot(workspace, &unpacked, &name, &contents, *nic, extent.bound())?;
        let tally: Tally =
            ran.console.lines().filter_map(|line| Tally::from_result_line(line.trim_end())).sum();
        // The XDP mode of each node.
        for line in ran.console.lines().filter(|line| line.starts_with("driver ")) {
            println!("  {}", line.trim_end());
        }
        println!("{} ({:.0} s): {tally}", self.title(), start.elapsed().as_secs_f64());
        if tally.failed == 0 {
            ran.require(&console)?;
        } else {
            for line in failures(&ran.console) {
                eprintln!("  | {line}");
            }
            eprintln!("  the whole console is in {}", console.display());
        }
        Ok(Outcome::Ran(tally))
    }
}

/// Returns the lines of a console that name the tests that failed, then what these tests printed.
///
/// The test program prints that between two lines `failures:`. A program that was killed has no such lines.
fn failures(console: &str) -> Vec<&str> {
    let lines = || console.lines().map(str::trim_end);
    let is_heading = |line: &&str| *line == "failures:";
    let names = lines().filter(|line| line.ends_with("... FAILED"));
    let printed = lines().skip_while(|line| !is_heading(line)).skip(1).take_while(|line| !is_heading(line));
    names.chain(printed.take(MOST_FAILURE_LINES)).collect()
}

/// Returns the programs of a machine that runs a target: the target's tests, an agent if it needs
/// one, and tools.
fn build(workspace: &Workspace, target: Target, profile: Profile) -> Result<Vec<(PathBuf, &'static str)>> {
    let mut programs = vec![(test_program(workspace, target)?, PROGRAM)];
    if target.needs_agent {
        // Cargo has built the debug agent with the tests. For the agent alone, it would build most
        // dependencies once more, with fewer features, and replace the program that other tests run.
        if profile == Profile::Release {
            command::run(workspace.cargo().args(["build", "--package", "millrace", "--release"]))?;
        }
        let agent = workspace.target().join(profile.directory()).join("millrace");
        programs.push((stripped(workspace, &agent, "millrace")?, AGENT));
    }
    programs.extend(target.tools.iter().map(|tool| (PathBuf::from(tool), *tool)));
    Ok(programs)
}

/// Returns the path of the target's program, without debug information.
fn test_program(workspace: &Workspace, target: Target) -> Result<PathBuf> {
    let mut cargo = workspace.cargo();
    cargo.args(["test", "--workspace", "--no-run", "--message-format", "json", "--test", target.name]);
    let messages = command::output(&mut cargo)?;
    let program = messages
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .find_map(|message| executable(&message, target.name))
        .with_context(|| format!("cargo has built no test target `{}`", target.name))?;
    stripped(workspace, &program, target.name)
}

fn executable(message: &Value, target: &str) -> Option<PathBuf> {
    let is_it = message.get("target")?.get("name")? == target && message.get("profile")?.get("test")? == true;
    is_it.then(|| message.get("executable")?.as_str().map(PathBuf::from))?
}

fn stripped(workspace: &Workspace, program: &Path, name: &str) -> Result<PathBuf> {
    let stripped = image::directory(workspace)?.join(name);
    // A parallel run must not find a partial file.
    let copy = stripped.with_extension(process::id().to_string());
    fs::copy(program, &copy).with_context(|| format!("can't copy {}", program.display()))?;
    command::run(workspace.command("strip").arg("--strip-debug").arg(&copy))?;
    fs::rename(&copy, &stripped).with_context(|| format!("can't rename {}", copy.display()))?;
    Ok(stripped)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_program_of_a_test_target_is_found_among_cargos_messages() {
        let message = |name: &str, test| {
            json!({"reason": "compiler-artifact", "target": {"name": name}, "profile": {"test": test},
                   "executable": "/deps/it-1"})
        };
        assert_eq!(executable(&message("packet", true), "packet"), Some(PathBuf::from("/deps/it-1")));
        assert_eq!(executable(&message("packet", false), "packet"), None);
        assert_eq!(executable(&message("other", true), "packet"), None);
        assert_eq!(executable(&json!({"reason": "build-finished"}), "packet"), None);
    }

    #[test]
    fn a_failed_test_is_shown_with_what_it_printed() {
        let console = "test a ... ok\r\ntest b ... FAILED\r\n\r\nfailures:\r\n\r\n---- b stdout ----\r\nno answer\r\n\
                       \r\nfailures:\r\n    b\r\n";
        assert_eq!(failures(console), ["test b ... FAILED", "", "---- b stdout ----", "no answer", ""]);
        assert_eq!(failures("test b ... FAILED\r\n[   9.1] reset"), ["test b ... FAILED"]);
    }
}
