//! The data plane to show.

use std::path::PathBuf;

use clap::Args;

use crate::config::this_node;
use crate::dataplane::ebpf::read::{PinnedMaps, ReadError};
use crate::health::{self, AgentView};

/// The data plane to show, by its BPF file system.
#[derive(Args, Clone, Debug)]
pub struct Place {
    /// BPF file system with the pinned maps, or the directory in it
    #[arg(long, value_name = "PATH", default_value = Self::DEFAULT)]
    pub bpffs_path: PathBuf,
}

impl Place {
    /// The usual path.
    pub const DEFAULT: &str = "/sys/fs/bpf";

    /// Returns the running agent, if one answers.
    pub fn agent(&self) -> Option<AgentView> {
        health::ask(&self.bpffs_path)
    }

    /// Returns the name of this node: the running agent's, or else NODE_NAME or the host's name.
    pub fn node(&self) -> String {
        self.agent().and_then(|agent| agent.node).unwrap_or_else(this_node)
    }

    /// Opens the pinned maps.
    pub fn maps(&self) -> Result<PinnedMaps, ReadError> {
        PinnedMaps::open(&self.bpffs_path)
    }
}
