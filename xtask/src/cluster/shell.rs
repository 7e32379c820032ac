//! The programs of a shell for the image of Kubernetes' specs, from Debian's packages.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result, anyhow};

use crate::apt::{self, Apt};
use crate::image::File;
use crate::workspace::Workspace;

/// The packages that the specs' scripts call.
const PACKAGES: [&str; 15] = [
    "bash",
    "conntrack",
    "coreutils",
    "curl",
    "dash",
    "dnsutils",
    "grep",
    "hostname",
    "iproute2",
    "iptables",
    "libc-bin",
    "mawk",
    "netcat-openbsd",
    "sed",
    "wget",
];
/// Folders that no script reads.
const LEFT_OUT: [&str; 4] = ["usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info"];

/// Returns all files, by their paths in the image.
pub fn files(workspace: &Workspace) -> Result<BTreeMap<String, File>> {
    let folder = workspace.cache.join("shell");
    let root = workspace.target().join("cluster/shell");
    if root.exists() {
        fs::remove_dir_all(&root).with_context(|| format!("can't empty {}", root.display()))?;
    }
    fs::create_dir_all(&root).with_context(|| format!("can't create {}", root.display()))?;
    let apt = Apt::update(workspace, &folder, &apt::bookworm(workspace)?, Some("amd64"))?;
    let mut packages = BTreeSet::new();
    for package in PACKAGES {
        packages.extend(apt.closure(package)?);
    }
    apt.download(&packages.into_iter().collect::<Vec<_>>())?;
    for entry in fs::read_dir(&folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "deb") {
            apt::extract(workspace, &path, &root)?;
        }
    }
    let mut files = BTreeMap::new();
    collect(&root, "", &mut files)?;
    // Debian makes these links when it installs the packages.
    for (link, program) in [("bin/nc", "nc.openbsd"), ("usr/bin/awk", "mawk")] {
        files.insert(link.to_owned(), File::Link(program.to_owned()));
    }
    // Upstream's wget is busybox's, which tries once. Debian's would try an address without an answer 20 times.
    files.insert("etc/wgetrc".to_owned(), File::Data(b"tries = 1\n".to_vec()));
    // A folder that programs write to has to be there.
    files.insert("tmp/.keep".to_owned(), File::Data(Vec::new()));
    Ok(files)
}

fn collect(root: &Path, folder: &str, files: &mut BTreeMap<String, File>) -> Result<()> {
    for entry in fs::read_dir(root.join(folder))? {
        let entry = entry?;
        let name = entry.file_name().into_string();
        let name = name.map_err(|name| anyhow!("{} is no text", name.display()))?;
        let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
        let kind = entry.file_type()?;
        if LEFT_OUT.contains(&path.as_str()) {
            continue;
        }
        if kind.is_dir() {
            collect(root, &path, files)?;
        } else if kind.is_symlink() {
            files.insert(path, File::Link(fs::read_link(entry.path())?.display().to_string()));
        } else {
            let bytes = fs::read(entry.path())?;
            let is_program = entry.metadata()?.permissions().mode() & 0o111 != 0;
            files.insert(path, if is_program { File::Program(bytes) } else { File::Data(bytes) });
        }
    }
    Ok(())
}
