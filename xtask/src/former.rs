//! Former versions of Millrace, built from the repository's history: those that upgrades begin with.

use anyhow::{Context, Result};

use crate::command;
use crate::workspace::Workspace;

/// The last commit with map layout 3. The upgrade of the real cluster begins with it.
pub const LAYOUT_3: &str = "4b212ca195337b6d1624ad1f3afe5f0d9cc23be3";
/// The last commit with map layout 8. The upgrade of the drill begins with it.
pub const LAYOUT_8: &str = "a082ab85f29fb1c784875015dd9c221051bbea99";

/// Checks a commit out into a work tree of its own below `target`, unless that was done.
pub fn check_out(workspace: &Workspace, commit: &str) -> Result<Workspace> {
    // The name has the commit: another one must not be taken for it.
    let root = workspace.target().join(format!("former-{commit:.8}"));
    if !root.join("Cargo.toml").is_file() {
        let mut git = workspace.command("git");
        git.args(["worktree", "add", "--force", "--detach"]).arg(&root).arg(commit);
        command::run(&mut git).context("the former version comes from the repository's history")?;
    }
    Ok(Workspace { root, cache: workspace.cache.clone() })
}
