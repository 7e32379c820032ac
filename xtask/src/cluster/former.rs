//! The image of a former version, for the test of upgrades.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::images;
use crate::command;
use crate::image::{self, Arch, File, PROGRAM_PATH, Profile};
use crate::workspace::Workspace;

/// The last commit with map layout 3.
const COMMIT: &str = "4b212ca195337b6d1624ad1f3afe5f0d9cc23be3";
/// The name of its image.
const NAME: &str = "millrace:former";

/// Packs the image of the former version, unless that was done, and returns its archive.
pub fn ensure(workspace: &Workspace) -> Result<PathBuf> {
    let archive = workspace.target().join("cluster/former.tar");
    if archive.is_file() {
        return Ok(archive);
    }
    let root = workspace.target().join("former");
    if !root.join("Cargo.toml").is_file() {
        let mut git = workspace.command("git");
        git.args(["worktree", "add", "--force", "--detach"]).arg(&root).arg(COMMIT);
        command::run(&mut git).context("the former version comes from the repository's history")?;
    }
    let former = Workspace { root, cache: workspace.cache.clone() };
    let program = image::program(&former, Arch::Amd64, Profile::Quick)?;
    let files = BTreeMap::from([(PROGRAM_PATH.to_owned(), File::program(&program)?)]);
    images::write(&archive, &[NAME], &files, &[&format!("/{PROGRAM_PATH}")])?;
    Ok(archive)
}
