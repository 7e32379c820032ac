//! Our pins, held open while an agent runs.
//!
//! Somebody may remove them: `rm -r /sys/fs/bpf/*`, or an unmounted file system. Without its pin, the kernel detaches a
//! link and empties an array of parts, unless a process has it open. So nothing is lost, and the agent makes the
//! pins again.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use tracing::warn;

use super::bpffs::{self, Lock, entries};
use super::error::OpenError;
use super::layout::Layout;
use super::mount::Mounted;
use super::{EbpfDataplane, sys};

/// The pins below a root, and what they lead to.
#[derive(Debug, Default)]
pub(super) struct HeldPins {
    /// Each one after its parent.
    directories: Vec<PathBuf>,
    /// Whether directories among the links mark filters.
    has_markers: bool,
    pins: Vec<(PathBuf, OwnedFd)>,
}

impl HeldPins {
    /// Opens all pins of this layout, and holds the notes beside them. `has_markers` is whether directories among
    /// the links mark filters.
    pub fn of(layout: &Layout, has_markers: bool) -> Result<Self, OpenError> {
        let mut held = Self { has_markers, ..Self::default() };
        held.add(&layout.root())?;
        if layout.notes().exists() {
            held.add(&layout.notes())?;
        }
        Ok(held)
    }

    fn add(&mut self, directory: &Path) -> Result<(), OpenError> {
        self.directories.push(directory.to_owned());
        for path in entries(directory)? {
            if path.is_dir() {
                // If it marks no filter, a directory among the links is not ours.
                if self.has_markers || !directory.ends_with("links") {
                    self.add(&path)?;
                }
            } else {
                let object = sys::obj_get(&path);
                let object = object.map_err(|error| OpenError::File { path: path.clone(), error })?;
                self.pins.push((path, object));
            }
        }
        Ok(())
    }

    /// Whether no directory and no pin was removed.
    pub fn are_complete(&self) -> bool {
        let pins = self.pins.iter().map(|(path, _)| path);
        self.directories.iter().chain(pins).all(|path| path.exists())
    }

    /// Makes what was removed again, and returns the number of pins. Mounts a BPF file system if there is none any
    /// more. `lock` is that of our directory, which is taken again with it.
    pub fn restore(&self, layout: &Layout, lock: &mut Lock) -> Result<usize, OpenError> {
        let mounted = Mounted::at(layout.bpffs())?;
        let make = |path: &Path| {
            fs::create_dir_all(path).map_err(|error| OpenError::File { path: path.to_owned(), error })
        };
        make(&layout.top())?;
        if !lock.is_of(&layout.top()) {
            *lock = bpffs::lock(&layout.top())?;
        }
        self.directories.iter().try_for_each(|path| make(path))?;
        let mut pins = 0;
        for (path, object) in self.pins.iter().filter(|(path, _)| !path.exists()) {
            let pinned = sys::obj_pin(object.as_fd(), path);
            pinned.map_err(|error| OpenError::File { path: path.clone(), error })?;
            pins += 1;
        }
        mounted.keep();
        Ok(pins)
    }
}

impl EbpfDataplane {
    /// Holds the present pins. What this agent removed before must not be held any longer, or it would come back.
    pub(super) fn hold_pins(&mut self) {
        let layout = Layout::new(&self.settings.bpffs_path);
        // First of all, because not all of both sets may have a file descriptor.
        self.pins = HeldPins::default();
        self.pins = HeldPins::of(&layout, self.attachments.has_markers()).unwrap_or_else(|error| {
            warn!(%error, "opening the pins failed; one that another process removes takes its program along");
            HeldPins::default()
        });
    }

