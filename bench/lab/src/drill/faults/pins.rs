//! Faults of the pins: programs and maps are gone, as after a reboot, or lose their names.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::drill::fault::{Fault, Mend};
use crate::drill::ground::Ground;

/// The director of most ways.
const NODE: u8 = 1;

/// The faults of this file.
pub(super) const FAULTS: &[Fault] = &[
    Fault::new(
        "pins-lost",
        "The pins of the maps and programs of node 1 are removed while its agent runs. Then the agent is killed, \
         and started again.",
        lose_pins,
    ),
    Fault::new(
        "director-emptied",
        "Node 1 loses its programs and maps, as after a reboot, and its agent is started again.",
        empty,
    ),
];

fn lose_pins(ground: &mut Ground) -> Result<Mend> {
    let root = root(ground)?;
    for entry in fs::read_dir(&root)? {
        let entry = entry?;
        if entry.file_name() == "links" {
            continue;
        }
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    ground.kill_agents(&[NODE])?;
    Ok(Box::new(|ground| ground.start_agents(&[NODE])))
}

fn empty(ground: &mut Ground) -> Result<Mend> {
    ground.kill_agents(&[NODE])?;
    let bpffs = ground.cluster().proxy(NODE)?.bpffs();
    for entry in fs::read_dir(bpffs)? {
        fs::remove_dir_all(entry?.path())?;
    }
    Ok(Box::new(|ground| ground.start_agents(&[NODE])))
}

/// Returns the directory of the pins of node 1: that of the one layout below `millrace`.
fn root(ground: &Ground) -> Result<PathBuf> {
    let directory = ground.cluster().proxy(NODE)?.bpffs().join("millrace");
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
