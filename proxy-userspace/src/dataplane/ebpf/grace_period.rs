//! Waiting until no program uses what it has read before.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use super::sys;

/// A map in a map.
///
/// The kernel returns from an update of the outer map only when all programs that may still use the former
/// inner map have ended (Linux 5.0, `maybe_wait_bpf_programs`). So the update is a wait for all programs that
/// run now, whatever they use.
#[derive(Debug)]
pub struct GracePeriod {
    outer: OwnedFd,
    inner: OwnedFd,
}

impl GracePeriod {
    /// Makes the two maps.
    pub fn new() -> io::Result<Self> {
        let inner = sys::create_array(None)?;
        let outer = sys::create_array(Some(inner.as_fd()))?;
        Ok(Self { outer, inner })
    }

    /// Waits until every program that runs now has ended: some tens of milliseconds.
    pub fn wait(&self) -> io::Result<()> {
        sys::put_map(self.outer.as_fd(), 0, self.inner.as_fd())
    }
}
