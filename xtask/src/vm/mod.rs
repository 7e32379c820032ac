//! Loads every program on this machine's kernel and on others under emulation, within its
//! instruction budget. Runs test targets on those others.

mod budget;
mod cpio;
mod guest_tests;
mod image;
mod kernel;
mod nic;
mod parallel;
mod qemu;
mod second_opinion;
mod target;
mod wires;

use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use budget::{Budget, Count};
pub use guest_tests::Extent;
use guest_tests::Profile;
use image::Contents;
use kernel::{Build, Kernel, Unpacked};
use nic::Nic;
use parallel::in_parallel;
use qemu::{Machine, Ran};
pub use target::Target;

use crate::build::{self, Warnings};
use crate::command;
use crate::setup::{self, Need};
use crate::test::{self, Outcome, Tally};
use crate::workspace::Workspace;

const OBJECT_IN_GUEST: &str = "/millrace-bpf";
/// Beside the other one, where `vm-guest load` looks for it.
const POLICY_IN_GUEST: &str = "/millrace-policy-bpf";
/// Many times the duration on two idle cores, which is two minutes: machines get only what other tests leave.
const BOUND: Duration = Duration::from_mins(40);

/// Arguments of `cargo xtask vm`.
#[derive(clap::Args)]
pub struct Args {
    /// Only on this kernel; may be given several times
    #[arg(long, value_name = "NAME", value_parser = kernel::NAMES)]
    kernel: Vec<String>,
    /// Only with this network card, for the test target `drivers`; may be given several times
    #[arg(long, value_name = "DRIVER", value_parser = nic::NAMES, requires = "tests")]
    nic: Vec<String>,
    /// Write the counts found, with room to grow, as the new budget
    #[arg(long)]
    record: bool,
    /// Build the agents of a test target in release, for benchmarks
    #[arg(long, requires = "tests")]
    release: bool,
    /// Run a test target on the kernels instead of loading the programs; further words go to its
    /// tests
    #[arg(last = true, value_name = "TESTS")]
    tests: Vec<String>,
}

