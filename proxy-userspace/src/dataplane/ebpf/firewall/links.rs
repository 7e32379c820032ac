//! The attachment of the firewall's programs to the devices of pods.
//!
//! On the way from a pod they come behind the translation of addresses, and on the way to it before the restoring. The
//! proxy's own programs keep to the other end of each list.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use tracing::debug;

use super::super::bpffs::entries;
use super::super::clsact::Filter;
use super::super::error::OpenError;
use super::super::link::{BPF_F_AFTER, BPF_F_BEFORE, has_tcx};
use super::super::program::Program;
use super::super::sys::{self, AttachType};
use super::programs::Programs;
use super::side::Side;
use crate::node::device_name;

/// A program on a device.
type Key = (Side, u32);

/// Priorities of filters: behind and before the proxy's 0x4d4c.
const BEHIND: u16 = 0x4d4d;
const BEFORE: u16 = 0x4d4b;

impl Side {
    const fn attach(self) -> (AttachType, u32) {
        match self {
            Self::From => (AttachType::TcxIngress, BPF_F_AFTER),
            Self::To => (AttachType::TcxEgress, BPF_F_BEFORE),
        }
    }

    fn filter(self, device: u32, marker: PathBuf) -> Filter {
        let (is_ingress, priority) = match self {
            Self::From => (true, BEHIND),
            Self::To => (false, BEFORE),
        };
        Filter { device, is_ingress, priority, marker }
    }
}

/// The pinned links, or the marked filters on kernels before 6.6.
#[derive(Debug)]
pub struct Links {
    directory: PathBuf,
    has_tcx: bool,
}

impl Links {
    /// Returns the links in a directory.
    #[must_use]
    pub fn new(directory: PathBuf) -> Self {
        Self { directory, has_tcx: has_tcx() }
    }

    /// Attaches to these devices, and detaches from devices that are gone, and from those in `aside`. Returns the
    /// failures, by device.
    ///
    /// A device that is missing here for another reason, such as a look that failed, keeps its programs: it would be
    /// open without them.
    pub fn sync(
        &self,
        devices: &BTreeSet<u32>,
        aside: &BTreeSet<u32>,
        programs: &Programs,
    ) -> Result<Vec<(u32, io::Error)>, OpenError> {
        let mut failures = Vec::new();
        for key in found(&self.directory)? {
            let is_over =
                !devices.contains(&key.1) && (aside.contains(&key.1) || device_name(key.1).is_none());
            if is_over && let Err(error) = self.detach(key) {
                failures.push((key.1, error));
            }
        }
        failures.extend(self.attach_all(devices, programs));
        Ok(failures)
    }

    /// Attaches to these devices. Returns the failures, by device.
    pub fn attach_all(&self, devices: &BTreeSet<u32>, programs: &Programs) -> Vec<(u32, io::Error)> {
        let mut failures = Vec::new();
        for device in devices {
            for (side, program) in &programs.loaded {
                match self.attach((*side, *device), program, &programs.directory) {
                    // The device is gone, and the next topology is without it.
                    Err(error) if matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENXIO)) => {}
                    Err(error) => failures.push((*device, error)),
                    Ok(()) => {}
                }
            }
        }
        failures
    }

    /// Detaches everything.
    pub fn remove_all(directory: &Path) -> Result<usize, OpenError> {
        let links = Self::new(directory.to_owned());
        let all = found(directory)?;
        for key in &all {
            let path = directory.join(name(*key));
            links.detach(*key).map_err(|error| OpenError::File { path, error })?;
        }
        Ok(all.len())
    }

    fn attach(&self, key: Key, program: &Program, programs: &Path) -> io::Result<()> {
        let path = self.directory.join(name(key));
        if !self.has_tcx {
            // The kernel can't tell cheaply which program a filter runs, or whether it exists.
            return key.0.filter(key.1, path).attach(&programs.join(program.name)).map(drop);
        }
        match sys::obj_get(&path) {
            Ok(link) => {
                let info = sys::link_info(link.as_fd())?;
                if info.device == key.1 && info.program_id == program.id {
                    return Ok(());
                }
                if info.device == key.1 {
                    return sys::link_update(link.as_fd(), program.as_fd());
                }
                // Another device has the index of a removed one.
                std::fs::remove_file(&path)?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let (attach, flags) = key.0.attach();
        let link = sys::link_create(program.as_fd(), key.1, attach, flags)?;
        sys::obj_pin(link.as_fd(), &path)?;
        debug!(link = name(key), "attached a program of the firewall");
        Ok(())
    }

    fn detach(&self, key: Key) -> io::Result<()> {
        let path = self.directory.join(name(key));
        if path.is_dir() {
            return key.0.filter(key.1, path).detach();
        }
        let link = match sys::obj_get(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            link => link?,
        };
        if sys::link_info(link.as_fd())?.device != 0 {
            sys::link_detach(link.as_fd())?;
        }
        std::fs::remove_file(path)?;
        debug!(link = name(key), "detached a program of the firewall");
        Ok(())
    }
}

/// Returns the programs that are attached. A link whose device is gone is left out.
pub(super) fn attached(directory: &Path) -> Result<Vec<(Side, u32)>, OpenError> {
    let mut attached = Vec::new();
    for key in found(directory)? {
        let path = directory.join(name(key));
        let device = || sys::link_info(sys::obj_get(&path)?.as_fd()).map(|info| info.device);
        let is_attached = match device() {
            // A marker of a filter.
            _ if path.is_dir() => true,
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(OpenError::File { path, error }),
            Ok(device) => device == key.1,
        };
        attached.extend(is_attached.then_some(key));
    }
    Ok(attached)
}

fn name((side, device): Key) -> String {
    format!("{}-{device}", side.program())
}

fn found(directory: &Path) -> Result<Vec<Key>, OpenError> {
    let parse = |path: PathBuf| {
        let (program, device) = path.file_name()?.to_str()?.rsplit_once('-')?;
        let side = Side::ALL.into_iter().find(|side| side.program() == program)?;
        Some((side, device.parse().ok()?))
    };
    Ok(entries(directory)?.into_iter().filter_map(parse).collect())
}
