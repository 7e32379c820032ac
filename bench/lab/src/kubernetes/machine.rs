//! The processes of a machine, from outside: their start, their note on disk, their end.

use std::fs::{self, File, OpenOptions};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use super::{cgroups, wait};
use crate::net::Namespace;

/// The file with a machine's programs.
const MACHINE: &str = "machine.json";
/// The file with its first process.
const PROCESS: &str = "process.json";

/// A machine: a tree of processes in namespaces of its own.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Machine {
    /// The cluster's name.
    pub cluster: String,
    /// The machine's name, which is also its host name.
    pub name: String,
    /// The directory of its state and logs.
    pub directory: PathBuf,
    /// The programs, in the order of their start.
    pub programs: Vec<Program>,
    /// Whether its standard input is a listening socket, to be forwarded to the API server.
    pub forwards: bool,
}

/// A program of a machine. It is started again when it ends.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Program {
    /// The name, and that of its log.
    pub name: String,
    /// The path.
    pub path: PathBuf,
    /// The arguments.
    pub arguments: Vec<String>,
    /// The value of PATH.
    pub search_path: String,
}

/// A process that can't be taken for another one with the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Process {
    id: i32,
    /// The clock ticks from the machine's boot to its start.
    started: u64,
}

/// Starts the first process of a machine in its network namespace, and notes it.
pub(super) fn start(
    machine: &Machine,
    init: &Path,
    network: &Namespace,
    listener: Option<TcpListener>,
) -> Result<()> {
    fs::create_dir_all(&machine.directory)?;
    let description = machine.directory.join(MACHINE);
    fs::write(&description, serde_json::to_vec_pretty(machine)?)?;
    let log = OpenOptions::new().create(true).append(true).open(machine.directory.join("machine.log"))?;
    let network = network.file()?;
    let input = listener.map_or_else(Stdio::null, |listener| OwnedFd::from(listener).into());
    let mut command = Command::new(init);
    command.args(["cluster", "machine"]).arg(&description).stdin(input);
    command.stdout(log.try_clone()?).stderr(log).current_dir("/");
    let id = std::thread::spawn(move || spawn_apart(command, &network))
        .join()
        .map_err(|_| anyhow::anyhow!("the thread that starts machines panicked"))??;
    let process = Process { id, started: start_of(id).context("the machine's first process ended at once")? };
    fs::write(machine.directory.join(PROCESS), serde_json::to_vec(&process)?)?;
    Ok(())
}

/// Starts a command in namespaces of its own. The thread is left in them.
///
/// The namespace of process ids counts for children of the thread only, so the command becomes
/// process 1 there.
fn spawn_apart(mut command: Command, network: &File) -> Result<i32> {
    let apart = CloneFlags::CLONE_NEWPID
        | CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWUTS
        | CloneFlags::CLONE_NEWIPC;
    setns(network, CloneFlags::CLONE_NEWNET).context("can't enter the network namespace")?;
    unshare(apart).context("can't make namespaces (this takes root)")?;
    let child =
        command.spawn().with_context(|| format!("can't start {}", command.get_program().display()))?;
    Ok(i32::try_from(child.id())?)
}

/// Reads the description of a machine.
pub(super) fn read(path: &Path) -> Result<Machine> {
    let text = fs::read(path).with_context(|| format!("can't read {}", path.display()))?;
    Ok(serde_json::from_slice(&text)?)
}

/// Returns whether the first process of the machine in a directory runs.
pub(super) fn is_running(directory: &Path) -> bool {
    noted(directory).is_some_and(|process| start_of(process.id) == Some(process.started))
}

/// Returns the id of the first process of the machine in a directory.
pub(super) fn process_id(directory: &Path) -> Result<i32> {
    let process = noted(directory).filter(|process| start_of(process.id) == Some(process.started));
    Ok(process.with_context(|| format!("the machine in {} does not run", directory.display()))?.id)
}

/// Returns a command that runs `words` as a process of a running machine: in its namespaces, and in its
/// control groups, because the hooks of sockets count for these.
pub(super) fn command(cluster: &str, directory: &Path, name: &str, words: &[&str]) -> Result<Command> {
    const ENTER: &str = r#"
        until [ "$1" = -- ]; do echo $$ > "$1" || exit 1; shift; done; shift
        exec nsenter "$@""#;
    let mut command = Command::new("sh");
    command.args(["-c", ENTER, "sh"]).args(cgroups::entrances(cluster, name)?);
    command.args(["--", "--target", &process_id(directory)?.to_string()]);
    command.args(["--mount", "--net", "--uts", "--ipc", "--pid", "--cgroup", "--"]);
    command.args(words);
    Ok(command)
}

/// Kills the first process of the machine in a directory. The kernel kills all others of the machine
/// with it, and this waits until they have ended.
pub(super) fn end(directory: &Path) -> Result<()> {
    let Some(process) = noted(directory) else { return Ok(()) };
    if start_of(process.id) != Some(process.started) {
        return Ok(());
    }
    let id = Pid::from_raw(process.id);
    kill(id, Signal::SIGKILL).with_context(|| format!("can't kill process {id}"))?;
    wait("the end of a machine's processes", Duration::from_secs(30), || {
        // It is a child only if this process started it.
        let _ = waitpid(id, Some(WaitPidFlag::WNOHANG));
        match start_of(process.id) {
            Some(started) if started == process.started => bail!("process {id} still runs"),
            _ => Ok(()),
        }
    })
}

fn noted(directory: &Path) -> Option<Process> {
    serde_json::from_slice(&fs::read(directory.join(PROCESS)).ok()?).ok()
}

/// Returns the start of a process that has not ended.
fn start_of(id: i32) -> Option<u64> {
    start_in(&fs::read_to_string(format!("/proc/{id}/stat")).ok()?)
}

/// Returns the start in the line of /proc/PID/stat, or `None` for a process that has ended. Fields are
/// counted from behind the name, which may contain anything.
fn start_in(stat: &str) -> Option<u64> {
    let mut fields = stat.get(stat.rfind(')')? + 2..)?.split(' ');
    let state = fields.next()?;
    if ["Z", "X"].contains(&state) {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_its_start_and_a_zombie_has_ended() {
        let line = |state: &str| {
            format!(
                "7 (a) b) {state} 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4711 1000 1 18446744073709551615"
            )
        };
        assert_eq!(start_in(&line("S")), Some(4711));
        assert_eq!(start_in(&line("Z")), None);
        assert!(start_of(i32::try_from(std::process::id()).unwrap()).is_some());
    }
}
