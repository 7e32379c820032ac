//! A second build of an image in another folder, whose digest must be the same.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use super::platform::{Arch, Variant};
use super::source::Source;
use super::{Built, Profile, build};
use crate::command;
use crate::workspace::Workspace;

/// Builds the image of a commit anew in a clone, and fails if the image differs.
///
/// The clone has another path and no build output, and its files and programs have later times. So a
/// path or a time in the image gives another digest.
pub fn check(
    workspace: &Workspace,
    source: &Source,
    arch: Arch,
    variant: Variant,
    built: &Built,
) -> Result<()> {
    let clone = Workspace { root: clone(workspace, &source.revision)?, cache: workspace.cache.clone() };
    let folder = clone.target().join("image");
    let again = build(&clone, arch, variant, Profile::Shipped, &folder)?;
    if again.digest != built.digest {
        bail!(
            "{} has the digest {} and, built anew in another folder, {}; compare {} with {} by diffoscope",
            built.name,
            built.digest,
            again.digest,
            built.archive.display(),
            again.archive.display()
        );
    }
    println!("  built anew in {}: the same digest", clone.root.display());
    Ok(())
}

fn clone(workspace: &Workspace, revision: &str) -> Result<PathBuf> {
    let root = workspace.target().join("image-again/clone");
    if root.exists() {
        fs::remove_dir_all(&root).with_context(|| format!("can't remove {}", root.display()))?;
    }
    let git = || workspace.command("git");
    command::run(
        git().args(["clone", "--quiet", "--shared", "--no-checkout"]).arg(&workspace.root).arg(&root),
    )?;
    command::run(git().arg("-C").arg(&root).args(["checkout", "--quiet", "--detach", revision]))?;
    Ok(root)
}
