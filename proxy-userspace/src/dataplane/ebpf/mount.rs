//! A BPF file system at `--bpffs-path`: the present one, or a new one over an empty directory.

use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::{major, minor};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};
use tracing::{info, warn};

use super::error::OpenError;

/// The mount and directories of a start. They are removed on drop, unless the start
/// [succeeds](Self::keep).
#[derive(Debug, Default)]
pub struct Mounted {
    mount: Option<PathBuf>,
    /// The innermost first.
    directories: Vec<PathBuf>,
}

impl Mounted {
    /// Finds a BPF file system at `path`, or mounts one. It never covers files or another file
    /// system.
    pub fn at(path: &Path) -> Result<Self, OpenError> {
        let mut made = Self::default();
        made.make_directories(path)?;
        check(path)?;
        if !is_bpffs(path)? {
            let none: Option<&str> = None;
            mount(Some("bpf"), path, Some("bpf"), MsFlags::empty(), none)
                .map_err(|error| OpenError::NoBpffs { path: path.to_owned(), error: error.into() })?;
            made.mount = Some(path.to_owned());
        }
        Ok(made)
    }

    /// Keeps everything after a successful start and logs the mount.
    pub fn keep(mut self) {
        self.directories.clear();
        let Some(mounted) = self.mount.take() else { return };
        let path = mounted.display();
        if is_contained() && !is_shared(&mounted) {
            warn!(
                %path,
                "no BPF file system was there: mounted one for this container alone; its pins, and \
                 with them all connections, end with the pod; mount the host's /sys/fs/bpf there (hostPath)"
            );
        } else {
            info!(%path, "no BPF file system was there: mounted one");
        }
    }

    fn make_directories(&mut self, path: &Path) -> Result<(), OpenError> {
        let missing: Vec<&Path> = path.ancestors().take_while(|path| !path.exists()).collect();
        for directory in missing.into_iter().rev() {
            fs::create_dir(directory).map_err(|error| refused(path, format!("can't be made ({error})")))?;
            self.directories.insert(0, directory.to_owned());
        }
        Ok(())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Lazy, because the file of the lock may still be open.
        if let Some(path) = self.mount.take()
            && let Err(error) = umount2(&path, MntFlags::MNT_DETACH)
        {
            warn!(path = %path.display(), %error, "unmounting the BPF file system failed; it stays");
        }
        // A directory with other files stays.
        self.directories.iter().for_each(|path| drop(fs::remove_dir(path)));
    }
}

/// Fails without a BPF file system at `path` if none may be mounted there.
fn check(path: &Path) -> Result<(), OpenError> {
    let metadata = fs::metadata(path).map_err(|error| refused(path, error.to_string()))?;
    if !metadata.is_dir() {
        return Err(refused(path, "is no directory".to_owned()));
    }
    if is_bpffs(path)? {
        return Ok(());
    }
    if is_file_system(path) {
        return Err(refused(path, "is a mount point of another file system".to_owned()));
    }
    let mut entries = fs::read_dir(path).map_err(|error| refused(path, error.to_string()))?;
    if entries.next().is_some() {
        return Err(refused(path, "is a directory with files in it".to_owned()));
    }
    Ok(())
}

fn refused(path: &Path, why: String) -> OpenError {
    OpenError::BpffsPath { path: path.to_owned(), why }
}

fn is_bpffs(path: &Path) -> Result<bool, OpenError> {
    let status = statfs(path).map_err(|error| refused(path, error.to_string()))?;
    Ok(status.filesystem_type() == BPF_FS_MAGIC)
}

/// Returns whether a whole file system is mounted at `path`.
///
/// A volume of a container is a mount, too, but of one directory of the host: `/sys/fs/bpf` is there on a
/// node without a BPF file system, and one may be mounted over it.
fn is_file_system(path: &Path) -> bool {
    top_mount(path).is_some_and(|line| line.split(' ').nth(3) == Some("/"))
}

/// Returns the line of mountinfo of the mount at `path`, if there is one.
fn top_mount(path: &Path) -> Option<String> {
    let path = path.canonicalize().ok()?;
    let is_it = |line: &&str| mount_point(line).is_some_and(|mounted| mounted == path);
    // The last line is the mount on top.
    mounts().lines().rfind(is_it).map(str::to_owned)
}

