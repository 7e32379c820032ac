//! A program of ours in the kernel.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use super::error::OpenError;
use super::sys;

/// A program in the kernel.
#[derive(Debug)]
pub struct Program {
    /// Name of the program and of its pin.
    pub name: &'static str,
    fd: OwnedFd,
    /// The kernel's id.
    pub id: u32,
}

impl Program {
    /// Opens the pin of a program.
    pub fn open(directory: &Path, name: &'static str) -> Result<Self, OpenError> {
        let path = directory.join(name);
        let failed = |error| OpenError::File { path: path.clone(), error };
        let fd = sys::obj_get(&path).map_err(failed)?;
        let id = sys::program_id(fd.as_fd()).map_err(failed)?;
        Ok(Self { name, fd, id })
    }
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
