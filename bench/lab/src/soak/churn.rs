//! The changes of a soak.

use anyhow::{Context, Result};
use serde_json::json;

use crate::drill::Ground;
use crate::manifests::Service;
use crate::topology::Family;

/// The node whose agent is killed again and again. The agent of node 1 lives as long as the soak.
const KILLED: u8 = 2;
/// The node whose agent gets other settings.
const CHANGED: u8 = 3;
/// The Services that come and go, by their numbers.
const VISITORS: std::ops::Range<u8> = 100..120;
/// The settings that node 3 gets in turn, between those of all nodes.
const SETTINGS: [[&str; 2]; 2] = [["--flow-table-size", "16384"], ["--snat-ports", "50000-52000"]];

/// A change besides that of endpoints, which comes with each tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// Twenty Services come.
    Come,
    /// They go.
    Go,
    /// The agent of [`KILLED`] is killed, and started again.
    Kill,
    /// The agent of [`CHANGED`] is started with another setting.
    Set([&'static str; 2]),
    /// It is started with the usual settings.
    Unset,
    /// A node joins, without an agent.
    Join,
    /// It leaves.
    Leave,
}

impl Change {
    /// Returns the change of a tick: an agent is killed every minute, each of the others comes and goes in two.
    fn of(tick: usize) -> Self {
        match tick % 12 {
            1 => Self::Join,
            7 => Self::Leave,
            3 | 9 => Self::Kill,
            5 => Self::Set(SETTINGS.get(tick / 12 % 2).copied().unwrap_or_default()),
            11 => Self::Unset,
            even if even % 4 == 0 => Self::Come,
            _ => Self::Go,
        }
    }
}

/// The timetable.
#[derive(Debug, Default)]
pub(super) struct Churn {
    ticks: usize,
}

impl Churn {
    /// Makes the changes of a tick, and waits until all agents have carried them out.
    pub(super) fn step(&mut self, ground: &mut Ground) -> Result<()> {
        let change = Change::of(self.ticks);
        self.ticks += 1;
        make(change, ground).with_context(|| format!("{change:?}"))?;
        ground.wait_until_followed().with_context(|| format!("after {change:?}")).map(drop)
    }
}

fn make(change: Change, ground: &mut Ground) -> Result<()> {
    match change {
        Change::Come => VISITORS
            .map(|number| visitor(ground, number))
            .try_for_each(|service| ground.cluster().manifests().put_service(&service?)),
        Change::Go => VISITORS
            .into_iter()
            .try_for_each(|number| ground.cluster().manifests().remove(&format!("{}.yaml", name(number)))),
        Change::Kill => {
            ground.kill_agents(&[KILLED])?;
            ground.start_agents(&[KILLED])
        }
        Change::Set(flag) => {
            ground.kill_agents(&[CHANGED])?;
            ground.start_agent_with(CHANGED, &flag)
        }
        Change::Unset => {
            ground.kill_agents(&[CHANGED])?;
            ground.start_agents(&[CHANGED])
        }
        Change::Join => ground.cluster().manifests().put("node-4.yaml", &guest(ground)?),
        Change::Leave => ground.cluster().manifests().remove("node-4.yaml"),
    }
}

fn name(number: u8) -> String {
    format!("visitor-{number}")
}

/// Returns a Service with endpoints on two nodes.
fn visitor(ground: &Ground, number: u8) -> Result<Service> {
    let pods: &[&str] = if number.is_multiple_of(2) { &["pod-1a", "pod-2b"] } else { &["pod-3a", "pod-3b"] };
    ground.cluster().service(&name(number), number, pods)
}

/// Returns a Node at an address of the nodes' network that nobody has.
fn guest(ground: &Ground) -> Result<String> {
    let addresses = ground.cluster().bed().node(1)?.addresses();
    let [v4, v6] = Family::ALL.map(|family| addresses.of(family).to_string());
    let replaced = |text: &str, mark: char, last: &str| {
        let (network, _) = text.rsplit_once(mark).with_context(|| format!("{text} has no network"))?;
        anyhow::Ok(format!("{network}{mark}{last}"))
    };
    let addresses = [replaced(&v4, '.', "250")?, replaced(&v6, ':', "250")?];
    let addresses = addresses.map(|address| json!({"type": "InternalIP", "address": address}));
    let node = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": "node4"}, "status": {"addresses": addresses},
    });
    Ok(node.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_goes_before_it_comes_again() {
        let changes: Vec<Change> = (0..120).map(Change::of).collect();
        for (comes, goes) in [(Change::Come, Change::Go), (Change::Join, Change::Leave)] {
            let turns: Vec<Change> =
                changes.iter().copied().filter(|change| [comes, goes].contains(change)).collect();
            let expected: Vec<Change> = [comes, goes].into_iter().cycle().take(turns.len()).collect();
            assert_eq!(turns, expected);
        }
        let set = changes.iter().filter(|change| matches!(change, Change::Set(_))).count();
        let unset = changes.iter().filter(|change| **change == Change::Unset).count();
        assert_eq!((set, unset), (10, 10));
    }
}