/// Returns the mount points of BPF file systems visible to this process.
pub fn bpf_file_systems() -> Vec<PathBuf> {
    // The type of the file system is behind the dash.
    let is_bpf = |line: &&str| line.split(" - ").nth(1).is_some_and(|rest| rest.starts_with("bpf "));
    mounts().lines().filter(is_bpf).filter_map(mount_point).collect()
}

fn mounts() -> String {
    fs::read_to_string("/proc/thread-self/mountinfo").unwrap_or_default()
}

/// Whose BPF file system is at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mount {
    /// There is none.
    Missing,
    /// The host's.
    Host,
    /// One of this container's own. Its pins end with the container.
    Private,
    /// One that this container may share with the host: the host's mounts are not visible.
    Unknown,
}

impl Mount {
    /// Returns whose BPF file system is at a path.
    #[must_use]
    pub fn of(path: &Path) -> Self {
        if !is_bpffs(path).unwrap_or(false) {
            return Self::Missing;
        }
        let device = fs::metadata(path).map(|metadata| metadata.dev()).unwrap_or_default();
        match fs::read_to_string("/proc/1/mountinfo").ok().filter(|_| sees_host()) {
            Some(mounts) if has_device(&mounts, device) => Self::Host,
            Some(_) => Self::Private,
            None if !is_contained() || is_shared(path) => Self::Host,
            None => Self::Unknown,
        }
    }
}

/// Returns whether process 1 here is the host's, with the host's mounts and files.
#[must_use]
pub fn sees_host() -> bool {
    /// `PROC_PID_INIT_INO`: the first PID namespace.
    const FIRST: u64 = 0xefff_fffc;
    fs::metadata("/proc/thread-self/ns/pid").is_ok_and(|space| space.ino() == FIRST)
}

/// Returns whether lines of mountinfo have a file system with this device number.
fn has_device(mounts: &str, device: u64) -> bool {
    let number = format!("{}:{}", major(device), minor(device));
    mounts.lines().any(|line| line.split(' ').nth(2) == Some(&number))
}

/// Returns the fifth field of a line of mountinfo. Blanks, line ends and backslashes are in octal
/// there.
fn mount_point(line: &str) -> Option<PathBuf> {
    let mut rest = line.split(' ').nth(4)?.as_bytes();
    let mut path = Vec::new();
    while let [first, others @ ..] = rest {
        rest = others;
        let escaped = others.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = escaped.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match (first, byte) {
            (b'\\', Some(byte)) => {
                path.push(byte);
                rest = others.get(3..).unwrap_or_default();
            }
            _ => path.push(*first),
        }
    }
    Some(std::ffi::OsString::from_vec(path).into())
}

/// Returns whether a mount is in a peer group, so that the host has it too: a container's volume with
/// `mountPropagation: Bidirectional`.
fn is_shared(path: &Path) -> bool {
    top_mount(path).is_some_and(|line| has_peers(&line))
}

/// Returns whether the optional fields of a line of mountinfo name a peer group.
fn has_peers(line: &str) -> bool {
    let fields = line.split(" - ").next().unwrap_or_default();
    fields.split(' ').skip(6).any(|field| field.starts_with("shared:"))
}

/// Returns whether the mounts of this process belong to a container alone, as far as it can tell.
fn is_contained() -> bool {
    let namespace = |path: &str| fs::metadata(path).map(|metadata| metadata.ino()).ok();
    let is_marked = ["/.dockerenv", "/run/.containerenv"].iter().any(|path| Path::new(path).exists());
    is_marked
        || std::env::var_os("KUBERNETES_SERVICE_HOST").is_some_and(|host| !host.as_bytes().is_empty())
        || namespace("/proc/thread-self/ns/mnt") != namespace("/proc/1/ns/mnt")
}

#[cfg(test)]
mod tests {
    use std::thread;

    use nix::sched::{CloneFlags, unshare};

    use super::*;

    /// Runs a test in a mount namespace that ends with the thread.
    fn alone(test: impl FnOnce(&Path) + Send + 'static) {
        let run = move || {
            let none: Option<&str> = None;
            unshare(CloneFlags::CLONE_NEWNS).unwrap();
            mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
            let thread = nix::unistd::gettid();
            let scratch = std::env::temp_dir().join(format!("millrace-mount-{thread}"));
            fs::create_dir(&scratch).unwrap();
            test(&scratch);
            fs::remove_dir_all(&scratch).unwrap();
        };
        thread::spawn(run).join().unwrap();
    }

    fn why(path: &Path) -> String {
        let error = Mounted::at(path).unwrap_err().to_string();
        assert!(error.starts_with(&format!("--bpffs-path {}: ", path.display())), "{error}");
        assert!(!error.contains('\n') && error.contains("takes"), "{error}");
        error
    }

