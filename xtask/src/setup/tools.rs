//! Tools that come from their own registries, at fixed versions, into the cache.

use std::process::Command;

use anyhow::Result;

use crate::command;
use crate::toolchain::LLVM;
use crate::workspace::Workspace;

const BPF_LINKER: &str = "0.13.0";
const CARGO_DENY: &str = "0.20.2";
const TYPOS: &str = "1.52.0";

/// Links the BPF object. Built over the LLVM of the compiler, about a minute.
pub fn ensure_bpf_linker(workspace: &Workspace) -> Result<()> {
    if is_version(workspace, "bpf-linker", BPF_LINKER) {
        return Ok(());
    }
    let llvm = format!("/usr/lib/llvm-{LLVM}");
    let mut install = cargo_install(workspace, "bpf-linker", BPF_LINKER);
    install.args(["--no-default-features", "--features", &format!("llvm-{LLVM}")]);
    // Debian keeps libLLVM.so outside the linker's search path, and the build script looks for no other place.
    install.env("RUSTFLAGS", format!("-Lnative={llvm}/lib")).env("LLVM_PREFIX", llvm);
    command::run(&mut install)
}

/// Checks licences and sources of our dependencies. The debug profile builds in half the time and runs in a second.
pub fn ensure_cargo_deny(workspace: &Workspace) -> Result<()> {
    if is_version(workspace, "cargo-deny", CARGO_DENY) {
        return Ok(());
    }
    command::run(cargo_install(workspace, "cargo-deny", CARGO_DENY).arg("--debug"))
}

/// Whether the spelling checker is there.
pub fn has_typos(workspace: &Workspace) -> bool {
    is_version(workspace, "typos", TYPOS)
}

/// Checks spelling. Its Python package brings the compiled program, which saves minutes.
pub fn ensure_typos(workspace: &Workspace) -> Result<()> {
    if has_typos(workspace) {
        return Ok(());
    }
    let mut pip = workspace.command("/usr/bin/python3");
    pip.args(["-m", "pip", "install", "--quiet", "--upgrade", "--disable-pip-version-check"]);
    pip.args(["--root-user-action=ignore", "--no-deps", "--only-binary=:all:", "--target"]);
    command::run(pip.arg(workspace.cache.join("typos")).arg(format!("typos=={TYPOS}")))
}

/// rustup's minimal profile leaves both out.
pub fn ensure_rustup_components(workspace: &Workspace) -> Result<()> {
    let has = |component: &str| command::succeeds(workspace.cargo().args([component, "--version"]));
    if has("fmt") && has("clippy") {
        return Ok(());
    }
    command::run(workspace.command("rustup").args(["component", "add", "rustfmt", "clippy"]))
}

fn cargo_install(workspace: &Workspace, name: &str, version: &str) -> Command {
    let mut install = workspace.cargo();
    // A target directory of its own, removed afterwards.
    install.env_remove("CARGO_TARGET_DIR");
    install.args(["install", name, "--version", version, "--locked", "--force", "--root"]);
    install.arg(workspace.cache.join(name));
    install
}

fn is_version(workspace: &Workspace, name: &str, version: &str) -> bool {
    command::output(workspace.command(workspace.tool(name)).arg("--version"))
        .is_ok_and(|printed| printed.split_whitespace().any(|word| word == version))
}
