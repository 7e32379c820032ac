//! Faults of the agents. The programs go on without them.

use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::process::Stdio;

use anyhow::{Result, ensure};
use nix::errno::Errno;
use nix::sys::signal::Signal;

use crate::drill::fault::{Fault, Mend};
use crate::drill::ground::{Ground, NODES};

/// linux/sched.h: a new time namespace for the processes to come.
const CLONE_NEWTIME: libc::c_int = 0x80;

/// The faults of this file.
pub(super) const FAULTS: &[Fault] = &[
    Fault::new("nothing", "No fault: the traffic alone.", |_| Ok(Box::new(|_| Ok(())))),
    Fault::new("agent-killed", "All agents are killed (SIGKILL), and started again.", kill),
    Fault::new("agent-stopped", "All agents are asked to end (SIGTERM), and started again.", stop),
    Fault::new("agent-frozen", "All agents are frozen (SIGSTOP): the heartbeat ends.", freeze).lasting(6, 45),
    Fault::new(
        "flow-tables-resized",
        "All agents are killed, and started with flow tables of another size; then back again.",
        resize,
    ),
    Fault::new(
        "snat-ports-changed",
        "All agents are killed, and started with another range of SNAT ports; then back again.",
        change_ports,
    ),
    Fault::new(
        "disk-full",
        "All agents are started anew with a log that takes no byte (/dev/full).",
        fill_disk,
    ),
    Fault::new(
        "clock-jumped",
        "All agents are started anew with clocks a day ahead of the programs' (a time namespace).",
        jump,
    ),
];

fn kill(ground: &mut Ground) -> Result<Mend> {
    ground.kill_agents(&NODES)?;
    Ok(Box::new(|ground| ground.start_agents(&NODES)))
}

fn stop(ground: &mut Ground) -> Result<Mend> {
    for node in NODES {
        let status = ground.cluster_mut().take_agent(node)?.stop()?;
        ensure!(status.success(), "the agent of node {node} ended with {status}");
    }
    Ok(Box::new(|ground| ground.start_agents(&NODES)))
}

fn freeze(ground: &mut Ground) -> Result<Mend> {
    ground.signal_agents(&NODES, Signal::SIGSTOP)?;
    Ok(Box::new(|ground| ground.signal_agents(&NODES, Signal::SIGCONT)))
}

fn resize(ground: &mut Ground) -> Result<Mend> {
    start_with(ground, &["--flow-table-size", "65536"])
}

fn change_ports(ground: &mut Ground) -> Result<Mend> {
    start_with(ground, &["--snat-ports", "50000-52000"])
}

/// Starts all agents anew with a flag.
pub(super) fn start_with(ground: &mut Ground, flag: &[&'static str; 2]) -> Result<Mend> {
    ground.kill_agents(&NODES)?;
    ground.start_agents_with(flag)?;
    ground.wait_until_followed()?;
    Ok(Box::new(|ground| {
        restart(ground)?;
        ground.wait_until_followed().map(drop)
    }))
}

fn fill_disk(ground: &mut Ground) -> Result<Mend> {
    ground.kill_agents(&NODES)?;
    for node in NODES {
        let full = || File::options().write(true).open("/dev/full").map(Stdio::from);
        let (output, errors) = (full()?, full()?);
        ground.start_agent_prepared(node, move |command| {
            command.stdout(output).stderr(errors);
        })?;
    }
    ground.wait_until_followed()?;
    Ok(Box::new(restart))
}

fn jump(ground: &mut Ground) -> Result<Mend> {
    ground.kill_agents(&NODES)?;
    let enter = || {
        // SAFETY: unshare takes a number and touches no memory.
        Errno::result(unsafe { libc::unshare(CLONE_NEWTIME) })?;
        // The program that follows is the first process with these clocks (time_namespaces(7)).
        std::fs::write("/proc/self/timens_offsets", "monotonic 86400 0\nboottime 86400 0\n")
    };
    for node in NODES {
        ground.start_agent_prepared(node, move |command| {
            // SAFETY: between fork and exec the child makes system calls and nothing else.
            unsafe { command.pre_exec(enter) };
        })?;
    }
    ground.wait_until_followed()?;
    for node in NODES {
        let process = ground.cluster().agent(node)?.id();
        let offsets = std::fs::read_to_string(format!("/proc/{process}/timens_offsets"))?;
        ensure!(offsets.contains("86400"), "the agent of node {node} has the usual clocks: {offsets}");
    }
    Ok(Box::new(restart))
}

/// Starts all agents anew, as usual.
pub(super) fn restart(ground: &mut Ground) -> Result<()> {
    ground.kill_agents(&NODES)?;
    ground.start_agents(&NODES)
}
