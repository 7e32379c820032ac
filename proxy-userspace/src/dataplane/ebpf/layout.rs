//! Where maps, programs and links are pinned.

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
    /// The directories below `bpffs`.
    #[must_use]
    pub fn new(bpffs: &Path) -> Self {
        Self { bpffs: bpffs.to_owned() }
    }

    /// The BPF file system, or a directory in it.
    #[must_use]
    pub fn bpffs(&self) -> &Path {
        &self.bpffs
    }

    /// Everything of ours, of all versions.
    #[must_use]
    pub fn top(&self) -> PathBuf {
        self.bpffs.join("millrace")
    }

    /// Everything of this version of the map layout.
    #[must_use]
    pub fn root(&self) -> PathBuf {
        self.root_of(LAYOUT_VERSION)
    }

    /// Everything of a version of the map layout.
    #[must_use]
    pub fn root_of(&self, version: u32) -> PathBuf {
        self.top().join(format!("v{version}"))
    }

    /// Which of the host's settings were changed: nothing of a version's.
    #[must_use]
    pub fn notes(&self) -> PathBuf {
        self.bpffs.join("millrace-notes")
    }

    /// The maps, by name.
    #[must_use]
    pub fn maps(&self) -> PathBuf {
        self.root().join("maps")
    }

    /// The links, named as [`LinkKey::name`](super::link::LinkKey::name) says.
    #[must_use]
    pub fn links(&self) -> PathBuf {
        self.root().join("links")
    }

    /// A directory named after the network namespace that the links' devices belong to.
    #[must_use]
    pub fn namespaces(&self) -> PathBuf {
        self.root().join(NAMESPACES)
    }

    /// The programs: a directory for each build and configuration, in it the programs by name.
    #[must_use]
    pub fn programs(&self) -> PathBuf {
        self.root().join("programs")
    }
}
