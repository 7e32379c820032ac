//! The hooks of sockets: `cg_*`, attached to a control group by pinned links.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use tracing::{debug, info, warn};

use super::cgroup::{self, Cgroup};
use super::hooks::SocketHook;
use super::load::Programs;
use super::settings::{SocketLb, Sockets};
use super::sys;
use crate::dataplane::{SyncFailure, SyncReport};

/// The attached socket hooks and the wanted ones.
#[derive(Debug)]
pub struct SocketHooks {
    directory: PathBuf,
    settings: Sockets,
    /// Whether the obstacle was logged.
    told: bool,
    /// Whether all wanted hooks were attached.
    attached: bool,
}

impl SocketHooks {
    /// Returns the hooks whose links are pinned in a directory.
    #[must_use]
    pub const fn new(directory: PathBuf, settings: Sockets) -> Self {
        Self { directory, settings, told: false, attached: false }
    }

    /// Attaches the wanted hooks and detaches the others.
    pub fn sync(&mut self, programs: &Programs) -> SyncReport {
        let mut report = SyncReport::default();
        let cgroup = self.open();
        for hook in SocketHook::ALL {
            let path = self.directory.join(hook.name);
            let done = match &cgroup {
                Some(Err(error)) => Err(io::Error::new(error.kind(), error.to_string())),
                Some(Ok(cgroup)) if self.settings.wants(hook.kind) => attach(hook, &path, cgroup, programs),
                _ => detach(&path),
            };
            match done {
                Ok(writes) => report.writes += writes,
                Err(error) => {
                    let place = self.settings.cgroup.as_deref().unwrap_or(Path::new("")).display();
                    let text = format!("{} on {place}: {error}", hook.name);
                    report.failures.push(SyncFailure::Device(text));
                }
            }
        }
        self.attached = matches!(cgroup, Some(Ok(_))) && report.failures.is_empty();
        report
    }

    /// Returns the fault of the first wanted link that is missing or wrong.
    pub fn fault(&self, programs: &Programs) -> Option<String> {
        // The lack of a control group was logged before.
        self.attached.then_some(())?;
        let mut wanted = SocketHook::ALL.into_iter().filter(|hook| self.settings.wants(hook.kind));
        wanted.find_map(|hook| self.fault_of(hook, programs))
    }

    fn fault_of(&self, hook: SocketHook, programs: &Programs) -> Option<String> {
        let name = hook.name;
        let info =
            sys::obj_get(&self.directory.join(name)).and_then(|link| sys::cgroup_link_info(link.as_fd()));
        match info {
            Ok(info) if info.cgroup == 0 => Some(format!("{name} is detached")),
            Ok(info) if Some(info.program_id) == programs.of_socket(hook).map(|program| program.id) => None,
            Ok(_) => Some(format!("{name} runs another program")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Some(format!("{name} is detached: its pin is gone"))
            }
            Err(error) => Some(format!("{name} can't be read: {error}")),
        }
    }

    /// Returns the control group if hooks are wanted; an obstacle is logged once.
    fn open(&mut self) -> Option<io::Result<Cgroup>> {
        let is_told = std::mem::replace(&mut self.told, true);
        let say = |text: &str| {
            if !is_told {
                warn!("{text}");
            }
        };
        if self.settings.lb == SocketLb::Off {
            say("--socket-lb off: processes of this node can't reach cluster IPs");
        }
        if !self.settings.is_on() {
            return None;
        }
        let Some(path) = self.settings.cgroup.as_deref() else {
            say("no cgroup2 file system is mounted, so processes of this node can't reach services; \
                 --cgroup-path says where one is");
            return None;
        };
        if !is_told && cgroup::is_below_others(path) {
            info!(path = %path.display(), "sockets of processes outside this control group are not served");
        }
        Some(Cgroup::open(path))
    }
}

/// Detaches the program of a pinned link and removes the pin; returns the number of changes.
pub fn detach(path: &Path) -> io::Result<usize> {
    let link = match sys::obj_get(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        link => link?,
    };
    if sys::cgroup_link_info(link.as_fd())?.cgroup != 0 {
        sys::link_detach(link.as_fd())?;
    }
    fs::remove_file(path)?;
    Ok(1)
}

fn attach(hook: SocketHook, path: &Path, cgroup: &Cgroup, programs: &Programs) -> io::Result<usize> {
    let program = programs.of_socket(hook).ok_or(io::ErrorKind::NotFound)?;
    match sys::obj_get(path) {
        Ok(link) => {
            let info = sys::cgroup_link_info(link.as_fd())?;
            if info.cgroup == cgroup.id {
                if info.program_id == program.id {
                    return Ok(0);
                }
                sys::link_update(link.as_fd(), program.as_fd())?;
                return Ok(1);
            }
            detach(path)?;
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let link = sys::cgroup_link_create(program.as_fd(), cgroup.directory.as_fd(), hook.attach)?;
    sys::obj_pin(link.as_fd(), path)?;
    debug!(hook = hook.name, "attached");
    Ok(1)
}
