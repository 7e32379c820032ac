//! The common parts of the tests.

use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use millrace_lab::cluster::Cluster;
use millrace_lab::net::{Namespace, remove_own_at_exit};
use millrace_lab::process;
use millrace_lab::topology::{Shape, Wire};

/// Tables for a small machine.
const SMALL: [&str; 2] = ["--flow-table-size", "4096"];
/// Bytes of a large body.
pub const BODY: usize = 3_000_000;

const SHAPE: Shape = Shape { nodes: 2, pods: 1, wire: Wire::Plain };

/// Two nodes with a pod each. The tests run one at a time: a machine has no memory for the agents
/// of two.
pub struct Lab {
    pub cluster: Cluster,
    _turn: MutexGuard<'static, ()>,
}

impl Lab {
    pub fn start(xdp: &str, flags: &[&str]) -> Result<Self> {
        Self::with(|| Cluster::start_with(SHAPE, xdp, &[&SMALL[..], flags].concat()))
    }

    /// Builds the nodes without agents.
    pub fn without_agents(pods: usize, xdp: &str) -> Result<Self> {
        let shape = Shape { pods: u8::try_from(pods)?, ..SHAPE };
        Self::with(|| Cluster::without_agents(shape, xdp))
    }

    /// Starts the agent of a node and does not wait for it.
    pub fn start_agent(&mut self, node: u8, flags: &[&str]) -> Result<()> {
        self.cluster.start_agent_with(node, &[&SMALL[..], flags].concat())
    }

    fn with(build: impl FnOnce() -> Result<Cluster>) -> Result<Self> {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        remove_own_at_exit();
        Ok(Self { cluster: build()?, _turn: turn })
    }
}

/// Runs `ip` in a namespace.
pub fn ip(namespace: &Namespace, words: &str) -> Result<()> {
    let words: Vec<&str> = ["/usr/sbin/ip"].into_iter().chain(words.split(' ')).collect();
    process::output(namespace, &words).map(drop)
}
