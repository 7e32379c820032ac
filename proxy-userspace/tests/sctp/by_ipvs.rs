//! The same tests with both nodes in IPVS mode.

use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use millrace_lab::cluster::Cluster;
use millrace_lab::net::remove_own_at_exit;

use crate::{Bed, is_answered_directly, reaches_a_pod_here, reaches_a_pod_on_another_node, shape};

const FLAGS: [&str; 2] = ["--proxy-mode", "ipvs"];

fn start() -> Result<Bed> {
    remove_own_at_exit();
    let mut cluster = Cluster::without_agents(shape(), "off")?;
    for node in [1, 2] {
        cluster.start_agent_with(node, &FLAGS)?;
        cluster.proxy(node)?.wait_for_start(1)?;
    }
    Ok(Bed::of(cluster, false))
}

#[expect(clippy::unwrap_used, reason = "a cluster that does not come up must fail the tests at once")]
fn shared() -> MutexGuard<'static, Bed> {
    static BED: LazyLock<Mutex<Bed>> = LazyLock::new(|| Mutex::new(start().unwrap()));
    BED.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn a_pod_of_the_node_is_reached_behind_another_port() -> Result<()> {
    reaches_a_pod_here(&shared())
}

#[test]
fn a_pod_of_another_node_is_reached_from_a_port_of_the_first() -> Result<()> {
    reaches_a_pod_on_another_node(&shared())
}

#[test]
fn a_pod_of_another_node_answers_the_client_itself() -> Result<()> {
    is_answered_directly(&shared())
}
