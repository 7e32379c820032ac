//! Processes in a node's namespace.

use std::fs::OpenOptions;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::mount::MsFlags;
use nix::sys::signal::{Signal, kill};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

use crate::net::Namespace;

/// Where the BPF file system is mounted.
const BPFFS: &str = "/sys/fs/bpf";
/// How long an agent may take to end.
const END_LIMIT: Duration = Duration::from_secs(10);

/// A running agent; killed when dropped.
#[derive(Debug)]
pub struct Agent {
    child: Child,
}

impl Agent {
    pub(super) fn start(namespace: &Namespace, arguments: Vec<String>, log: &Path) -> Result<Self> {
        let log = OpenOptions::new().create(true).append(true).open(log)?;
        let binary = binary()?;
        // From the namespace's own thread: a child starts in its namespace, and dies with it.
        let child = namespace.run(async move || {
            let mut command = Command::new(&binary);
            command.args(arguments).stdin(Stdio::null());
            command.stdout(log.try_clone()?).stderr(log);
            command.env("NO_COLOR", "1").env("RUST_LOG", "info,millrace=debug");
            // SAFETY: prctl is async-signal-safe, as what runs between fork and exec must be.
            unsafe { command.pre_exec(|| Ok(nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?)) };
            command.spawn().with_context(|| format!("can't start {}", binary.display()))
        })?;
        Ok(Self { child })
    }

    /// Kills it at once, as the out-of-memory killer would.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Asks it to end, and waits until it has.
    pub fn stop(mut self) -> Result<ExitStatus> {
        kill(Pid::from_raw(i32::try_from(self.child.id())?), Signal::SIGTERM)?;
        let end = Instant::now() + END_LIMIT;
        while Instant::now() < end {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        bail!("the agent did not end within {END_LIMIT:?}")
    }

    /// Whether it still runs.
    #[must_use]
    pub fn is_running(&self) -> bool {
        !has_ended(self.child.id())
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether a child of this process has ended by itself; its status is left for whoever waits for it.
pub(super) fn has_ended(child: u32) -> bool {
    let Ok(id) = i32::try_from(child) else { return false };
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    waitid(Id::Pid(Pid::from_raw(id)), flags).is_ok_and(|status| status != WaitStatus::StillAlive)
}

/// Runs `millrace <arguments>` in a namespace to its end; killed if it takes too long.
pub(super) fn run(namespace: &Namespace, arguments: Vec<String>) -> Result<Output> {
    let binary = binary()?;
    namespace.run(async move || {
        let mut command = tokio::process::Command::new(&binary);
        command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
        let output = tokio::time::timeout(END_LIMIT, command.output()).await;
        output
            .with_context(|| format!("millrace did not end within {END_LIMIT:?}"))?
            .with_context(|| format!("can't run {}", binary.display()))
    })
}

/// The `millrace` binary: the environment's `MILLRACE_BIN`, else the one beside this executable.
pub fn binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("MILLRACE_BIN") {
        return Ok(path.into());
    }
    let own = std::env::current_exe()?;
    // Tests are one directory below the binaries.
    let mut candidates = own.ancestors().skip(1).take(2).map(|directory| directory.join("millrace"));
    candidates
        .find(|path| path.is_file())
        .context("no millrace binary beside this one: build it with cargo build, or set MILLRACE_BIN")
}

/// Mounts the BPF file system where a bare machine has not.
pub(super) fn mount_bpffs() -> Result<()> {
    if statfs(BPFFS).is_ok_and(|found| found.filesystem_type() == BPF_FS_MAGIC) {
        return Ok(());
    }
    nix::mount::mount(Some("bpf"), BPFFS, Some("bpf"), MsFlags::empty(), None::<&str>)
        .with_context(|| format!("can't mount the BPF file system on {BPFFS}"))
}
