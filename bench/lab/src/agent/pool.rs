//! Programs and maps of ended agents, for the agents of later tests.
//!
//! The kernel verifies an agent's programs for seconds. An agent takes pinned programs over if they are its own
//! build's, with its settings, and use the pinned maps. So a bed gives the pins of its agents back, the maps are
//! emptied, and a later agent with the same flags begins with them. It sees no difference to new maps.
//!
//! The first agents of a process find none and load theirs. `MILLRACE_POOL=off` makes all of them do so.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};

use super::clear::clear;
use crate::net::pool_directory;

/// The pins that are kept. Each agent has sixty programs, and Linux 6.18 locks up if a thousand are freed at once,
/// as happens when a process ends.
const MOST: usize = 8;
/// The agent's directory below `--bpffs-path`.
const ROOT: &str = "millrace";
/// The directories of a layout that a later agent takes over.
const KEPT: [&str; 2] = ["maps", "programs"];

static POOL: Mutex<Vec<Pins>> = Mutex::new(Vec::new());
static NEXT: AtomicU32 = AtomicU32::new(0);

/// The pins of one agent that has ended.
#[derive(Debug)]
struct Pins {
    flags: Vec<String>,
    directory: PathBuf,
}

fn is_on() -> bool {
    std::env::var_os("MILLRACE_POOL").is_none_or(|value| value != "off")
}

/// Moves pins of an agent with these flags into a directory for pins, if there are any.
pub(super) fn take(flags: &[String], bpffs: &Path) {
    let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    let found = pool.iter().rposition(|pins| pins.flags == flags).map(|index| pool.remove(index));
    drop(pool);
    if let Some(pins) = found {
        // Without them the agent loads its own.
        let _ = fs::rename(&pins.directory, bpffs.join(ROOT));
    }
}

/// Takes the pins of an agent with these flags, which has ended. Whatever fails, the caller removes the pins.
pub(super) fn give(flags: Vec<String>, bpffs: &Path) -> Result<()> {
    if !is_on() {
        return Ok(());
    }
    let root = bpffs.join(ROOT);
    for layout in directories(&root)? {
        for path in directories(&layout)? {
            // Links first: no program may run while its maps are emptied.
            if !path.file_name().is_some_and(|name| KEPT.map(OsStr::new).contains(&name)) {
                fs::remove_dir_all(&path).with_context(|| format!("can't remove {}", path.display()))?;
            }
        }
        for map in fs::read_dir(layout.join("maps"))? {
            clear(&map?.path())?;
        }
        ensure!(directories(&layout.join("programs"))?.len() == 1, "programs of several settings");
    }
    let place = pool_directory();
    fs::create_dir_all(&place)?;
    let directory = place.join(NEXT.fetch_add(1, Ordering::Relaxed).to_string());
    fs::rename(&root, &directory).with_context(|| format!("can't move {}", root.display()))?;
    let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    pool.push(Pins { flags, directory });
    let oldest = (pool.len() > MOST).then(|| pool.remove(0));
    drop(pool);
    oldest.map_or(Ok(()), |oldest| Ok(fs::remove_dir_all(oldest.directory)?))
}

fn directories(path: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(path).with_context(|| format!("can't read {}", path.display()))?;
    let paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    Ok(paths.into_iter().filter(|path| path.is_dir()).collect())
}
