//! The `millrace` binary, and its needs of the machine.

use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::mount::MsFlags;
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use crate::net::Namespace;
use crate::patience::patience;

/// The mount point of the BPF file system.
const BPFFS: &str = "/sys/fs/bpf";
/// The longest duration of a command.
const END_LIMIT: Duration = Duration::from_secs(10);

/// Runs a `millrace` binary in a namespace to its end. Kills it after `END_LIMIT`.
pub(super) fn run(namespace: &Namespace, binary: PathBuf, arguments: Vec<String>) -> Result<Output> {
    namespace.run(async move || {
        let mut command = tokio::process::Command::new(&binary);
        command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
        let output = tokio::time::timeout(patience(END_LIMIT), command.output()).await;
        output
            .with_context(|| format!("millrace did not end within {END_LIMIT:?}"))?
            .with_context(|| format!("can't run {}", binary.display()))
    })
}

/// Returns the path of the `millrace` binary: `MILLRACE_BIN` of the environment, else the one
/// beside this executable.
pub fn binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("MILLRACE_BIN") {
        return Ok(path.into());
    }
    let own = std::env::current_exe()?;
    // The executables of tests are one directory below the binaries.
    let mut candidates = own.ancestors().skip(1).take(2).map(|directory| directory.join("millrace"));
    candidates
        .find(|path| path.is_file())
        .context("no millrace binary beside this one: build it with cargo build, or set MILLRACE_BIN")
}

/// Returns the path of the `millrace` binary of a former version: `MILLRACE_FORMER_BIN` of the environment.
pub fn former_binary() -> Result<PathBuf> {
    let path = std::env::var_os("MILLRACE_FORMER_BIN").map(PathBuf::from);
    path.filter(|path| path.is_file())
        .context("no millrace binary of a former version: set MILLRACE_FORMER_BIN, as `cargo xtask drill --upgrade` does")
}

/// Mounts the BPF file system if the machine has not.
pub(super) fn mount_bpffs() -> Result<()> {
    if statfs(BPFFS).is_ok_and(|found| found.filesystem_type() == BPF_FS_MAGIC) {
        return Ok(());
    }
    nix::mount::mount(Some("bpf"), BPFFS, Some("bpf"), MsFlags::empty(), None::<&str>)
        .with_context(|| format!("can't mount the BPF file system on {BPFFS}"))
}
