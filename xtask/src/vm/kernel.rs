//! The kernels, and where Debian's kernels come from.

use std::env::consts::ARCH;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};

use crate::apt::{self, Apt};
use crate::setup;
use crate::workspace::Workspace;

/// A kernel that loads the programs.
pub struct Kernel {
    /// The name that `--kernel` takes.
    pub name: &'static str,
    /// The Debian suite of its packages. `None` is the machine's own kernel.
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

/// A build of a kernel, with other drivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Build {
    /// For virtual machines.
    Cloud,
    /// For all machines.
    Generic,
}

const IMAGE: &str = "linux-image-";
const PARTS: [&str; 2] = ["linux-binary-", "linux-modules-"];

/// An unpacked kernel package.
pub struct Unpacked {
    /// The image that QEMU boots.
    pub image: PathBuf,
    /// `lib/modules/VERSION/kernel`.
    pub modules: PathBuf,
}

impl Build {
    /// Returns the package that depends on the suite's newest kernel of this build.
    const fn meta_package(self) -> &'static str {
        match self {
            Self::Cloud => "linux-image-cloud-amd64",
            Self::Generic => "linux-image-amd64",
        }
    }

    /// Returns the name of a kernel's directory in the cache.
    fn directory(self, name: &str) -> String {
        match self {
            Self::Cloud => name.to_owned(),
            Self::Generic => format!("{name}-generic"),
        }
    }
}

impl Unpacked {
    /// Returns whether the kernel has a module, such as `drivers/net/veth`.
    pub fn has_module(&self, module: &str) -> bool {
        self.module(module).is_some()
    }

    /// Returns the path and the ending of a module. Newer packages compress their modules.
    pub fn module(&self, module: &str) -> Option<(PathBuf, &'static str)> {
        let paths = ["ko", "ko.xz"].map(|ending| (self.modules.join(format!("{module}.{ending}")), ending));
        paths.into_iter().find(|(path, _)| path.exists())
    }
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
pub fn ensure(workspace: &Workspace, name: &str, suite: &str, build: Build) -> Result<Unpacked> {
    // Machines start in parallel, and only one may fill the cache.
    static DOWNLOAD: Mutex<()> = Mutex::new(());
    let _download = DOWNLOAD.lock().unwrap_or_else(PoisonError::into_inner);
    let name = build.directory(name);
    let directory = workspace.cache.join("kernels").join(&name);
    if !directory.exists() {
        let partial = workspace.cache.join("kernels").join(format!("{name}.partial"));
        if partial.exists() {
            fs::remove_dir_all(&partial).with_context(|| format!("can't empty {}", partial.display()))?;
        }
        download(workspace, suite, build.meta_package(), &partial)
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

fn download(workspace: &Workspace, suite: &str, meta_package: &str, directory: &Path) -> Result<()> {
    let root = directory.join("root");
    fs::create_dir_all(&root).context("can't write to the cache")?;
    let bookworm = apt::bookworm(workspace)?;
    let main = bookworm.iter().find_map(|source| source.strip_suffix(" bookworm"));
    let mirror = main.context("apt has no source for Debian 12 (bookworm)")?;
    let apt = Apt::update(workspace, directory, &[format!("{mirror} {suite}")], None)?;
    let package = apt
        .dependencies(meta_package)?
        .into_iter()
        .find(|package| package.starts_with(IMAGE))
        .with_context(|| format!("{meta_package} of {suite} depends on no kernel"))?;
    // Newer suites have kernel and modules in separate packages.
    let mut parts = apt.dependencies(&package)?;
    parts.retain(|part| PARTS.iter().any(|name| part.starts_with(name)));
    parts.push(package);
    apt.download(&parts)?;
    for part in parts {
        apt::extract(workspace, &only_entry(directory, &format!("{part}_"))?, &root)?;
    }
    Ok(())
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
