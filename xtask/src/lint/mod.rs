//! Checks that read the code without running it. Each counts as a test.

mod imports;

use std::process::ExitCode;

use anyhow::Result;

use crate::build::{self, Warnings};
use crate::command;
use crate::image;
use crate::setup::{self, Need};
use crate::test::Tally;
use crate::workspace::Workspace;

type Check = fn(&Workspace) -> Result<()>;

const CHECKS: [(&str, Check); 9] = [
    ("imports", imports::check),
    ("rustfmt", rustfmt),
    ("warnings of the BPF build", bpf_warnings),
    ("clippy", clippy),
    ("clippy on the BPF programs", clippy_bpf),
    ("the image's C library", image::check_source),
    ("rustdoc", rustdoc),
    ("cargo-deny", cargo_deny),
    ("typos", typos),
];

/// `cargo xtask lint`: installs and builds what the checks need, then runs all.
pub fn lint(workspace: &Workspace) -> Result<ExitCode> {
    setup::ensure(workspace, &[Need::Build, Need::Lint, Need::Linters])?;
    build::bpf_object(workspace, Warnings::Allowed)?;
    let tally = check_all(workspace);
    println!("{tally}");
    Ok(if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs every check, also after one has failed.
pub fn check_all(workspace: &Workspace) -> Tally {
    let results = CHECKS.iter().map(|(name, check)| {
        let result = check(workspace);
        if let Err(error) = &result {
            eprintln!("error: {name}: {error:#}");
        }
        Tally::of(result.is_ok())
    });
    results.sum()
}

fn rustfmt(workspace: &Workspace) -> Result<()> {
    command::run(workspace.cargo().args(["fmt", "--all", "--check"]))
}

fn bpf_warnings(workspace: &Workspace) -> Result<()> {
    build::bpf_object(workspace, Warnings::Denied)
}

fn clippy(workspace: &Workspace) -> Result<()> {
    // `--all-targets` leaves out test targets with `test = false`: those that only a machine of their own runs.
    [["--all-targets"].as_slice(), &["--test", "*"]].into_iter().try_for_each(|targets| {
        let mut cargo = workspace.cargo();
        cargo.args(["clippy", "--quiet", "--workspace"]).args(targets).args(["--", "-Dwarnings"]);
        command::run(&mut cargo)
    })
}

/// Runs for the host, because only its compiler has clippy. A binary without `std` has no unwinder, so it
/// needs `panic=abort`.
fn clippy_bpf(workspace: &Workspace) -> Result<()> {
    let mut cargo = workspace.cargo();
    cargo.env("CARGO_PROFILE_DEV_PANIC", "abort");
    cargo.args([
        "clippy",
        "--quiet",
        "--package",
        "proxy-ebpf",
        "--features",
        "bpf",
        "--bins",
        "--",
        "-Dwarnings",
    ]);
    command::run(&mut cargo)
}

fn rustdoc(workspace: &Workspace) -> Result<()> {
    let mut cargo = workspace.cargo();
    cargo.env("RUSTDOCFLAGS", "-Dwarnings");
    command::run(cargo.args(["doc", "--quiet", "--workspace", "--no-deps", "--document-private-items"]))
}

/// Without `advisories`; deny.toml says why.
fn cargo_deny(workspace: &Workspace) -> Result<()> {
    let mut deny = workspace.command(workspace.tool("cargo-deny"));
    command::run(deny.args(["--log-level", "error", "check", "bans", "licenses", "sources"]))
}

fn typos(workspace: &Workspace) -> Result<()> {
    command::run(workspace.command(workspace.tool("typos")).args(["--format", "brief"]))
}
