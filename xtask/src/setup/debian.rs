//! Debian packages.

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;

use anyhow::{Context, Result, bail};

use crate::command;
use crate::workspace::Workspace;

/// Installs the missing packages of `wanted`. Fails without root or apt, and names them.
pub fn ensure_packages(workspace: &Workspace, wanted: &[&str]) -> Result<()> {
    if wanted.is_empty() {
        return Ok(());
    }
    let mut query = workspace.command("dpkg-query");
    query.args(["--show", "--showformat", "${Package} ${db:Status-Status}\n"]).args(wanted);
    // dpkg-query exits with status 1 if a package is unknown, and still lists the others.
    let listing = query.output().with_context(|| {
        format!("this is no Debian machine (no dpkg-query); needed packages: {}", wanted.join(" "))
    })?;
    let missing = missing(wanted, &String::from_utf8_lossy(&listing.stdout));
    if missing.is_empty() {
        return Ok(());
    }
    eprintln!("missing Debian packages: {}", missing.join(" "));
    let by_hand = format!("apt-get update && apt-get install --no-install-recommends {}", missing.join(" "));
    if !is_root()? {
        bail!("installing packages takes root; as root: {by_hand}");
    }
    install(workspace, &missing).with_context(|| {
        format!(
            "can't install Debian packages; by hand: {by_hand} (if Debian 12's security suite is not available, \
             `rustup toolchain install nightly --component rust-src` replaces rustc-web, rust-web-src and cargo-web)"
        )
    })
}

/// Returns whether this process may change the machine.
pub fn is_root() -> Result<bool> {
    let process = std::fs::metadata("/proc/self").context("/proc is not mounted")?;
    Ok(process.uid() == 0)
}

fn install(workspace: &Workspace, packages: &[&str]) -> Result<()> {
    command::run(workspace.command("apt-get").args(["update", "--quiet"]))?;
    let mut install = workspace.command("apt-get");
    install.env("DEBIAN_FRONTEND", "noninteractive");
    install.args(["install", "--quiet", "--yes", "--no-install-recommends"]).args(packages);
    command::run(&mut install)
}

/// Returns the packages of `wanted` that a listing of `name status` lines does not call installed.
fn missing<'a>(wanted: &[&'a str], listing: &str) -> Vec<&'a str> {
    let installed: HashSet<&str> =
        listing.lines().filter_map(|line| line.strip_suffix(" installed")).collect();
    let mut missing: Vec<_> = wanted.iter().copied().filter(|name| !installed.contains(name)).collect();
    missing.sort_unstable();
    missing.dedup();
    missing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_package_and_an_unknown_one_are_missing() {
        let listing = "bpftool installed\nmount installed\ncargo-web config-files\n";
        assert_eq!(
            missing(&["mount", "cargo-web", "bpftool", "rustc-web"], listing),
            ["cargo-web", "rustc-web"]
        );
    }

    #[test]
    fn nothing_is_missing_when_all_is_installed() {
        assert!(missing(&["mount", "mount"], "mount installed\n").is_empty());
    }
}
