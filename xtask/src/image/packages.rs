//! The program nft and its libraries, for the image that can serve by IPVS: Debian's packages, but
//! only the files that nft needs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::blob;
use super::elf;
use super::layer::File;
use super::platform::Arch;
use crate::apt::{self, Apt};
use crate::command;
use crate::workspace::Workspace;

/// The package that is wanted, and its program.
const PACKAGE: &str = "nftables";
const PROGRAM: &str = "usr/sbin/nft";
/// The most symbolic links from a library's name to its file.
const MOST_LINKS: usize = 4;

/// A package with files in the image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Package {
    /// The name.
    pub name: String,
    /// The version.
    pub version: String,
    /// The checksum of the package's file.
    pub sha256: String,
}

/// nft, its libraries and their licences.
#[derive(Debug, Default)]
pub struct Nft {
    /// The files by their path in the image.
    pub files: BTreeMap<String, File>,
    /// The packages that they come from.
    pub packages: Vec<Package>,
}

/// Downloads nft for an architecture, with the libraries and the loader that it names.
pub fn nft(workspace: &Workspace, arch: Arch) -> Result<Nft> {
    let folder = workspace.cache.join("nft").join(arch.name());
    let unpacked = folder.join("packages");
    if unpacked.exists() {
        fs::remove_dir_all(&unpacked).with_context(|| format!("can't empty {}", unpacked.display()))?;
    }
    let sources = apt::bookworm(workspace)?;
    let apt = Apt::update(workspace, &folder, &sources, Some(arch.name()))?;
    remove_archives(&folder)?;
    apt.download(&apt.closure(PACKAGE)?)?;
    let mut found = Vec::new();
    for archive in archives(&folder)? {
        let package = describe(workspace, &archive)?;
        let root = unpacked.join(&package.name);
        fs::create_dir_all(&root).with_context(|| format!("can't create {}", root.display()))?;
        apt::extract(workspace, &archive, &root)?;
        found.push((package, root));
    }
    Search { arch, packages: &found, nft: Nft::default(), owners: BTreeSet::new() }.run()
}

/// Collects the files of a program out of unpacked packages.
struct Search<'a> {
    arch: Arch,
    packages: &'a [(Package, PathBuf)],
    nft: Nft,
    owners: BTreeSet<usize>,
}

impl Search<'_> {
    fn run(mut self) -> Result<Nft> {
        let mut open = vec![PROGRAM.to_owned()];
        while let Some(path) = open.pop() {
            if self.nft.files.contains_key(&path) {
                continue;
            }
            let bytes = self.add(&path)?;
            let demands = elf::read(&bytes).with_context(|| format!("can't read {path}"))?;
            if demands.arch != self.arch {
                bail!("{path} is for {}, not for {}", demands.arch.name(), self.arch.name());
            }
            open.extend(demands.interpreter.map(|loader| loader.trim_start_matches('/').to_owned()));
            for library in demands.needed {
                open.push(self.library(&library)?);
            }
        }
        self.add_licences()?;
        Ok(self.nft)
    }

    /// Adds a file and the symbolic links that lead to it, and returns its content.
    fn add(&mut self, path: &str) -> Result<Vec<u8>> {
        let mut path = path.to_owned();
        for _ in 0..MOST_LINKS {
            let (owner, file) =
                self.find(&path).with_context(|| format!("no package of {PACKAGE} has {path}"))?;
            self.owners.insert(owner);
            let Ok(target) = fs::read_link(&file) else {
                let bytes = fs::read(&file).with_context(|| format!("can't read {}", file.display()))?;
                self.nft.files.insert(path, File::Program(bytes.clone()));
                return Ok(bytes);
            };
            let target = target.display().to_string();
            let next = beside(&path, &target);
            self.nft.files.insert(path, File::Link(target));
            path = next;
        }
        bail!("{path} is a link that leads to too many others")
    }

    fn library(&self, name: &str) -> Result<String> {
        let folder = self.arch.library_folder();
        let places =
            [format!("lib/{folder}/{name}"), format!("usr/lib/{folder}/{name}"), format!("lib/{name}")];
        let found = places.into_iter().find(|place| self.find(place).is_some());
        found.with_context(|| format!("no package of {PACKAGE} has the library {name}"))
    }

    /// Returns the package that has a path, and where it is unpacked.
    fn find(&self, path: &str) -> Option<(usize, PathBuf)> {
        let places = self.packages.iter().map(|(_, root)| root.join(path)).enumerate();
        places.into_iter().find(|(_, file)| file.symlink_metadata().is_ok())
    }

    fn add_licences(&mut self) -> Result<()> {
        let all = self.packages.iter().enumerate();
        for (_, (package, root)) in all.filter(|(number, _)| self.owners.contains(number)) {
            let path = format!("usr/share/doc/{}/copyright", package.name);
            let text = fs::read(root.join(&path))
                .with_context(|| format!("the package {} has no licence", package.name))?;
            self.nft.files.insert(path, File::Data(text));
            self.nft.packages.push(package.clone());
        }
        Ok(())
    }
}

/// Returns the path that a link at `path` leads to.
fn beside(path: &str, target: &str) -> String {
    if let Some(absolute) = target.strip_prefix('/') {
        return absolute.to_owned();
    }
    let mut parts: Vec<&str> = path.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." => {}
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

fn archives(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("can't list {}", folder.display()))?;
    let paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    let mut archives: Vec<PathBuf> =
        paths.into_iter().filter(|path| path.extension().is_some_and(|ending| ending == "deb")).collect();
    archives.sort();
    Ok(archives)
}

/// Removes the packages of a former run, whose versions may be older.
fn remove_archives(folder: &Path) -> Result<()> {
    for archive in archives(folder)? {
        fs::remove_file(&archive).with_context(|| format!("can't remove {}", archive.display()))?;
    }
    Ok(())
}

fn describe(workspace: &Workspace, archive: &Path) -> Result<Package> {
    let field = |name: &str| {
        let mut show = workspace.command("dpkg-deb");
        let value = command::output(show.arg("--field").arg(archive).arg(name))?;
        anyhow::Ok(value.trim().to_owned())
    };
    let bytes = fs::read(archive).with_context(|| format!("can't read {}", archive.display()))?;
    let sha256 = blob::digest(&bytes).trim_start_matches("sha256:").to_owned();
    Ok(Package { name: field("Package")?, version: field("Version")?, sha256 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_leads_to_a_file_beside_it_or_from_the_root() {
        assert_eq!(beside("lib/arm/libc.so.6", "libc-2.36.so"), "lib/arm/libc-2.36.so");
        assert_eq!(beside("usr/lib/arm/libedit.so", "../../share/./libedit.so.2"), "usr/share/libedit.so.2");
        assert_eq!(beside("lib64/ld-linux.so.2", "/lib/arm/ld-linux.so.2"), "lib/arm/ld-linux.so.2");
    }
}