/// Runs `cargo xtask vm`.
pub fn vm(workspace: &Workspace, args: &Args) -> Result<ExitCode> {
    setup::ensure(workspace, &[Need::Build, Need::Programs, Need::Vm])?;
    build::bpf_object(workspace, Warnings::Allowed)?;
    let wanted =
        |kernel: &Kernel| args.kernel.is_empty() || args.kernel.iter().any(|name| name == kernel.name);
    let kernels = || kernel::KERNELS.iter().filter(|kernel| wanted(kernel));
    build_guest(workspace)?;
    if let [target, filters @ ..] = &args.tests[..] {
        let target = Target::named(target)?;
        let profile = if args.release { Profile::Release } else { Profile::Debug };
        let nics = target.nics_named(&args.nic)?;
        let tally = guest_tests::run_on(workspace, kernels(), target, &nics, profile, filters)?;
        println!("{tally}");
        return Ok(if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    if args.record {
        let kernels: Vec<_> = kernels().collect();
        let counts = in_parallel(&kernels, |kernel| load_on(workspace, kernel));
        let counts = counts.into_iter().collect::<Result<Vec<_>>>()?;
        Budget::with_room(&counts.concat()).write(workspace)?;
    }
    let tally = test_on(workspace, kernels())?;
    println!("{tally}");
    Ok(if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Loads the programs on this machine's kernel, and once more with bpftool: one test each.
pub fn load_here(workspace: &Workspace) -> Result<Tally> {
    build_guest(workspace)?;
    let mut tally = test_on(workspace, kernel::KERNELS.iter().filter(|kernel| kernel.suite.is_none()))?;
    tally += test::count("bpftool", second_opinion::load_with_bpftool(workspace));
    Ok(tally)
}

/// Runs the test layer's emulated machines: each kernel that is not this machine's own loads the programs, and test
/// targets run there.
pub fn emulate(workspace: &Workspace, targets: &[Target], extent: Extent) -> Result<Tally> {
    build_guest(workspace)?;
    let budget = Budget::read(workspace)?;
    let runs = guest_tests::layer(workspace, targets, extent)?;
    let loads = kernel::KERNELS.iter().filter(|kernel| kernel.suite.is_some());
    // The longest ones come first.
    let jobs: Vec<_> = runs.iter().map(Job::Tests).chain(loads.map(Job::Load)).collect();
    let tallies = in_parallel(&jobs, |job| match job {
        Job::Tests(run) => run.count(workspace),
        Job::Load(kernel) => count_load(workspace, kernel, &budget),
    });
    Ok(tallies.into_iter().sum())
}

/// Builds and unpacks what the test layer's machines need.
pub fn prepare(workspace: &Workspace, targets: &[Target]) -> Result<()> {
    build_guest(workspace)?;
    guest_tests::layer(workspace, targets, Extent::Named)?;
    for kernel in kernel::KERNELS {
        if let Some(suite) = kernel.suite {
            kernel::ensure(workspace, kernel.name, suite, Build::Cloud)?;
        }
    }
    Ok(())
}

/// The work of a machine.
enum Job<'a> {
    Tests(&'a guest_tests::Run<'a>),
    Load(&'a Kernel),
}

fn build_guest(workspace: &Workspace) -> Result<()> {
    // For the package alone, cargo would build its dependencies once more, with fewer features.
    command::run(workspace.cargo().args(["build", "--workspace", "--bin", "vm-guest"]))
}

fn test_on<'a>(workspace: &Workspace, kernels: impl Iterator<Item = &'a Kernel>) -> Result<Tally> {
    let budget = Budget::read(workspace)?;
    let kernels: Vec<_> = kernels.collect();
    let tallies = in_parallel(&kernels, |kernel| count_load(workspace, kernel, &budget));
    Ok(tallies.into_iter().sum())
}

fn count_load(workspace: &Workspace, kernel: &Kernel, budget: &Budget) -> Tally {
    test::count(&format!("kernel {}", kernel.name), test_one(workspace, kernel, budget))
}

fn test_one(workspace: &Workspace, kernel: &Kernel, budget: &Budget) -> Result<Outcome> {
    if let Some(reason) = kernel.obstacle()? {
        return Ok(Outcome::Unable(reason));
    }
    let start = Instant::now();
    let counts = load_on(workspace, kernel)?;
    let mut table = format!("kernel {} ({:.0} s)\n", kernel.name, start.elapsed().as_secs_f64());
    writeln!(table, "  {:<20}{:>14}{:>10}", "program", "instructions", "budget")?;
    for Count { program, instructions } in &counts {
        let limit = budget.limit(program).map_or("none".to_owned(), |limit| limit.to_string());
        writeln!(table, "  {program:<20}{instructions:>14}{limit:>10}")?;
    }
    print!("{table}");
    let excess = budget.excess(&counts);
    if !excess.is_empty() {
        bail!("{}; to accept it: cargo xtask vm --record", excess.join("; "));
    }
    Ok(Outcome::Ran(Tally::PASSED))
}

/// Builds a machine of this name and runs it, alone. Also returns the path of its console.
fn boot(
    workspace: &Workspace,
    kernel: &Unpacked,
    name: &str,
    contents: &Contents<'_>,
    nic: Option<&Nic>,
    bound: Duration,
) -> Result<(Ran, PathBuf)> {
    let _alone = image::lock(workspace, name)?;
    let image = image::build(workspace, kernel, name, contents)?;
    let console = image::directory(workspace)?.join(format!("{name}.console"));
    // A machine without agents hands frames to programs, or loads them, and waits for nothing.
    let waits = contents.programs.iter().any(|(_, place)| *place == guest_tests::AGENT);
    let machine = Machine { kernel: &kernel.image, image: &image, console: &console, nic, waits, bound };
    Ok((qemu::run(workspace, &machine)?, console))
}

/// Returns the verifier's instruction counts on this kernel.
fn load_on(workspace: &Workspace, kernel: &Kernel) -> Result<Vec<Count>> {
    let guest = workspace.target().join("debug/vm-guest");
    let printed = match &kernel.suite {
        None => command::output(workspace.command(guest).arg("load").arg(workspace.bpf_object()))?,
        Some(suite) => {
            let unpacked = kernel::ensure(workspace, kernel.name, suite, Build::Cloud)?;
            let contents = Contents {
                guest: &guest,
                words: &["/init", "load", OBJECT_IN_GUEST, "--attach"],
                environment: &[],
                modules: &[],
                programs: &[],
                files: &[
                    (workspace.bpf_object(), OBJECT_IN_GUEST),
                    (workspace.policy_bpf_object(), POLICY_IN_GUEST),
                ],
            };
            let name = format!("{}-load", kernel.name);
            let (ran, console) = boot(workspace, &unpacked, &name, &contents, None, BOUND)?;
            ran.require(&console)?
        }
    };
    let counts: Vec<_> = printed.lines().filter_map(Count::from_line).collect();
    (!counts.is_empty()).then_some(counts).context("no program was counted")
}
