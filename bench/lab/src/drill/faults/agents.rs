//! Faults of the agents. The programs go on without them.

use anyhow::Result;
use nix::sys::signal::Signal;

use crate::drill::fault::{Fault, Mend};
use crate::drill::ground::{Ground, NODES};

/// The faults of this file.
pub(super) const FAULTS: &[Fault] = &[
    Fault::new("nothing", "No fault: the traffic alone.", |_| Ok(Box::new(|_| Ok(())))),
    Fault::new("agent-killed", "All agents are killed (SIGKILL), and started again.", kill),
    Fault::new("agent-stopped", "All agents are asked to end (SIGTERM), and started again.", stop),
    Fault::new("agent-frozen", "All agents are frozen (SIGSTOP): the heartbeat ends.", freeze).lasting(6, 45),
];

fn kill(ground: &mut Ground) -> Result<Mend> {
    ground.kill_agents(&NODES)?;
    Ok(Box::new(|ground| ground.start_agents(&NODES)))
}

fn stop(ground: &mut Ground) -> Result<Mend> {
    for node in NODES {
        let status = ground.cluster_mut().take_agent(node)?.stop()?;
        anyhow::ensure!(status.success(), "the agent of node {node} ended with {status}");
    }
    Ok(Box::new(|ground| ground.start_agents(&NODES)))
}

fn freeze(ground: &mut Ground) -> Result<Mend> {
    ground.signal_agents(&NODES, Signal::SIGSTOP)?;
    Ok(Box::new(|ground| ground.signal_agents(&NODES, Signal::SIGCONT)))
}
