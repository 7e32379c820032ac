//! Faults of the pins: they are removed, with or without the programs and maps that they lead to.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::drill::fault::{Allowance, Bound, Fault, Loss, Mend};
use crate::drill::ground::Ground;
use crate::drill::way::Way;

/// The director of most ways.
const NODE: u8 = 1;

/// The ways with their director or client on node 1.
const FROM_NODE_1: &[Way] = &[Way::Local, Way::Snat, Way::DsrIpip, Way::PolicyLocal, Way::Socket];
/// The ways with one of two backends on node 1, and a director elsewhere.
const TO_NODE_1: &[Way] = &[Way::DsrFou, Way::NodePort];
/// The longest time until an agent has made its pins again. It looks every few seconds.
const RESTORED_LIMIT: Duration = Duration::from_mins(1);
const LOADING: &str = "an agent that finds no programs loads them first, which takes ten seconds on two processors; \
                       TCP doubles its pause with each repetition; and a port that is lent anew may be that of a \
                       connection which node 1 has forgotten and its pod has not: its client waits in vain, at most two \
                       minutes here";
/// Losses while node 1 has no programs.
const WITHOUT_PROGRAMS: &[Allowance] = &[
    Allowance {
        loss: Loss::Cut,
        ways: &Way::ALL,
        backend: None,
        bound: Bound::Most(60),
        because: "a pod's answer leaves node 1 with the pod's own address meanwhile, and its receiver refuses it",
    },
    Allowance {
        loss: Loss::Wrong,
        ways: &Way::ALL,
        backend: None,
        bound: Bound::Most(14),
        because: "node 1 has forgotten the streams of datagrams, and chooses backends for them anew",
    },
    at_node_1(Loss::Failed, FROM_NODE_1, Bound::PerSecond(100)),
    at_node_1(Loss::Lost, FROM_NODE_1, Bound::PerSecond(400)),
    at_node_1(Loss::Failed, TO_NODE_1, Bound::PerSecond(26)),
    // A stream of datagrams stays with its backend, so all four may be at node 1.
    at_node_1(Loss::Lost, TO_NODE_1, Bound::PerSecond(146)),
];

const fn at_node_1(loss: Loss, ways: &'static [Way], bound: Bound) -> Allowance {
    let because = "node 1 serves nothing until the agent has loaded the programs anew";
    Allowance { loss, ways, backend: None, bound, because }
}

/// The faults of this file.
pub(super) const FAULTS: &[Fault] = &[
    Fault::new(
        "pins-lost",
        "All pins of node 1 are removed while its agent runs. The agent makes them again. Then it is killed, and \
         started again.",
        lose_pins,
    ),
    Fault::new(
        "director-emptied",
        "Node 1 loses its programs and maps, as after a reboot, and its agent is started again.",
        empty,
    )
    .allowing(WITHOUT_PROGRAMS)
    .right_after(125, LOADING),
];

fn lose_pins(ground: &mut Ground) -> Result<Mend> {
    let bpffs = ground.cluster().proxy(NODE)?.bpffs().to_owned();
    let before = paths(&bpffs)?;
    remove_all(&bpffs)?;
    let are_back = || Ok(paths(&bpffs).is_ok_and(|paths| paths == before));
    ground.wait_for(RESTORED_LIMIT, "the agent makes its pins again", are_back)?;
    ground.kill_agents(&[NODE])?;
    Ok(Box::new(start))
}

fn empty(ground: &mut Ground) -> Result<Mend> {
    ground.kill_agents(&[NODE])?;
    remove_all(ground.cluster().proxy(NODE)?.bpffs())?;
    Ok(Box::new(start))
}

/// Removes all directories in a directory. A running agent makes its own again, so they get another name first.
fn remove_all(directory: &Path) -> Result<()> {
    let lost = directory.join("lost");
    fs::read_dir(directory)?.try_for_each(|entry| {
        fs::rename(entry?.path(), &lost)?;
        Ok(fs::remove_dir_all(&lost)?)
    })
}

/// Returns the paths of all files and directories below a directory.
fn paths(directory: &Path) -> Result<BTreeSet<PathBuf>> {
    let mut paths = BTreeSet::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            paths.append(&mut self::paths(&path)?);
        }
        paths.insert(path);
    }
    Ok(paths)
}

/// Starts the agent of node 1, and waits until it serves.
fn start(ground: &mut Ground) -> Result<()> {
    ground.start_agents(&[NODE])?;
    ground.wait_until_followed().map(drop)
}

/// Returns the directory of the pins of node 1.
pub(super) fn root(ground: &Ground) -> Result<PathBuf> {
    pins(ground, NODE)
}

/// Returns the directory of the pins of a node: that of the one layout below `millrace`.
pub(crate) fn pins(ground: &Ground, node: u8) -> Result<PathBuf> {
    let directory = ground.cluster().proxy(node)?.bpffs().join("millrace");
    only_entry(&directory).with_context(|| format!("the pins in {}", directory.display()))
}

fn only_entry(directory: &Path) -> Result<PathBuf> {
    let entries: Vec<PathBuf> =
        fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    let layouts: Vec<PathBuf> = entries.into_iter().filter(|path| path.join("links").is_dir()).collect();
    ensure!(layouts.len() == 1, "{layouts:?} is not one layout");
    layouts.into_iter().next().context("no layout")
}

/// Returns the pins of the links of a device of node 1, by its index.
pub(super) fn links_of(ground: &Ground, index: u32) -> Result<Vec<PathBuf>> {
    let suffix = format!("-{index}");
    let mut links = Vec::new();
    for entry in fs::read_dir(root(ground)?.join("links"))? {
        let path = entry?.path();
        if path.to_string_lossy().ends_with(&suffix) {
            links.push(path);
        }
    }
    ensure!(!links.is_empty(), "node {NODE} has no links of device {index}");
    Ok(links)
}
