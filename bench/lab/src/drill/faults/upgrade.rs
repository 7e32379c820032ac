//! An upgrade from a former version with another layout of the maps, one node after the other.
//!
//! Each of these faults begins with the versions that the one before has left, so they are played all, in this order.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use proxy_common::LAYOUT_VERSION;

use super::pins::pins;
use crate::agent::binary;
use crate::drill::fault::{Allowance, Bound, Fault, Loss, Mend};
use crate::drill::ground::{Ground, NODES};
use crate::drill::way::Way;

/// The director of most ways.
const DIRECTOR: u8 = 1;
/// The longest time until an agent has taken over the maps of another layout. It loads its programs first.
const TAKEN_OVER_LIMIT: Duration = Duration::from_mins(2);

/// The faults of this file.
pub(super) const FAULTS: &[Fault] = &[
    Fault::new("nothing", "No fault: all nodes have the former version.", |_| Ok(Box::new(|_| Ok(())))),
    Fault::new(
        "director-upgraded",
        "The agent of node 1 is killed, and one of the present version is started. The other nodes have the former one.",
        |ground| upgrade(ground, &[DIRECTOR]),
    )
    .lasting(20, 120),
    Fault::new(
        "others-upgraded",
        "The same at node 2, then at node 3: all nodes have the present version.",
        |ground| upgrade(ground, &[2, 3]),
    )
    .lasting(10, 60),
    Fault::new(
        "director-rolled-back",
        "The agent of node 1 is killed, and one of the former version is started.",
        roll_back,
    )
    .lasting(20, 120)
    .allowing(&[
        forgotten(&[Way::Local], "pod-1a"),
        forgotten(&[Way::Snat], "pod-2a"),
        // Here node 1 is the backend's node.
        forgotten(&[Way::DsrFou], "pod-1b"),
        Allowance {
            loss: Loss::Wrong,
            ways: &[Way::Local, Way::Snat, Way::DsrFou],
            backend: None,
            // One stream of each way and family.
            bound: Bound::Most(6),
            because: "node 1 has forgotten the streams of datagrams, and some hashes lead to the newer endpoint",
        },
    ])
    .right_after(0, "a connection ends with its first request after the former programs have come"),
    Fault::new(
        "director-upgraded-again",
        "The agent of node 1 is killed, and one of the present version is started again.",
        |ground| upgrade(ground, &[DIRECTOR]),
    )
    .lasting(10, 60),
];

/// Allows a rollback to cut connections of the older of two endpoints: about half of 30.
const fn forgotten(ways: &'static [Way], backend: &'static str) -> Allowance {
    let because = "the former version can't take over flow entries of a newer layout, and half of the hashes lead to \
                   the endpoint that came after these connections";
    Allowance { loss: Loss::Cut, ways, backend: Some(backend), bound: Bound::Most(26), because }
}

/// Gives nodes the present version.
fn upgrade(ground: &mut Ground, nodes: &[u8]) -> Result<Mend> {
    let present = binary()?;
    for node in nodes {
        let layout = change_version(ground, *node, &present)?;
        ensure!(layout == format!("v{LAYOUT_VERSION}"), "node {node} has the pins of layout {layout}");
    }
    Ok(Box::new(|_| Ok(())))
}

fn roll_back(ground: &mut Ground) -> Result<Mend> {
    let former = ground.former()?.to_owned();
    change_version(ground, DIRECTOR, &former)?;
    Ok(Box::new(|_| Ok(())))
}

/// Starts an agent with another layout on a node, and waits until it serves. Returns the layout.
fn change_version(ground: &mut Ground, node: u8, binary: &Path) -> Result<String> {
    let before = layout(ground, node)?;
    ground.kill_agents(&[node])?;
    ground.cluster_mut().set_binary(node, binary)?;
    ground.start_agents(&[node])?;
    // The pins of the other layout are removed once no program uses them.
    let is_taken_over = || Ok(layout(ground, node).is_ok_and(|layout| layout != before));
    let what = format!("the agent of node {node} takes over from layout {before}");
    ground.wait_for(TAKEN_OVER_LIMIT, &what, is_taken_over)?;
    ground.wait_until_followed()?;
    layout(ground, node)
}

/// Returns the layout of a node's pins, such as `v9`.
fn layout(ground: &Ground, node: u8) -> Result<String> {
    let root = pins(ground, node)?;
    let name = root.file_name().context("pins without a directory")?;
    Ok(name.to_string_lossy().into_owned())
}

/// Fails unless all nodes have one layout, and another than the present version.
pub(crate) fn check_former(ground: &Ground) -> Result<()> {
    for node in NODES {
        let layout = layout(ground, node)?;
        ensure!(layout != format!("v{LAYOUT_VERSION}"), "node {node} has the present layout, {layout}");
    }
    Ok(())
}
