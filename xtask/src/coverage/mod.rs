//! `cargo xtask coverage`: which lines and branches of the BPF programs the tests reach.
//!
//! The tests run the object that nodes load, with probes between its instructions. docs/coverage.md explains the
//! method.

mod btf;
mod flow;
mod instruction;
mod lines;
mod object;
mod report;
mod rewrite;
mod source;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use self::lines::Positions;
use self::object::{Instrumented, instrument};
use self::report::Report;
use crate::build::{self, Warnings};
use crate::command;
use crate::setup::{self, Need};
use crate::workspace::Workspace;

/// Modules of tests in one process. A process with more of them has more programs when it ends, and Linux 6.18 locks
/// up for good if a thousand are freed at once.
const MODULES: usize = 6;

/// The page with the table, and the lines around it.
const PAGE: &str = "docs/coverage.md";
const START: &str = "<!-- Made by `cargo xtask coverage --write`; changes here are lost. -->";
const END: &str = "<!-- The end of the part that is made. -->";

/// Arguments of `cargo xtask coverage`.
#[derive(clap::Args)]
pub struct Args {
    /// Random frames for each program, after the packet tests [default: none]
    #[arg(long, value_name = "N")]
    frames: Option<u64>,
    /// Show each line and branch that was not reached, not only the functions
    #[arg(long)]
    lines: bool,
    /// Only show the figures of the last run
    #[arg(long, conflicts_with = "frames")]
    last: bool,
    /// Replace the table in docs/coverage.md
    #[arg(long)]
    write: bool,
}

/// Runs the tests on the object with probes, and prints the figures.
pub fn coverage(workspace: &Workspace, args: &Args) -> Result<ExitCode> {
    setup::ensure(workspace, &[Need::Build, Need::Run])?;
    ensure!(setup::is_root()?, "loading BPF programs takes root");
    build::bpf_object(workspace, Warnings::Allowed)?;
    let instrumented = instrument(&read(&workspace.bpf_object())?)?;
    let runs = Runs::new(workspace);
    let failed = if args.last { 0 } else { runs.start(&instrumented, args.frames)? };
    let passed = runs.passed(instrumented.probes)?;
    // The linker's object has the same code, and the lines.
    let report = report(&instrumented, &lines::positions(&read(&workspace.linked_object())?)?, &passed);
    let unreached = report.unreached(&workspace.root, args.lines)?;
    let table = report.table();
    print!("{table}\nnot reached, by function:\n{unreached}");
    println!(
        "{} probes; {} places have none, because all registers are in use",
        instrumented.probes, report.unmeasured
    );
    if args.write {
        write(&workspace.root.join(PAGE), &table)?;
    }
    if failed == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    println!("{failed} runs of tests failed");
    Ok(ExitCode::FAILURE)
}

/// Replaces the table of a page.
fn write(page: &Path, table: &str) -> Result<()> {
    let text = fs::read_to_string(page).with_context(|| format!("can't read {}", page.display()))?;
    let text = with_table(&text, table).with_context(|| format!("{} has no place for it", page.display()))?;
    fs::write(page, text).with_context(|| format!("can't write {}", page.display()))
}

fn with_table(text: &str, table: &str) -> Option<String> {
    let (before, rest) = text.split_once(START)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{START}\n\n{table}\n{END}{after}"))
}

fn report(instrumented: &Instrumented, positions: &BTreeMap<String, Positions>, passed: &[u8]) -> Report {
    let mut report = Report::default();
    for (name, code) in &instrumented.sections {
        if let Some(positions) = positions.get(name) {
            report.add(code, positions, passed, |at| instrumented.is_for_packets(name, at));
        }
    }
    report
}

/// Runs of tests on the object with probes.
struct Runs<'a> {
    workspace: &'a Workspace,
    object: PathBuf,
    /// The folder of the passed probes.
    passed: PathBuf,
}