    #[test]
    fn a_volume_of_an_empty_directory_gets_a_file_system() {
        alone(|scratch| {
            let (directory, volume) = (scratch.join("of the node"), scratch.join("in the container"));
            fs::create_dir_all(&directory).unwrap();
            fs::create_dir_all(&volume).unwrap();
            let none: Option<&str> = None;
            mount(Some(&directory), &volume, none, MsFlags::MS_BIND, none).unwrap();
            let mounted = Mounted::at(&volume).unwrap();
            assert!(is_bpffs(&volume).unwrap());
            drop(mounted);
            umount2(&volume, MntFlags::empty()).unwrap();
        });
    }

    #[test]
    fn nothing_is_mounted_over_files_or_another_file_system() {
        alone(|scratch| {
            let full = scratch.join("full");
            fs::create_dir_all(full.join("other")).unwrap();
            assert!(why(&full).contains("with files in it"));
            let file = scratch.join("file");
            fs::write(&file, "").unwrap();
            assert!(why(&file).contains("no directory"));
            let mounted = scratch.join("moun ted");
            fs::create_dir_all(&mounted).unwrap();
            let none: Option<&str> = None;
            mount(Some("none"), &mounted, Some("tmpfs"), MsFlags::empty(), none).unwrap();
            assert!(why(&mounted).contains("mount point"));
            umount2(&mounted, MntFlags::empty()).unwrap();
            assert!(why(Path::new("/proc")).contains("mount point"));
            assert!(why(Path::new("/proc/nowhere")).contains("can't be made"));
            assert!(Path::new("/proc/self").exists());
        });
    }

    #[test]
    fn a_start_that_fails_leaves_neither_mount_nor_directories() {
        alone(|scratch| {
            let path = scratch.join("a/b");
            let mounted = Mounted::at(&path).unwrap();
            assert!(is_bpffs(&path).unwrap() && top_mount(&path).is_some());
            drop(mounted);
            assert!(!scratch.join("a").exists());
            Mounted::at(&path).unwrap().keep();
            assert!(is_bpffs(&path).unwrap());
            // The file system is there now: nothing is mounted, and nothing is undone.
            drop(Mounted::at(&path).unwrap());
            drop(Mounted::at(&path.join("below")).unwrap());
            assert!(is_bpffs(&path).unwrap() && !path.join("below").exists());
            umount2(&path, MntFlags::empty()).unwrap();
        });
    }

    #[test]
    fn a_mount_in_a_peer_group_reaches_the_host() {
        assert!(has_peers("36 29 0:31 / /sys/fs/bpf rw,relatime shared:5 - bpf bpf rw"));
        assert!(!has_peers("36 29 0:31 / /sys/fs/bpf rw,relatime master:5 - bpf bpf rw"));
        assert!(!has_peers("36 29 0:31 / /sys/fs/bpf rw,relatime - bpf shared:5 rw"));
        alone(|scratch| {
            let path = scratch.join("volume");
            Mounted::at(&path).unwrap().keep();
            assert!(!is_shared(&path));
            let none: Option<&str> = None;
            mount(none, &path, none, MsFlags::MS_SHARED, none).unwrap();
            assert!(is_shared(&path));
            umount2(&path, MntFlags::empty()).unwrap();
        });
    }

    #[test]
    fn a_file_system_of_this_process_alone_is_not_the_hosts() {
        let line = "36 29 0:31 / /sys/fs/bpf rw,relatime shared:5 - bpf bpf rw";
        assert!(has_device(line, nix::sys::stat::makedev(0, 31)));
        assert!(!has_device(line, nix::sys::stat::makedev(0, 3)));
        alone(|scratch| {
            let path = scratch.join("own");
            assert_eq!(Mount::of(&path), Mount::Missing);
            Mounted::at(&path).unwrap().keep();
            assert_eq!(Mount::of(&path), if sees_host() { Mount::Private } else { Mount::Unknown });
            umount2(&path, MntFlags::empty()).unwrap();
        });
    }

    #[test]
    fn a_mount_point_is_read_with_its_blanks() {
        let line = r"36 35 98:0 /m1 /mnt\040a\134b rw shared:1 - ext4 /dev/root rw";
        assert_eq!(mount_point(line).unwrap(), Path::new(r"/mnt a\b"));
        assert_eq!(mount_point("36 35"), None);
    }
}
