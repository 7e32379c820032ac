//! Tools of other registries, at fixed versions, installed into the cache.

use std::process::Command;

use anyhow::Result;

use crate::command;
use crate::toolchain::LLVM;
use crate::workspace::Workspace;

const BPF_LINKER: &str = "0.13.0";
const CARGO_DENY: &str = "0.20.2";
const TYPOS: &str = "1.52.0";

/// Installs the linker of the BPF object. It is built with the compiler's LLVM, in about a minute.
pub fn ensure_bpf_linker(workspace: &Workspace) -> Result<()> {
    if is_version(workspace, "bpf-linker", BPF_LINKER) {
        return Ok(());
    }
    let llvm = format!("/usr/lib/llvm-{LLVM}");
    let mut install = cargo_install(workspace, "bpf-linker", BPF_LINKER);
    install.args(["--no-default-features", "--features", &format!("llvm-{LLVM}")]);
    // Debian keeps libLLVM.so outside the linker's search path, and the build script does not look
    // there.
    install.env("RUSTFLAGS", format!("-Lnative={llvm}/lib")).env("LLVM_PREFIX", llvm);
    command::run(&mut install)
}

/// Installs the check of licences and sources of dependencies. The debug profile builds in half the
/// time and runs in a second.
pub fn ensure_cargo_deny(workspace: &Workspace) -> Result<()> {
    if is_version(workspace, "cargo-deny", CARGO_DENY) {
        return Ok(());
    }
    command::run(cargo_install(workspace, "cargo-deny", CARGO_DENY).arg("--debug"))
}

/// Returns whether the spelling checker is installed.
pub fn has_typos(workspace: &Workspace) -> bool {
    is_version(workspace, "typos", TYPOS)
}

/// Installs the spelling checker. Its Python package has the compiled program, which saves minutes.
pub fn ensure_typos(workspace: &Workspace) -> Result<()> {
    if has_typos(workspace) {
        return Ok(());
    }
    let mut pip = workspace.command("/usr/bin/python3");
    pip.args(["-m", "pip", "install", "--quiet", "--upgrade", "--disable-pip-version-check"]);
    pip.args(["--root-user-action=ignore", "--no-deps", "--only-binary=:all:", "--target"]);
    command::run(pip.arg(workspace.cache.join("typos")).arg(format!("typos=={TYPOS}")))
}

/// Installs rustfmt and clippy, which rustup's minimal profile does not have.
pub fn ensure_rustup_components(workspace: &Workspace) -> Result<()> {
    let has = |component: &str| command::succeeds(workspace.cargo().args([component, "--version"]));
    if has("fmt") && has("clippy") {
        return Ok(());
    }
    command::run(workspace.command("rustup").args(["component", "add", "rustfmt", "clippy"]))
}

fn cargo_install(workspace: &Workspace, name: &str, version: &str) -> Command {
    let mut install = workspace.cargo();
    // cargo install then uses a target directory of its own, and removes it afterwards.
    install.env_remove("CARGO_TARGET_DIR");
    install.args(["install", name, "--version", version, "--locked", "--force", "--root"]);
    install.arg(workspace.cache.join(name));
    install
}

fn is_version(workspace: &Workspace, name: &str, version: &str) -> bool {
    command::output(workspace.command(workspace.tool(name)).arg("--version"))
        .is_ok_and(|printed| printed.split_whitespace().any(|word| word == version))
}
