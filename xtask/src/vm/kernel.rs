//! The kernels, and where Debian's kernels come from.

use std::env::consts::ARCH;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};

use crate::workspace::Workspace;
use crate::{command, setup};

/// A kernel that loads the programs.
pub struct Kernel {
    /// The name that `--kernel` takes.
    pub name: &'static str,
    /// The Debian suite of its cloud kernel. `None` is the machine's own kernel.
    pub suite: Option<&'static str>,
}

/// All kernels. [`NAMES`] has their names.
pub const KERNELS: [Kernel; 4] = [
    Kernel { name: "host", suite: None },
    Kernel { name: "6.1", suite: Some("bookworm") },
    Kernel { name: "6.12", suite: Some("bookworm-backports") },
    Kernel { name: "newest", suite: Some("trixie-backports") },
];
/// The values of `--kernel`.
pub const NAMES: [&str; 4] = ["host", "6.1", "6.12", "newest"];

/// The package that depends on the suite's newest kernel for virtual machines.
const META_PACKAGE: &str = "linux-image-cloud-amd64";
const IMAGE: &str = "linux-image-";
const PARTS: [&str; 2] = ["linux-binary-", "linux-modules-"];
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// An unpacked kernel package.
pub struct Unpacked {
    /// The image that QEMU boots.
    pub image: PathBuf,
    /// `lib/modules/VERSION/kernel`.
    pub modules: PathBuf,
}

impl Kernel {
    /// Returns the reason why this machine can't run the kernel, if there is one.
    pub fn obstacle(&self) -> Result<Option<String>> {
        Ok(match self.suite {
            None if !setup::is_root()? => Some("loading BPF programs takes root".to_owned()),
            Some(_) if ARCH != "x86_64" => Some(format!("its kernel is for x86_64, this machine is {ARCH}")),
            _ => None,
        })
    }
}

/// Returns the kernel from the cache. Downloads it with apt and unpacks it there first, if it is
/// missing.
///
/// The machine's own packages and package lists stay as they are.
pub fn ensure(workspace: &Workspace, name: &str, suite: &str) -> Result<Unpacked> {
    // Machines start in parallel, and only one may fill the cache.
    static DOWNLOAD: Mutex<()> = Mutex::new(());
    let _download = DOWNLOAD.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = workspace.cache.join("kernels").join(name);
    if !directory.exists() {
        let partial = workspace.cache.join("kernels").join(format!("{name}.partial"));
        if partial.exists() {
            fs::remove_dir_all(&partial).with_context(|| format!("can't empty {}", partial.display()))?;
        }
        download(workspace, suite, &partial)
            .with_context(|| format!("can't get the kernel of Debian's {suite}"))?;
        fs::rename(partial.join("root"), &directory).context("can't keep the unpacked kernel")?;
        fs::remove_dir_all(&partial).with_context(|| format!("can't remove {}", partial.display()))?;
    }
    let boot = directory.join("boot");
    if boot.exists() {
        let modules = only_entry(&directory.join("lib/modules"), "")?.join("kernel");
        return Ok(Unpacked { image: only_entry(&boot, "vmlinuz-")?, modules });
    }
    // Newer packages have both in one directory.
    let both = only_entry(&directory.join("usr/lib/modules"), "")?;
    Ok(Unpacked { image: both.join("vmlinuz"), modules: both.join("kernel") })
}

fn download(workspace: &Workspace, suite: &str, directory: &Path) -> Result<()> {
    for part in ["lists/partial", "cache/archives/partial", "root"] {
        fs::create_dir_all(directory.join(part)).context("can't write to the cache")?;
    }
    let source = format!("deb [signed-by={KEYRING}] {} {suite} main\n", mirror(workspace)?);
    fs::write(directory.join("sources.list"), source).context("can't write to the cache")?;
    let update = ["--quiet", "--error-on=any", "update"];
    command::run(private_apt(workspace, "apt-get", directory).args(update))?;
    let package = dependencies(workspace, directory, META_PACKAGE)?
        .into_iter()
        .find(|package| package.starts_with(IMAGE))
        .with_context(|| format!("{META_PACKAGE} of {suite} depends on no kernel"))?;
    // Newer suites have kernel and modules in separate packages.
    let mut parts = dependencies(workspace, directory, &package)?;
    parts.retain(|part| PARTS.iter().any(|name| part.starts_with(name)));
    parts.push(package);
    command::run(private_apt(workspace, "apt-get", directory).args(["--quiet", "download"]).args(&parts))?;
    for part in parts {
        let archive = only_entry(directory, &format!("{part}_"))?;
        let mut extract = workspace.command("dpkg-deb");
        command::run(extract.arg("--extract").arg(archive).arg(directory.join("root")))?;
    }
    Ok(())
}

/// Returns the dependencies of a package.
fn dependencies(workspace: &Workspace, directory: &Path, package: &str) -> Result<Vec<String>> {
    let depends = command::output(private_apt(workspace, "apt-cache", directory).args(["depends", package]))?;
    let names = depends.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    Ok(names.map(str::to_owned).collect())
}

/// Returns apt with its own source list, package lists and cache.
fn private_apt(workspace: &Workspace, program: &str, directory: &Path) -> Command {
    let mut apt = workspace.command(program);
    let path = |name: &str| directory.join(name).display().to_string();
    apt.current_dir(directory);
    for option in [
        format!("Dir::Etc::sourcelist={}", path("sources.list")),
        "Dir::Etc::sourceparts=/dev/null".to_owned(),
        format!("Dir::State::lists={}", path("lists")),
        format!("Dir::Cache={}", path("cache")),
        // apt's own user may have no access to the directory.
        "APT::Sandbox::User=root".to_owned(),
    ] {
        apt.args(["-o", &option]);
    }
    apt
}

/// Returns the mirror that this machine uses for Debian 12.
fn mirror(workspace: &Workspace) -> Result<String> {
    let mut targets = workspace.command("apt-get");
    targets.args(["indextargets", "--format", "$(REPO_URI)", "Release: bookworm", "Created-By: Packages"]);
    let list = command::output(&mut targets)?;
    list.lines().next().map(str::to_owned).context("apt has no source for Debian 12 (bookworm)")
}

fn only_entry(directory: &Path, prefix: &str) -> Result<PathBuf> {
    let entries = fs::read_dir(directory).with_context(|| format!("can't list {}", directory.display()))?;
    let mut names = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let starts =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix));
    names.find(starts).with_context(|| format!("{} has no {prefix}*", directory.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_can_be_named() {
        assert_eq!(KERNELS.map(|kernel| kernel.name), NAMES);
    }
}
