//! Prometheus and promtool, out of Debian's package. It is not installed: on a machine with systemd, that would start
//! a server.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use super::go::put_in_place;
use crate::command;
use crate::workspace::Workspace;

const PACKAGE: &str = "prometheus";

/// Returns the folder with `prometheus` and `promtool`: that of an installed package, else one in the cache.
pub fn ensure_prometheus(workspace: &Workspace) -> Result<PathBuf> {
    let installed = PathBuf::from("/usr/bin");
    let folder = workspace.cache.join(PACKAGE);
    let programs = folder.join("usr/bin");
    if let Some(found) = [installed, programs.clone()].into_iter().find(|at| at.join("promtool").is_file()) {
        return Ok(found);
    }
    put_in_place(&folder, |partial| {
        let mut apt = workspace.command("apt-get");
        apt.args(["download", PACKAGE]).current_dir(partial);
        // Without a list of packages, apt knows none.
        if !command::succeeds(&mut apt) {
            command::run(workspace.command("apt-get").args(["update", "--quiet"]))?;
            command::run(&mut apt)?;
        }
        let entries = fs::read_dir(partial)?.collect::<Result<Vec<_>, _>>()?;
        let [package] = &entries[..] else { bail!("apt-get downloaded {} files", entries.len()) };
        command::run(workspace.command("dpkg-deb").arg("--extract").arg(package.path()).arg(partial))?;
        fs::remove_file(package.path()).context("can't remove the package")
    })?;
    Ok(programs)
}
