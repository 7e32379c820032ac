//! The image of a former version, for the test of upgrades.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Result;

use super::images;
use crate::former::{self, LAYOUT_3};
use crate::image::{self, Arch, File, PROGRAM_PATH, Profile};
use crate::workspace::Workspace;

/// The name of its image.
const NAME: &str = "millrace:former";

/// Packs the image of the former version, unless that was done, and returns its archive.
pub fn ensure(workspace: &Workspace) -> Result<PathBuf> {
    let archive = workspace.target().join("cluster/former.tar");
    if archive.is_file() {
        return Ok(archive);
    }
    let former = former::check_out(workspace, LAYOUT_3)?;
    let program = image::program(&former, Arch::Amd64, Profile::Quick)?;
    let files = BTreeMap::from([(PROGRAM_PATH.to_owned(), File::program(&program)?)]);
    images::write(&archive, &[NAME], &files, &[&format!("/{PROGRAM_PATH}")])?;
    Ok(archive)
}
