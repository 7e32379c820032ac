//! The reference pages, which a test of the agent's library writes: xtask itself knows none of our crates.

use anyhow::Result;

use crate::setup::Need;
use crate::workspace::Workspace;
use crate::{build, command, setup};

/// `cargo xtask docs`: writes docs/reference. The same test compares the pages where the variable is not set.
pub fn docs(workspace: &Workspace) -> Result<()> {
    setup::ensure(workspace, &[Need::Build])?;
    build::bpf_object(workspace, build::Warnings::Allowed)?;
    let mut cargo = workspace.cargo();
    // The whole workspace, as in the test layers, so that dependencies are built with the same features.
    cargo.args(["test", "--quiet", "--workspace", "--test", "reference", "pages::"]);
    command::run(cargo.env("MILLRACE_WRITE", "1"))
}
