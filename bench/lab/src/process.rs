//! Processes in a namespace, which live until they are dropped.

use std::fs::OpenOptions;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

use crate::net::Namespace;
use crate::patience::patience;

/// The longest time of a process to end.
const END_LIMIT: Duration = Duration::from_secs(30);

/// A running process, killed on drop.
#[derive(Debug)]
pub struct Process {
    child: Child,
}

impl Process {
    /// Starts a program. Its output is appended to `log`.
    pub fn start(
        namespace: &Namespace,
        program: PathBuf,
        arguments: Vec<String>,
        log: &Path,
    ) -> Result<Self> {
        Self::start_prepared(namespace, program, arguments, log, |_| {})
    }

    /// Starts a program after `prepare` has changed its command.
    pub fn start_prepared(
        namespace: &Namespace,
        program: PathBuf,
        arguments: Vec<String>,
        log: &Path,
        prepare: impl FnOnce(&mut Command) + Send + 'static,
    ) -> Result<Self> {
        let log = OpenOptions::new().create(true).append(true).open(log)?;
        // The namespace's own thread starts the child, so the child is in that namespace and ends
        // with it.
        let child = namespace.run(async move || {
            let mut command = Command::new(&program);
            command.args(arguments).stdin(Stdio::null());
            command.stdout(log.try_clone()?).stderr(log);
            command.env("NO_COLOR", "1").env("RUST_LOG", "info,millrace=debug,kube_client=off");
            // SAFETY: prctl is async-signal-safe. Code between fork and exec must be.
            unsafe { command.pre_exec(|| Ok(nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?)) };
            prepare(&mut command);
            command.spawn().with_context(|| format!("can't start {}", program.display()))
        })?;
        Ok(Self { child })
    }

    /// Kills the process at once, as the out-of-memory killer would.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Sends SIGTERM and waits for the end of the process.
    pub fn stop(self) -> Result<ExitStatus> {
        self.signal(Signal::SIGTERM)?;
        self.wait()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill(Pid::from_raw(i32::try_from(self.child.id())?), signal)?)
    }

    /// Waits for the end of the process. Fails after `END_LIMIT`.
    pub fn wait(mut self) -> Result<ExitStatus> {
        let end = Instant::now() + patience(END_LIMIT);
        while Instant::now() < end {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        bail!("process {} did not end within {END_LIMIT:?}", self.child.id())
    }

    /// Returns whether it still runs.
    #[must_use]
    pub fn is_running(&self) -> bool {
        !has_ended(self.child.id())
    }

    /// Returns the process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a program in a namespace to its end and returns its output. The program must succeed.
pub fn output(namespace: &Namespace, words: &[&str]) -> Result<String> {
    let output = run(namespace, words)?;
    if !output.status.success() {
        let printed = [output.stdout, output.stderr].concat();
        bail!("{words:?} in {}: {}", namespace.name(), String::from_utf8_lossy(&printed));
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// Runs a program that may fail in a namespace to its end and returns its output.
pub fn run(namespace: &Namespace, words: &[&str]) -> Result<Output> {
    let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    namespace.run(async move || {
        let (program, arguments) = words.split_first().context("no program")?;
        let output = tokio::process::Command::new(program).args(arguments).output().await;
        output.with_context(|| format!("can't run {program}"))
    })
}

/// Returns whether a child of this process has ended by itself. Leaves its status for a later wait.
pub(crate) fn has_ended(child: u32) -> bool {
    let Ok(id) = i32::try_from(child) else { return false };
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    waitid(Id::Pid(Pid::from_raw(id)), flags).is_ok_and(|status| status != WaitStatus::StillAlive)
}
