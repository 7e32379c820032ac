//! Tools of other registries, at fixed versions, installed into the cache.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::command;
use crate::toolchain::LLVM;
use crate::workspace::Workspace;

const BPF_LINKER: &str = "0.13.0";
const CARGO_DENY: &str = "0.20.2";
const TYPOS: &str = "1.52.0";
/// The version of zig, whose C library, unwinder and linker make the program of the image.
pub const ZIG: &str = "0.17.1";

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
/// time and runs in a second. Nobody debugs the program, so it gets no debug information either.
pub fn ensure_cargo_deny(workspace: &Workspace) -> Result<()> {
    if is_version(workspace, "cargo-deny", CARGO_DENY) {
        return Ok(());
    }
    let mut install = cargo_install(workspace, "cargo-deny", CARGO_DENY);
    command::run(install.arg("--debug").env("CARGO_PROFILE_DEV_DEBUG", "false"))
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
    pip_install(workspace, "typos", "typos", TYPOS)
}

/// Returns the path of zig.
pub fn zig(workspace: &Workspace) -> PathBuf {
    workspace.cache.join("zig/ziglang/zig")
}

/// Returns whether zig is installed.
pub fn has_zig(workspace: &Workspace) -> bool {
    command::output(workspace.command(zig(workspace)).arg("version"))
        .is_ok_and(|version| version.trim() == ZIG)
}

/// Installs zig: a C compiler with musl for every architecture, in one package of Python.
pub fn ensure_zig(workspace: &Workspace) -> Result<()> {
    if has_zig(workspace) {
        return Ok(());
    }
    eprintln!(
        "installing zig {ZIG}: a download of 100 MB, which takes 420 MB in {}",
        workspace.cache.display()
    );
    pip_install(workspace, "zig", "ziglang", ZIG)
}

/// Installs the compiled program of a Python package into the cache.
fn pip_install(workspace: &Workspace, folder: &str, package: &str, version: &str) -> Result<()> {
    let mut pip = workspace.command("/usr/bin/python3");
    pip.args(["-m", "pip", "install", "--quiet", "--upgrade", "--disable-pip-version-check"]);
    pip.args(["--root-user-action=ignore", "--no-deps", "--only-binary=:all:", "--target"]);
    command::run(pip.arg(workspace.cache.join(folder)).arg(format!("{package}=={version}")))
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
