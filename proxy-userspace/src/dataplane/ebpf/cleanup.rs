//! The removal of everything of ours from the kernel.

use std::path::Path;

use super::attach::Attachments;
use super::bpffs;
use super::capability;
use super::error::OpenError;
use super::firewall;
use super::layout::Layout;

/// The result of [`cleanup`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cleaned {
    /// Removed links, programs and maps, as paths below the BPF file system.
    pub removed: Vec<String>,
}

/// Fails while an agent runs, as [`cleanup`] does.
pub fn check_unused(bpffs_path: &Path) -> Result<(), OpenError> {
    capability::check()?;
    let top = Layout::new(bpffs_path).top();
    if top.exists() { bpffs::lock(&top).map(drop) } else { Ok(()) }
}

/// Removes everything of ours from the kernel, of every layout version: links (which detaches the
/// programs), programs, maps and their directory. Fails while an agent runs.
pub fn cleanup(bpffs_path: &Path) -> Result<Cleaned, OpenError> {
    // Without rights, existing pins may look absent.
    capability::check()?;
    let layout = Layout::new(bpffs_path);
    let mut removed = Vec::new();
    let _lock = if layout.top().exists() { Some(bpffs::lock(&layout.top())?) } else { None };
    for root in bpffs::entries(&layout.top())? {
        let detached = Attachments::remove_all(&root.join("links"), &mut removed);
        for part in ["maps", "programs"] {
            bpffs::remove_tree(&root.join(part), &mut removed)?;
        }
        // The pins of failed detachments stay.
        detached?;
        bpffs::remove_tree(&root, &mut removed)?;
    }
    bpffs::remove_tree(&layout.top(), &mut removed)?;
    removed.extend(firewall::remove(bpffs_path)?);
    // They may be there without any pin.
    firewall::open_new_devices()?;
    if !removed.is_empty() {
        // The agent created the directory if it is empty now. The removal fails for a mount point
        // and for a directory with other pins.
        let _ = std::fs::remove_dir(bpffs_path);
    }
    let relative = removed.iter().map(|path| path.strip_prefix(bpffs_path).unwrap_or(path));
    Ok(Cleaned { removed: relative.map(|path| path.display().to_string()).collect() })
}
