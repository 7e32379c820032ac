//! The image of a former version, for the test of upgrades.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::command;
use crate::image::{self, Arch, Config, File, Image, Layer, PROGRAM_PATH, Profile};
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
    let layer = Layer::pack(&BTreeMap::from([(PROGRAM_PATH.to_owned(), File::program(&program)?)]))?;
    let config = Config {
        entry_point: vec![format!("/{PROGRAM_PATH}")],
        created: "1970-01-01T00:00:00Z".to_owned(),
        ..Config::default()
    };
    let bytes = image::pack(&[NAME], &Image::new(Arch::Amd64, &config, vec![layer]), &[])?.bytes;
    fs::write(&archive, bytes).with_context(|| format!("can't write {}", archive.display()))?;
    Ok(archive)
}
