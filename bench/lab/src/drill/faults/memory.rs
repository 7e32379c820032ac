//! Agents that get no more memory: an allocation fails, and they abort.

use std::ops::RangeInclusive;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::errno::Errno;

use super::agents::restart;
use crate::cluster::TARGET_PORT;
use crate::drill::fault::{Fault, Mend};
use crate::drill::ground::{Ground, NODES};
use crate::manifests::Service;

/// The numbers of the Services that make agents allocate: too few for larger maps.
const GUESTS: RangeInclusive<u8> = 101..=150;
/// The ports of each, beside that of all Services.
const PORTS: RangeInclusive<u16> = 1001..=1002;
/// The longest time until the agents have ended. It takes a tenth of a second.
const END_LIMIT: Duration = Duration::from_secs(30);

/// The faults of this file.
pub(super) const FAULTS: &[Fault] = &[Fault::new(
    "agent-out-of-memory",
    "No agent gets more memory (RLIMIT_DATA) while 50 Services come. All agents abort, and are started again.",
    run_out,
)];

fn run_out(ground: &mut Ground) -> Result<Mend> {
    // An agent that has loaded its programs keeps memory of that, which would suffice for the Services.
    restart(ground)?;
    ground.wait_until_followed()?;
    for node in NODES {
        refuse_memory(ground.cluster().agent(node)?.id())?;
    }
    if let Err(error) = abort_all(ground) {
        // No later fault may meet an agent with this limit.
        for node in NODES {
            drop(ground.cluster_mut().take_agent(node));
        }
        let _ = remove_guests(ground);
        return Err(error);
    }
    Ok(Box::new(|ground| {
        ground.start_agents(&NODES)?;
        ground.wait_until_followed()?;
        remove_guests(ground)
    }))
}

/// Refuses a process any more memory of its own.
fn refuse_memory(process: u32) -> Result<()> {
    // For a limit of 0 the kernel makes an exception (may_expand_vm in mm, for Valgrind).
    let limit = libc::rlimit { rlim_cur: 1, rlim_max: 1 };
    let process = i32::try_from(process)?;
    // SAFETY: the kernel reads one limit, and writes none.
    let done = unsafe { libc::prlimit(process, libc::RLIMIT_DATA, &raw const limit, std::ptr::null_mut()) };
    Errno::result(done).map(drop).context("can't limit an agent's memory")
}

/// Lets the Services come, and waits until all agents have ended.
fn abort_all(ground: &mut Ground) -> Result<()> {
    for number in GUESTS {
        let service = ground.cluster().service(&name(number), number, &["pod-1a", "pod-2a", "pod-3a"])?;
        let service: Service = PORTS.fold(service, |service, port| service.port(port, TARGET_PORT));
        ground.cluster().manifests().put_service(&service)?;
    }
    let have_ended = || Ok(NODES.iter().all(|node| !ground.cluster().has_agent(*node)));
    ground.wait_for(END_LIMIT, "all agents have aborted", have_ended)?;
    for node in NODES {
        let status = ground.cluster_mut().take_agent(node)?.wait()?;
        ensure!(!status.success(), "the agent of node {node} ended with {status}");
    }
    Ok(())
}

fn remove_guests(ground: &Ground) -> Result<()> {
    let files = GUESTS.map(|number| format!("{}.yaml", name(number)));
    files.into_iter().try_for_each(|file| ground.cluster().manifests().remove(&file))
}

fn name(number: u8) -> String {
    format!("guest-{number}")
}
