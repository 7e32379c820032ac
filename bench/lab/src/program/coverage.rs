//! The probes of an object that was built by `cargo xtask coverage`: which of them a run has passed.

use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::sync::Mutex;

use aya::Ebpf;
use aya::maps::Map;

use crate::map_calls::{Command, Entry, call};

/// The map of the probes, one byte each.
const PROBES: &str = ".data.coverage";
/// The passed probes of all beds of this process.
static PASSED: Mutex<Vec<u8>> = Mutex::new(Vec::new());

/// Returns the folder for the passed probes: `MILLRACE_COVERAGE`.
pub fn folder() -> Option<PathBuf> {
    std::env::var_os("MILLRACE_COVERAGE").map(PathBuf::from)
}

/// Adds the probes that a bed has passed to the file of this process. Does nothing without the variable, or with an
/// object without probes.
pub fn note(ebpf: &Ebpf) {
    let Some(folder) = folder() else { return };
    let Some(Map::Array(map)) = ebpf.map(PROBES) else { return };
    let info = map.info().expect("a map of this process");
    let mut value = vec![0_u8; info.value_size() as usize];
    let key = 0_u32;
    let mut entry = Entry {
        map: u32::try_from(map.fd().as_fd().as_raw_fd()).expect("an open descriptor"),
        key: &raw const key as u64,
        value: value.as_mut_ptr() as u64,
        ..Entry::default()
    };
    // SAFETY: the kernel reads a key of four bytes, and writes as many bytes as the map's values have. Both live
    // until the call returns.
    let read = unsafe { call(Command::Look, &mut entry) };
    read.unwrap_or_else(|error| panic!("{PROBES} can't be read: {error}"));
    let mut passed = PASSED.lock().expect("probes that are only added to");
    passed.resize(value.len(), 0);
    passed.iter_mut().zip(&value).for_each(|(all, one)| *all |= one);
    let file = folder.join(std::process::id().to_string());
    std::fs::write(&file, &*passed).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
}
