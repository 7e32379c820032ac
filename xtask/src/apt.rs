//! Debian's packages in a folder of our own. The machine's packages and package lists stay as they
//! are.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::command;
use crate::workspace::Workspace;

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// apt with its own source list, package lists and cache.
pub struct Apt<'a> {
    workspace: &'a Workspace,
    folder: PathBuf,
    arch: Option<&'static str>,
}

impl<'a> Apt<'a> {
    /// Prepares a folder, and loads the package lists of these sources: lines of `URL SUITE`.
    ///
    /// Without an architecture it is the machine's.
    pub fn update(
        workspace: &'a Workspace,
        folder: &Path,
        sources: &[String],
        arch: Option<&'static str>,
    ) -> Result<Self> {
        for part in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(folder.join(part))
                .with_context(|| format!("can't create {}", folder.display()))?;
        }
        let list: Vec<String> =
            sources.iter().map(|source| format!("deb [signed-by={KEYRING}] {source} main\n")).collect();
        fs::write(folder.join("sources.list"), list.concat()).context("can't write to the cache")?;
        let apt = Self { workspace, folder: folder.to_path_buf(), arch };
        command::run(apt.command("apt-get").args(["--quiet", "--error-on=any", "update"]))?;
        Ok(apt)
    }

    /// Returns the dependencies of a package.
    pub fn dependencies(&self, package: &str) -> Result<Vec<String>> {
        let depends = command::output(self.command("apt-cache").args(["depends", package]))?;
        let names = depends.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
        Ok(names.map(str::to_owned).collect())
    }

    /// Returns a package, its dependencies, and theirs.
    pub fn closure(&self, package: &str) -> Result<Vec<String>> {
        let mut apt = self.command("apt-cache");
        apt.args(["depends", "--recurse", "--no-recommends", "--no-suggests", "--no-conflicts"]);
        apt.args(["--no-breaks", "--no-replaces", "--no-enhances", package]);
        let lines = command::output(&mut apt)?;
        let is_package = |line: &&str| !line.starts_with([' ', '|', '<']);
        Ok(lines.lines().filter(is_package).map(str::to_owned).collect())
    }

    /// Downloads packages into the folder.
    pub fn download(&self, packages: &[String]) -> Result<()> {
        command::run(self.command("apt-get").args(["--quiet", "download"]).args(packages))
    }

    fn command(&self, program: &str) -> Command {
        let mut apt = self.workspace.command(program);
        let path = |name: &str| self.folder.join(name).display().to_string();
        apt.current_dir(&self.folder);
        let mut options = vec![
            format!("Dir::Etc::sourcelist={}", path("sources.list")),
            "Dir::Etc::sourceparts=/dev/null".to_owned(),
            format!("Dir::State::lists={}", path("lists")),
            format!("Dir::Cache={}", path("cache")),
            // apt's own user may have no access to the folder.
            "APT::Sandbox::User=root".to_owned(),
        ];
        if let Some(arch) = self.arch {
            // What the machine has installed is of another architecture.
            options.push("Dir::State::status=/dev/null".to_owned());
            options.extend([format!("APT::Architecture={arch}"), format!("APT::Architectures={arch}")]);
        }
        for option in options {
            apt.args(["-o", &option]);
        }
        apt
    }
}

/// Returns the sources of Debian 12 that this machine uses, security updates included: lines of
/// `URL SUITE`.
pub fn bookworm(workspace: &Workspace) -> Result<Vec<String>> {
    let mut targets = workspace.command("apt-get");
    targets.args(["indextargets", "--format", "$(REPO_URI) $(RELEASE)", "Created-By: Packages"]);
    let list = command::output(&mut targets)?;
    let mut sources: Vec<String> = list.lines().filter(|line| is_bookworm(line)).map(str::to_owned).collect();
    sources.dedup();
    if sources.is_empty() {
        bail!("apt has no source for Debian 12 (bookworm)");
    }
    Ok(sources)
}

fn is_bookworm(source: &str) -> bool {
    let suite = source.rsplit_once(' ').map_or("", |(_, suite)| suite);
    matches!(suite, "bookworm" | "bookworm-updates" | "bookworm-security")
}

/// Unpacks a package into a folder.
pub fn extract(workspace: &Workspace, package: &Path, folder: &Path) -> Result<()> {
    let mut extract = workspace.command("dpkg-deb");
    command::run(extract.arg("--extract").arg(package).arg(folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_stable_suites_are_sources() {
        assert!(is_bookworm("http://deb.debian.org/debian/ bookworm"));
        assert!(is_bookworm("http://deb.debian.org/debian-security/ bookworm-security"));
        assert!(!is_bookworm("http://deb.debian.org/debian/ bookworm-backports"));
        assert!(!is_bookworm("http://example.com/ nodistro"));
    }
}
