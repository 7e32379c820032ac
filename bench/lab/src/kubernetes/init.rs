//! The first process of a machine, from inside: it mounts, starts the programs, and starts them again
//! when they end. All processes of the machine end with it.

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sys::wait::{WaitStatus, wait};
use nix::unistd::setsid;

use super::machine::{self, Machine, Program};
use super::{cgroups, forward, mounts};

/// The pause before a program is started again.
const PAUSE: Duration = Duration::from_secs(1);

/// Becomes the first process of the machine that a file describes. Does not return.
pub fn run(description: &Path) -> Result<()> {
    let machine = machine::read(description)?;
    let _ = setsid();
    fs::write("/proc/sys/kernel/hostname", &machine.name).context("can't set the host name")?;
    let hierarchies = cgroups::enter(&machine.cluster, &machine.name)?;
    mounts::mount_all(&machine.directory, &hierarchies)?;
    if machine.forwards {
        forward::start()?;
    }
    supervise(&machine)
}

fn supervise(machine: &Machine) -> Result<()> {
    let mut running = HashMap::new();
    for program in &machine.programs {
        running.insert(start(machine, program)?, program);
    }
    loop {
        // Also reaps the processes that were left to this one, such as the shims of containerd.
        let ended = match wait() {
            Ok(WaitStatus::Exited(id, _) | WaitStatus::Signaled(id, ..)) => id.as_raw(),
            Ok(_) | Err(Errno::EINTR) => continue,
            Err(error) => return Err(error).context("no program is left"),
        };
        if let Some(program) = running.remove(&ended) {
            eprintln!("{} ended and is started again", program.name);
            thread::sleep(PAUSE);
            running.insert(start(machine, program)?, program);
        }
    }
}

fn start(machine: &Machine, program: &Program) -> Result<i32> {
    let log = machine.directory.join(format!("{}.log", program.name));
    let log = OpenOptions::new().create(true).append(true).open(log)?;
    let child = Command::new(&program.path)
        .args(&program.arguments)
        .env_clear()
        .envs([("PATH", program.search_path.as_str()), ("HOME", "/root")])
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .with_context(|| format!("can't start {}", program.path.display()))?;
    Ok(i32::try_from(child.id())?)
}
