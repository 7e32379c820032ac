//! Loads the object with libbpf. Other tools read the type information of its maps, too, and more
//! strictly than aya.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::test::{Outcome, Tally};
use crate::workspace::Workspace;
use crate::{command, setup};

/// Loads every program with bpftool, pins them for a moment, and removes the pins.
pub fn load_with_bpftool(workspace: &Workspace) -> Result<Outcome> {
    if !setup::is_root()? {
        return Ok(Outcome::Unable("loading BPF programs takes root".to_owned()));
    }
    let pins = PathBuf::from(format!("{}/millrace-second-opinion-{}", setup::BPFFS, std::process::id()));
    let mut bpftool = workspace.command("/usr/sbin/bpftool");
    let loaded = command::run(bpftool.args(["prog", "loadall"]).arg(workspace.linked_object()).arg(&pins));
    if pins.exists() {
        fs::remove_dir_all(&pins).with_context(|| format!("can't remove {}", pins.display()))?;
    }
    loaded.map(|()| Outcome::Ran(Tally::PASSED))
}
