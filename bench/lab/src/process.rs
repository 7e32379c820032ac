//! Processes that run in a namespace for as long as somebody holds them.

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

/// How long a process may take to end.
const END_LIMIT: Duration = Duration::from_secs(30);

/// A running process; killed when dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
}

impl Process {
    /// Starts a program; what it prints is appended to `log`.
    pub fn start(
        namespace: &Namespace,
        program: PathBuf,
        arguments: Vec<String>,
        log: &Path,
    ) -> Result<Self> {
        Self::start_prepared(namespace, program, arguments, log, |_| {})
    }

    /// The same of a command that is `prepared` first.
    pub fn start_prepared(
        namespace: &Namespace,
        program: PathBuf,
        arguments: Vec<String>,
        log: &Path,
        prepare: impl FnOnce(&mut Command) + Send + 'static,
    ) -> Result<Self> {
        let log = OpenOptions::new().create(true).append(true).open(log)?;
        // From the namespace's own thread: a child starts in its namespace, and dies with it.
        let child = namespace.run(async move || {
            let mut command = Command::new(&program);
            command.args(arguments).stdin(Stdio::null());
            command.stdout(log.try_clone()?).stderr(log);
            command.env("NO_COLOR", "1").env("RUST_LOG", "info,millrace=debug,kube_client=off");
            // SAFETY: prctl is async-signal-safe, as what runs between fork and exec must be.
            unsafe { command.pre_exec(|| Ok(nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?)) };
            prepare(&mut command);
            command.spawn().with_context(|| format!("can't start {}", program.display()))
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
    pub fn stop(self) -> Result<ExitStatus> {
        kill(Pid::from_raw(i32::try_from(self.child.id())?), Signal::SIGTERM)?;
        self.wait()
    }

    /// Waits until it has ended, which must not take long.
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

    /// Whether it still runs.
    #[must_use]
    pub fn is_running(&self) -> bool {
        !has_ended(self.child.id())
    }

    /// Its number.
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

/// Runs a program in a namespace to its end, and returns what it printed; it must succeed.
pub fn output(namespace: &Namespace, words: &[&str]) -> Result<String> {
    let output = run(namespace, words)?;
    if !output.status.success() {
        let printed = [output.stdout, output.stderr].concat();
        bail!("{words:?} in {}: {}", namespace.name(), String::from_utf8_lossy(&printed));
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// The same of one that may fail.
pub fn run(namespace: &Namespace, words: &[&str]) -> Result<Output> {
    let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    namespace.run(async move || {
        let (program, arguments) = words.split_first().context("no program")?;
        let output = tokio::process::Command::new(program).args(arguments).output().await;
        output.with_context(|| format!("can't run {program}"))
    })
}

/// Whether a child of this process has ended by itself; its status is left for whoever waits for it.
pub(crate) fn has_ended(child: u32) -> bool {
    let Ok(id) = i32::try_from(child) else { return false };
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    waitid(Id::Pid(Pid::from_raw(id)), flags).is_ok_and(|status| status != WaitStatus::StillAlive)
}
