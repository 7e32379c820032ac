//! The directories of the firewall in a BPF file system.

use std::path::{Path, PathBuf};

use proxy_common::policy::POLICY_LAYOUT_VERSION;

/// Returns the directory of all versions of the firewall's layout.
pub fn top(bpffs: &Path) -> PathBuf {
    bpffs.join("millrace-firewall")
}

/// Returns the directory of this version of the layout.
pub fn root(bpffs: &Path) -> PathBuf {
    top(bpffs).join(format!("v{POLICY_LAYOUT_VERSION}"))
}

/// Returns the directory of the maps, by name.
pub fn maps_of(root: &Path) -> PathBuf {
    root.join("maps")
}
