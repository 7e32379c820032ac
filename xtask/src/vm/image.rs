//! The initial root of a test machine: the first process, its libraries, kernel modules, and the
//! files of a test.

use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::cpio::Archive;
use super::kernel::Unpacked;
use crate::command;
use crate::workspace::Workspace;

/// The modules of every machine, in the order of their insertion: devices, and what attaching
/// programs needs.
const MODULES: [&str; 3] = ["drivers/net/veth", "net/sched/sch_ingress", "net/sched/cls_bpf"];

/// The contents of a machine's image.
pub struct Contents<'a> {
    /// Its first process.
    pub guest: &'a Path,
    /// The command that process runs.
    pub words: &'a [&'a str],
    /// Variables for the command.
    pub environment: &'a [(&'a str, &'a str)],
    /// Modules besides those of every machine. Each needs only earlier ones.
    pub modules: &'a [&'a str],
    /// Programs, and their paths in the machine. Their libraries come with them.
    pub programs: &'a [(PathBuf, &'a str)],
    /// Other files, and their paths in the machine.
    pub files: &'a [(PathBuf, &'a str)],
}

/// Writes an image called `name` and returns its path.
pub fn build(workspace: &Workspace, kernel: &Unpacked, name: &str, contents: &Contents) -> Result<PathBuf> {
    let mut archive = Archive::default();
    archive.add_file("/init", &read(contents.guest)?);
    archive.add_file("/command", contents.words.join("\n").as_bytes());
    let variables = contents.environment.iter().map(|(name, value)| format!("{name}={value}\n"));
    archive.add_file("/environment", variables.collect::<String>().as_bytes());
    let programs = contents.programs.iter().map(|(program, _)| program.as_path());
    let mut needed = BTreeSet::new();
    for program in programs.chain([contents.guest]) {
        needed.append(&mut libraries(workspace, program)?);
    }
    for library in needed {
        archive.add_file(&library, &read(Path::new(&library))?);
    }
    for (order, module) in MODULES.iter().chain(contents.modules).enumerate() {
        if let Some((content, ending)) = read_module(kernel, module)? {
            archive.add_file(&format!("/modules/{order:02}.{ending}"), &content);
        }
    }
    // Programs look up the user root.
    archive.add_file("/etc/passwd", b"root:x:0:0:root:/:/bin/sh\n");
    archive.add_file("/etc/group", b"root:x:0:\n");
    for (path, place) in contents.files.iter().chain(contents.programs) {
        archive.add_file(place, &read(path)?);
    }
    let directory = directory(workspace)?;
    let image = directory.join(format!("{name}.cpio"));
    fs::write(&image, archive.finish()).with_context(|| format!("can't write {}", image.display()))?;
    Ok(image)
}

/// Locks an image and its console against other runs, until the file is dropped.
pub fn lock(workspace: &Workspace, name: &str) -> Result<File> {
    let path = directory(workspace)?.join(format!("{name}.lock"));
    let file = File::create(&path).with_context(|| format!("can't make {}", path.display()))?;
    if let Err(TryLockError::WouldBlock) = file.try_lock() {
        println!("another run uses the machine {name}; waiting for it");
    }
    file.lock().with_context(|| format!("can't lock {}", path.display()))?;
    Ok(file)
}

/// Returns the directory of images and consoles.
pub fn directory(workspace: &Workspace) -> Result<PathBuf> {
    let directory = workspace.target().join("vm");
    fs::create_dir_all(&directory).with_context(|| format!("can't make {}", directory.display()))?;
    Ok(directory)
}

/// Reads a module, or returns `None` if the kernel has no such module.
///
/// The kernel unpacks a compressed one itself. A missing module is built in (`nfnetlink` in newer
/// kernels), or no longer exists (`libcrc32c`).
fn read_module(kernel: &Unpacked, module: &str) -> Result<Option<(Vec<u8>, &'static str)>> {
    kernel.module(module).map(|(path, ending)| Ok((read(&path)?, ending))).transpose()
}

/// Returns the dynamic loader and the libraries of `program`, as the host's loader finds them.
fn libraries(workspace: &Workspace, program: &Path) -> Result<BTreeSet<String>> {
    let listing = command::output(workspace.command("ldd").arg(program))?;
    Ok(listing.lines().filter_map(library_path).map(str::to_owned).collect())
}

/// Returns the path in a line such as `libc.so.6 => /lib/libc.so.6 (0x...)` or `/lib64/ld.so
/// (0x...)`. The vdso has none.
fn library_path(line: &str) -> Option<&str> {
    line.split_whitespace().find(|word| word.starts_with('/'))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("can't read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_belongs_to_one_run_at_a_time() {
        let root = std::env::temp_dir().join(format!("xtask-lock-{}", std::process::id()));
        let workspace = Workspace { root: root.clone(), cache: root.clone() };
        let is_free = || {
            let file = File::open(directory(&workspace).unwrap().join("6.1-packet.lock")).unwrap();
            !matches!(file.try_lock(), Err(TryLockError::WouldBlock))
        };
        let held = lock(&workspace, "6.1-packet").unwrap();
        assert!(!is_free());
        drop(held);
        assert!(is_free());
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn library_paths_are_read_from_the_output_of_ldd() {
        assert_eq!(library_path("\tlinux-vdso.so.1 (0x00007ffd)"), None);
        assert_eq!(library_path("\tlibc.so.6 => /lib/x86_64/libc.so.6 (0x0)"), Some("/lib/x86_64/libc.so.6"));
        assert_eq!(library_path("\t/lib64/ld-linux-x86-64.so.2 (0x0)"), Some("/lib64/ld-linux-x86-64.so.2"));
    }
}
