//! The owner of a file lock, for messages.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;

use nix::sys::stat::{major, minor};

/// Returns the process that has a file locked with flock(2), as numbered in this process's /proc.
/// Returns `None` if it is not visible there, such as a process of another container.
///
/// The kernel is the source, because the BPF file system can't hold regular files. A stored number
/// might belong to another process by now.
pub fn of_file(file: &File) -> Option<u32> {
    let metadata = file.metadata().ok()?;
    let (device, inode) = (metadata.dev(), metadata.ino());
    let place = format!("{:02x}:{:02x}:{inode}", major(device), minor(device));
    find(&fs::read_to_string("/proc/locks").ok()?, &place)
}

/// Finds the process in lines such as `1: FLOCK  ADVISORY  WRITE 714 00:1b:2 0 EOF`. A waiting
/// process has an arrow before the kind.
fn find(locks: &str, place: &str) -> Option<u32> {
    locks.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        (words.next()? == "FLOCK").then_some(())?;
        let process = words.nth(2)?;
        (words.next()? == place).then(|| process.parse().ok()).flatten().filter(|process| *process != 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_is_found_by_the_file_it_has_locked() {
        let locks = "1: POSIX  ADVISORY  WRITE 700 00:1b:2 0 EOF\n2: -> FLOCK  ADVISORY  WRITE 701 00:1b:2 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 714 00:1b:2 0 EOF\n4: FLOCK  ADVISORY  WRITE 715 00:1b:3 0 EOF\n";
        assert_eq!(find(locks, "00:1b:2"), Some(714));
        assert_eq!(find(locks, "00:1b:3"), Some(715));
        assert_eq!(find(locks, "00:1b:4"), None);
    }
}
