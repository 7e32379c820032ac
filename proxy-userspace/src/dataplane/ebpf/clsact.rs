//! TC programs on kernels before 6.6: filters of a clsact qdisc. They outlive the agent without a pin, so an
//! empty directory beside the links remembers each.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use aya::programs::tc::{NlOptions, SchedClassifierLink, TcAttachOptions, TcHandle, qdisc_add_clsact};
use aya::programs::{Link, SchedClassifier, TcAttachType};
use nix::net::if_::if_indextoname;

use super::link::{LinkKey, LinkKind};

/// Ours among a device's filters.
const PRIORITY: u16 = 0x4d4c;
const HANDLE: TcHandle = TcHandle::new(0, 1);

/// Attaches a pinned program, in place of ours if there is one.
pub fn attach(key: LinkKey, program: &Path, directory: &Path) -> io::Result<()> {
    let (device, direction) = place(key)?;
    let mut program = SchedClassifier::from_pin(program).map_err(io::Error::other)?;
    // Fails if there is one already; if it fails otherwise, attaching will say why.
    let _ = qdisc_add_clsact(&device);
    let is_marked = is_marked(key, directory);
    let replaced = if is_marked {
        let ours = SchedClassifierLink::attached(&device, direction, PRIORITY, HANDLE, None)?;
        program.attach_to_link(ours).ok()
    } else {
        None
    };
    let link = if let Some(link) = replaced {
        link
    } else {
        let options = NlOptions { priority: PRIORITY, handle: HANDLE, classid: None };
        program
            .attach_with_options(&device, direction, TcAttachOptions::Netlink(options))
            .map_err(io::Error::other)?
    };
    // Dropped, it would detach.
    std::mem::forget(program.take_link(link).map_err(io::Error::other)?);
    if !is_marked {
        fs::create_dir(marker(key, directory))?;
    }
    Ok(())
}

/// Detaches our program. A device that is gone has taken it along.
pub fn detach(key: LinkKey, directory: &Path) -> io::Result<()> {
    if let Ok((device, direction)) = place(key) {
        let ours = SchedClassifierLink::attached(&device, direction, PRIORITY, HANDLE, None)?;
        ours.detach().map_err(io::Error::other)?;
    }
    fs::remove_dir(marker(key, directory))
}

/// Whether our program is attached as a filter.
#[must_use]
pub fn is_marked(key: LinkKey, directory: &Path) -> bool {
    marker(key, directory).is_dir()
}

fn marker(key: LinkKey, directory: &Path) -> PathBuf {
    directory.join(key.name())
}

fn place(key: LinkKey) -> io::Result<(String, TcAttachType)> {
    let device = if_indextoname(key.device)?.into_string().map_err(io::Error::other)?;
    let direction = match key.kind {
        LinkKind::TcIngress => TcAttachType::Ingress,
        LinkKind::TcEgress => TcAttachType::Egress,
        LinkKind::XdpNative | LinkKind::XdpGeneric => return Err(io::ErrorKind::InvalidInput.into()),
    };
    Ok((device, direction))
}

#[cfg(test)]
#[path = "clsact_tests.rs"]
mod tests;