impl<'a> Runs<'a> {
    fn new(workspace: &'a Workspace) -> Self {
        let folder = workspace.target().join("coverage");
        Self { workspace, object: folder.join("millrace-bpf"), passed: folder.join("passed") }
    }

    /// Runs all tests. Returns the number of processes that failed.
    fn start(&self, instrumented: &Instrumented, frames: Option<u64>) -> Result<usize> {
        let _ = fs::remove_dir_all(&self.passed);
        fs::create_dir_all(&self.passed).with_context(|| format!("can't make {}", self.passed.display()))?;
        fs::write(&self.object, &instrumented.elf)
            .with_context(|| format!("can't write {}", self.object.display()))?;
        Ok(self.packet_tests()? + frames.map_or(Ok(0), |frames| self.frames(frames))?)
    }

    /// Runs the packet tests, some modules in each process. Returns the number of processes that failed.
    fn packet_tests(&self) -> Result<usize> {
        let binary = self.build("packet")?;
        let list = command::output(Command::new(&binary).args(["--list", "--format", "terse"]))?;
        let mut modules: Vec<&str> =
            list.lines().filter_map(|line| line.split_once("::")).map(|(module, _)| module).collect();
        modules.sort_unstable();
        modules.dedup();
        let mut failed = 0;
        for some in modules.chunks(MODULES) {
            let filters = some.iter().map(|module| format!("{module}::"));
            failed += usize::from(command::run(self.on_probes(&binary).args(filters)).is_err());
        }
        Ok(failed)
    }

    /// Runs random frames through each program, one program in each process.
    fn frames(&self, frames: u64) -> Result<usize> {
        let binary = self.build("fuzz")?;
        let mut failed = 0;
        for program in ["xdp_ingress", "tc_ingress", "tc_egress", "tc_pod_in", "tc_pod_out"] {
            let mut run = self.on_probes(&binary);
            run.env("MILLRACE_FRAMES", frames.to_string())
                .arg(format!("{program}_judges_every_frame_rightly"));
            failed += usize::from(command::run(&mut run).is_err());
        }
        Ok(failed)
    }

    fn on_probes(&self, binary: &Path) -> Command {
        let mut run = self.workspace.command(binary);
        run.current_dir(self.workspace.root.join("proxy-userspace"));
        run.env("MILLRACE_BPF_OBJECT", &self.object).env("MILLRACE_COVERAGE", &self.passed).arg("--quiet");
        run
    }

    /// Builds a test target. Returns the path of its binary.
    fn build(&self, target: &str) -> Result<PathBuf> {
        let mut cargo = self.workspace.cargo();
        cargo.args([
            "test",
            "--workspace",
            "--no-run",
            "--test",
            target,
            "--message-format",
            "json-render-diagnostics",
        ]);
        let messages = command::output(&mut cargo)?;
        let binary =
            messages.lines().filter_map(|line| serde_json::from_str(line).ok()).find_map(|message: Value| {
                let is_target = message.pointer("/target/name")?.as_str()? == target;
                message.get("executable").filter(|_| is_target)?.as_str().map(PathBuf::from)
            });
        binary.with_context(|| format!("cargo names no binary of the test target {target}"))
    }

    /// Returns the probes that any process passed.
    fn passed(&self, probes: usize) -> Result<Vec<u8>> {
        let mut all = vec![0; probes];
        for entry in fs::read_dir(&self.passed)? {
            let one = read(&entry?.path())?;
            ensure!(one.len() >= probes, "the tests ran on another object");
            all.iter_mut().zip(one).for_each(|(all, one)| *all |= one);
        }
        Ok(all)
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("can't read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_table_of_a_page_is_replaced() {
        let page = |table: &str| format!("# Coverage\n\n{START}\n\n{table}\n{END}\n\nAfter.\n");
        assert_eq!(with_table(&page("| old |\n"), "| new |\n"), Some(page("| new |\n")));
        assert_eq!(with_table("# Coverage\n", "| new |\n"), None);
    }
}
