//! The kernel modules of the machine. Tests run one at a time, so no other test needs a removed module.

use std::ffi::CStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;

use anyhow::{Context, Result};

/// The directory of a test machine with its modules. The names sort in the order of insertion.
const DIRECTORY: &str = "/modules";

/// Linux's `MODULE_INIT_COMPRESSED_FILE`.
const COMPRESSED: libc::c_int = 4;

/// Removes a module from the kernel.
pub fn remove(name: &CStr) -> Result<()> {
    // SAFETY: the name ends with a zero, and the call keeps nothing of it.
    let done = unsafe { libc::syscall(libc::SYS_delete_module, name.as_ptr(), libc::O_NONBLOCK) };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error()).with_context(|| format!("removing module {name:?} failed"))
    }
}

/// Inserts all missing modules.
pub fn insert_all() -> Result<()> {
    let mut paths: Vec<_> = fs::read_dir(DIRECTORY)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    paths.sort();
    for path in paths {
        let file = File::open(&path)?;
        let flags = if path.extension().is_some_and(|ending| ending == "xz") { COMPRESSED } else { 0 };
        // SAFETY: the file is open and the parameters are an empty string.
        let done = unsafe { libc::syscall(libc::SYS_finit_module, file.as_raw_fd(), c"".as_ptr(), flags) };
        let error = io::Error::last_os_error();
        if done != 0 && error.raw_os_error() != Some(libc::EEXIST) {
            return Err(error).with_context(|| format!("inserting module {} failed", path.display()));
        }
    }
    Ok(())
}