    /// Makes pins again that another process removed.
    pub(super) fn restore_pins(&mut self) {
        if self.pins.are_complete() {
            return;
        }
        match self.pins.restore(&Layout::new(&self.settings.bpffs_path), &mut self.lock) {
            Ok(pins) => warn!(pins, "pins were removed by another process; restored"),
            // Nothing is detached while the agent runs.
            Err(error) => {
                warn!(%error, "pins were removed by another process, and restoring them failed; tried again");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::dataplane::Dataplane;
    use crate::dataplane::ebpf::parts;
    use crate::dataplane::ebpf::scratch::{Scratch, in_namespace, loopback};
    use crate::node::Topology;

    /// Returns all pins, with the ids of programs.
    fn pins(scratch: &Scratch) -> BTreeMap<PathBuf, Option<u32>> {
        let held = HeldPins::of(&Layout::new(&scratch.path), false).unwrap();
        let id = |object: &OwnedFd| sys::program_id(object.as_fd()).ok();
        held.pins.iter().map(|(path, object)| (path.clone(), id(object))).collect()
    }

    #[test]
    fn pins_that_somebody_removed_are_made_again_and_nothing_was_detached() {
        in_namespace(|| {
            let scratch = Scratch::new("held-pins");
            let mut dataplane = scratch.open();
            assert!(dataplane.set_topology(&loopback()).is_complete());
            let before = pins(&scratch);
            assert!(before.keys().any(|pin| pin.ends_with("links/tc_ingress-1")), "{before:?}");

            let note = Layout::new(&scratch.path).notes().join("a-note");
            fs::create_dir_all(&note).unwrap();
            assert!(dataplane.set_topology(&loopback()).is_complete());
            for entry in fs::read_dir(&scratch.path).unwrap() {
                fs::remove_dir_all(entry.unwrap().path()).unwrap();
            }
            assert_eq!(dataplane.check().fault, None);
            assert!(note.exists());
            assert_eq!(pins(&scratch), before);
            assert_eq!(parts::check(&dataplane.programs.directory, "tc_ingress"), Ok(()));
            let second = EbpfDataplane::open(scratch.settings()).unwrap_err();
            assert!(matches!(second, OpenError::InUse { .. }), "{second}");

            // The next agent takes everything over.
            drop(dataplane);
            let mut next = scratch.open();
            assert!(next.set_topology(&loopback()).is_complete());
            assert_eq!(pins(&scratch), before);
            fs::remove_dir_all(note.parent().unwrap()).unwrap();
        });
    }

    #[test]
    fn nothing_is_made_again_in_a_directory_that_another_process_has_locked() {
        in_namespace(|| {
            let scratch = Scratch::new("held-pins-lock");
            let mut dataplane = scratch.open();
            assert!(dataplane.set_topology(&loopback()).is_complete());
            let layout = Layout::new(&scratch.path);
            let before = pins(&scratch);
            let restore =
                |dataplane: &mut EbpfDataplane| dataplane.pins.restore(&layout, &mut dataplane.lock);

            fs::remove_dir_all(layout.top()).unwrap();
            fs::create_dir(layout.top()).unwrap();
            let other = bpffs::lock(&layout.top()).unwrap();
            // A second try finds the directory there, and must not take that for its own.
            for _ in 0..2 {
                let error = restore(&mut dataplane).unwrap_err();
                assert!(matches!(error, OpenError::InUse { .. }), "{error}");
                assert!(pins(&scratch).is_empty());
            }
            drop(other);
            assert_eq!(restore(&mut dataplane).unwrap(), before.len());
            assert_eq!(pins(&scratch), before);
            assert!(bpffs::lock(&layout.top()).is_err());
        });
    }

    #[test]
    fn a_pin_that_the_agent_removed_itself_does_not_come_back() {
        in_namespace(|| {
            let scratch = Scratch::new("held-pins-own");
            let mut dataplane = scratch.open();
            assert!(dataplane.set_topology(&loopback()).is_complete());
            let link = dataplane.attachments.directory().join("tc_ingress-1");
            assert!(link.exists());
            assert!(dataplane.set_topology(&Topology::default()).is_complete());
            assert!(!link.exists());
            assert_eq!(dataplane.check().fault, None);
            assert!(!link.exists());
        });
    }
}
