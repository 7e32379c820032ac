//! Folders of a run, removed at its end, also after a failure.

use std::fs;
use std::path::{Path, PathBuf};

/// The beginning of the names. The process id follows.
const PREFIX: &str = "millrace-fuzz-";

/// A folder.
pub struct Folder {
    /// Its path.
    pub path: PathBuf,
}

impl Folder {
    /// Makes a folder, and removes those of processes that were killed.
    pub fn new(parent: &Path, name: &str) -> Self {
        remove_stale(parent);
        let folder = Self { path: parent.join(format!("{PREFIX}{}-{name}", std::process::id())) };
        fs::create_dir_all(&folder.path).unwrap();
        folder
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn remove_stale(parent: &Path) {
    for entry in fs::read_dir(parent).unwrap().flatten() {
        let name = entry.file_name();
        let rest = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        let process = rest.and_then(|rest| rest.split('-').next());
        if process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[test]
fn a_folder_goes_with_a_failed_test_and_one_of_a_killed_run_with_the_next() {
    let parent = Folder::new(&std::env::temp_dir(), "parent");
    let killed = parent.path.join(format!("{PREFIX}{}-settings", u32::MAX));
    fs::create_dir(&killed).unwrap();
    let folder = Folder::new(&parent.path, "settings");
    let path = folder.path.clone();
    assert!(path.exists() && !killed.exists());
    let failed = std::thread::spawn(move || {
        let _folder = folder;
        std::panic::resume_unwind(Box::new("a failure"));
    });
    assert!(failed.join().is_err() && !path.exists());
}
