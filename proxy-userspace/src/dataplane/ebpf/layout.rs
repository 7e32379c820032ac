//! The paths of pinned maps, programs and links.

use std::path::{Path, PathBuf};

use proxy_common::LAYOUT_VERSION;

/// The directory of [`Layout::namespaces`], in every version of the layout.
pub const NAMESPACES: &str = "netns";

/// The directories below a BPF file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    bpffs: PathBuf,
}

impl Layout {
    /// Returns the directories below `bpffs`.
    #[must_use]
    pub fn new(bpffs: &Path) -> Self {
        Self { bpffs: bpffs.to_owned() }
    }

    /// Returns the BPF file system, or a directory in it.
    #[must_use]
    pub fn bpffs(&self) -> &Path {
        &self.bpffs
    }

    /// Returns the directory of all versions of the layout.
    #[must_use]
    pub fn top(&self) -> PathBuf {
        self.bpffs.join("millrace")
    }

    /// Returns the directory of this version of the layout.
    #[must_use]
    pub fn root(&self) -> PathBuf {
        self.root_of(LAYOUT_VERSION)
    }

    /// Returns the directory of a version of the layout.
    #[must_use]
    pub fn root_of(&self, version: u32) -> PathBuf {
        self.top().join(format!("v{version}"))
    }

    /// Returns the directory for notes on changed sysctls of the host, common to all versions.
    #[must_use]
    pub fn notes(&self) -> PathBuf {
        self.bpffs.join("millrace-notes")
    }

    /// Returns the directory of the maps, by name.
    #[must_use]
    pub fn maps(&self) -> PathBuf {
        self.root().join("maps")
    }

    /// Returns the directory of maps that others are to replace, by name. All links still use them.
    #[must_use]
    pub fn former_maps(&self) -> PathBuf {
        self.root().join("former-maps")
    }

    /// Returns the directory of the same maps while links get programs with the new ones.
    #[must_use]
    pub fn leaving_maps(&self) -> PathBuf {
        self.root().join("leaving-maps")
    }

    /// Returns the directory of the same maps once no link uses them.
    #[must_use]
    pub fn replaced_maps(&self) -> PathBuf {
        self.root().join("replaced-maps")
    }

    /// Returns the directory of the links, with names by
    /// [`LinkKey::name`](super::link::LinkKey::name).
    #[must_use]
    pub fn links(&self) -> PathBuf {
        self.root().join("links")
    }

    /// Returns the parent of a directory named after the network namespace of the links' devices.
    #[must_use]
    pub fn namespaces(&self) -> PathBuf {
        self.root().join(NAMESPACES)
    }

    /// Returns the directory of the programs: one directory for each build and configuration, with
    /// the programs by name.
    #[must_use]
    pub fn programs(&self) -> PathBuf {
        self.root().join("programs")
    }
}
