//! TC programs on kernels before 6.6: filters of a clsact qdisc.
//!
//! They outlive the agent without a pin. So an empty directory beside the links marks each filter.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use aya::programs::tc::{NlOptions, SchedClassifierLink, TcAttachOptions, TcHandle, qdisc_add_clsact};
use aya::programs::{Link, ProgramError, SchedClassifier, TcAttachType};

use super::link::{LinkKey, LinkKind};
use crate::node::device_name;

/// Priority and handle of our filter on a device.
const PRIORITY: u16 = 0x4d4c;
const HANDLE: TcHandle = TcHandle::new(0, 1);

/// A filter of ours.
#[derive(Debug)]
pub struct Filter {
    /// Index of the device.
    pub device: u32,
    /// Whether it sees incoming packets.
    pub is_ingress: bool,
    /// Filters with a lower priority see packets first.
    pub priority: u16,
    /// The directory that marks it.
    pub marker: PathBuf,
}

impl Filter {
    /// Attaches a pinned program, in place of our present filter. Returns whether there was none.
    ///
    /// The marker comes first: an agent killed in between must not leave a filter without a marker.
    pub fn attach(&self, program: &Path) -> io::Result<bool> {
        let (device, direction) = self.place()?;
        let mut program = SchedClassifier::from_pin(program).map_err(io::Error::other)?;
        // It fails if the qdisc exists. The attachment reports any other failure.
        let _ = qdisc_add_clsact(&device);
        match fs::create_dir(&self.marker) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let ours = SchedClassifierLink::attached(&device, direction, self.priority, HANDLE, None)?;
        let (link, is_new) = if let Ok(link) = program.attach_to_link(ours) {
            (link, false)
        } else {
            let options = NlOptions { priority: self.priority, handle: HANDLE, classid: None };
            let link = program.attach_with_options(&device, direction, TcAttachOptions::Netlink(options));
            (link.map_err(io_error)?, true)
        };
        // A dropped link detaches the program.
        std::mem::forget(program.take_link(link).map_err(io::Error::other)?);
        Ok(is_new)
    }

    /// Detaches our program. The filter may be gone with its device or by another process.
    pub fn detach(&self) -> io::Result<()> {
        if let Ok((device, direction)) = self.place() {
            let ours = SchedClassifierLink::attached(&device, direction, self.priority, HANDLE, None)?;
            match ours.detach().map_err(io_error) {
                // There is no such filter, or no clsact qdisc.
                Err(error) if !matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINVAL)) => {
                    return Err(error);
                }
                _ => {}
            }
        }
        match fs::remove_dir(&self.marker) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn place(&self) -> io::Result<(String, TcAttachType)> {
        let device = device_name(self.device).ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))?;
        let direction = if self.is_ingress { TcAttachType::Ingress } else { TcAttachType::Egress };
        Ok((device, direction))
    }
}

/// Attaches a pinned program as [`Filter::attach`] does.
pub fn attach(key: LinkKey, program: &Path, directory: &Path) -> io::Result<bool> {
    filter(key, directory)?.attach(program)
}

/// Detaches our program as [`Filter::detach`] does.
pub fn detach(key: LinkKey, directory: &Path) -> io::Result<()> {
    filter(key, directory)?.detach()
}

/// Returns whether our program is attached as a filter.
#[must_use]
pub fn is_marked(key: LinkKey, directory: &Path) -> bool {
    marker(key, directory).is_dir()
}

fn marker(key: LinkKey, directory: &Path) -> PathBuf {
    directory.join(key.name())
}

fn filter(key: LinkKey, directory: &Path) -> io::Result<Filter> {
    let is_ingress = match key.kind {
        LinkKind::TcIngress | LinkKind::TcIngressL3 | LinkKind::TcPodIn => true,
        LinkKind::TcEgress | LinkKind::TcEgressL3 | LinkKind::TcPodOut => false,
        LinkKind::XdpNative | LinkKind::XdpGeneric => return Err(io::ErrorKind::InvalidInput.into()),
    };
    Ok(Filter { device: key.device, is_ingress, priority: PRIORITY, marker: marker(key, directory) })
}

/// Returns the error of the system call behind aya's error, if there is one.
fn io_error(error: ProgramError) -> io::Error {
    match &error {
        ProgramError::NetlinkError(netlink) => netlink.raw_os_error().map(io::Error::from_raw_os_error),
        _ => None,
    }
    .unwrap_or_else(|| io::Error::other(error))
}

#[cfg(test)]
#[path = "clsact_tests.rs"]
mod tests;
