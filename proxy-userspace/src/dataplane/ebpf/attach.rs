//! The attachment of programs to devices.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tracing::{debug, info, warn};

use super::bpffs::{entries, remove_tree};
use super::clsact;
use super::error::OpenError;
use super::hooks::SocketHook;
use super::layout::Layout;
use super::link::{self, LinkKey, LinkKind, has_tcx};
use super::load::{Extra, Programs};
use super::program::Program;
use super::settings::{Settings, XdpMode};
use super::sockets;
use crate::dataplane::{SyncFailure, SyncReport};
use crate::node::{AttachTarget, Hook, Topology, device_name};

/// The existing links. Links of an earlier agent go on until the wanted ones are known.
#[derive(Debug)]
pub struct Attachments {
    directory: PathBuf,
    programs: PathBuf,
    links: BTreeSet<LinkKey>,
    /// Links of another layout and their directories. They serve until ours replace them.
    inherited: BTreeMap<LinkKey, PathBuf>,
    /// Whether TC programs have links (since kernel 6.6). Earlier they are filters of a clsact
    /// qdisc.
    has_tcx: bool,
    /// Filters that certainly run this agent's program.
    renewed: BTreeSet<LinkKey>,
    /// The last message per device.
    explained: BTreeMap<u32, String>,
}

impl Attachments {
    /// Returns the pinned links, with those below the roots of other layouts.
    pub fn open(layout: &Layout, programs: &Programs, others: &[PathBuf]) -> Result<Self, OpenError> {
        let directory = layout.links();
        let links: BTreeSet<LinkKey> = pinned(&directory)?.collect();
        let mut inherited = BTreeMap::new();
        for other in others.iter().map(|root| root.join("links")) {
            let unknown = pinned(&other)?.filter(|key| !links.contains(key));
            inherited.extend(unknown.map(|key| (key, other.clone())));
        }
        Ok(Self {
            directory,
            programs: programs.directory.clone(),
            links,
            inherited,
            has_tcx: has_tcx(),
            renewed: BTreeSet::new(),
            explained: BTreeMap::new(),
        })
    }

    /// Returns the links that the kernel can describe.
    pub fn linked(&self) -> impl Iterator<Item = LinkKey> {
        self.links.iter().copied().filter(|key| self.has_tcx || key.kind.hook() == Hook::Xdp)
    }

    /// Returns whether TC programs are filters, each with a directory that marks it.
    #[must_use]
    pub const fn has_markers(&self) -> bool {
        !self.has_tcx
    }

    /// Returns whether there are links of these programs; `mode` is the kind of XDP attachment.
    fn have(&self, extra: Extra, mode: XdpMode) -> bool {
        self.links.iter().chain(self.inherited.keys()).any(|key| extra.has(key.kind.hook(), mode))
    }

    /// Loads the extra programs of existing links.
    pub fn need(
        &self,
        programs: &mut Programs,
        settings: &Settings,
        layout: &Layout,
    ) -> Result<(), OpenError> {
        let needed = Extra::ALL.into_iter().filter(|extra| self.have(*extra, settings.xdp));
        needed.into_iter().try_for_each(|extra| programs.need(extra, settings, layout))
    }

    /// Returns the directory of the links.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the devices whose driver runs `xdp_ingress`.
    #[must_use]
    pub fn native_devices(&self) -> BTreeSet<u32> {
        let native = self.links.iter().filter(|key| key.kind == LinkKind::XdpNative);
        native.map(|key| key.device).collect()
    }

    /// Returns whether links of another layout still serve. A link without its device does not.
    #[must_use]
    pub fn has_inherited(&self) -> bool {
        let serves = |(key, from): (&LinkKey, &PathBuf)| {
            if clsact::is_marked(*key, from) {
                device_name(key.device).is_some()
            } else {
                link::program_id(*key, from).is_ok_and(|program| program.is_some())
            }
        };
        self.inherited.iter().any(serves)
    }

    /// Gives all links the programs of this agent, wanted or not. Until the wanted links are known,
    /// no link may run a program that does not know the maps' content.
    ///
    /// A link that can't get one is detached; so is one of XDP with `--xdp off`. The next sync attaches the wanted ones
    /// again.
    pub fn renew(&mut self, programs: &Programs) -> Result<(), OpenError> {
        self.programs.clone_from(&programs.directory);
        for key in self.links.clone() {
            let path = self.directory.join(key.name());
            let failed = |error| OpenError::File { path, error };
            let Some(program) = programs.of(key.kind.hook()) else {
                self.detach(key).map_err(failed)?;
                continue;
            };
            let renewed = if clsact::is_marked(key, &self.directory) {
                self.attach_filter(key, program).map(drop)
            } else {
                match link::program_id(key, &self.directory) {
                    Ok(Some(id)) if id != program.id => link::update(key, program, &self.directory),
                    result => result.map(drop),
                }
            };
            match renewed {
                Err(error) if !is_gone(&error) => {
                    warn!(link = key.name(), %error, "a link can't get another program and is made anew");
                    self.detach(key).map_err(failed)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Attaches to the devices of `topology` and detaches from all others.
    pub fn sync(&mut self, topology: &Topology, programs: &Programs, mode: XdpMode) -> SyncReport {
        let mut report = SyncReport::default();
        let wanted: BTreeSet<LinkKey> =
            topology.devices.iter().flat_map(|(device, target)| wanted(*device, target, mode)).collect();
        let attached = self.links.iter().chain(self.inherited.keys());
        let surplus: Vec<LinkKey> = attached.filter(|key| !wanted.contains(key)).copied().collect();
        for key in surplus {
            match self.detach(key) {
                Ok(()) => report.writes += 1,
                Err(error) => {
                    report.failures.push(SyncFailure::Device(format!("detaching {}: {error}", key.name())));
                }
            }
        }
        self.explained.retain(|device, _| topology.devices.contains_key(device));
        // Egress first: a reply must meet it once requests come in.
        for key in wanted.into_iter().rev() {
            let program = programs.of(key.kind.hook()).ok_or(io::ErrorKind::NotFound.into());
            match program.and_then(|program| self.attach(key, program)) {
                Ok(writes) => report.writes += writes,
                Err(error) => {
                    let name = topology.devices.get(&key.device).map_or("?", |target| &target.name);
                    report.failures.extend(self.explain(key, name, mode, &error).map(SyncFailure::Device));
                }
            }
        }
        if !report.failures.is_empty() {
            report.failures.extend(self.unserved(topology).map(SyncFailure::Node));
        }
        report
    }

    /// Detaches everything pinned or marked in a directory, by any agent, and adds it to `removed`.
    /// A failure does not stop the rest: the first error comes at the end.
    pub fn remove_all(directory: &Path, removed: &mut Vec<PathBuf>) -> Result<(), OpenError> {
        remove_but(&BTreeSet::new(), directory, removed)
    }

    /// Removes another layout that no longer serves. A link that is also ours, as a killed agent
    /// can leave it, only loses its pin there: the attached program is ours.
    pub fn discard(&mut self, root: &Path) -> Result<(), OpenError> {
        let directory = root.join("links");
        let detached = remove_but(&self.links, &directory, &mut Vec::new());
        self.inherited.retain(|_, from| *from != directory);
        detached.and(remove_tree(root, &mut Vec::new()))
    }

    /// Attaches a program and returns the number of changes.
    fn attach(&mut self, key: LinkKey, program: &Program) -> io::Result<usize> {
        if let Some(from) = self.inherited.get(&key).cloned() {
            return self.inherit(key, program, &from);
        }
        if !self.has_tcx && key.kind.hook() != Hook::Xdp {
            return self.attach_filter(key, program);
        }
        if self.links.contains(&key) {
            match link::program_id(key, &self.directory) {
                Ok(Some(id)) if id == program.id => return Ok(0),
                Ok(Some(_)) => return link::update(key, program, &self.directory).map(|()| 1),
                // Another device has the index of a removed one.
                Ok(None) => self.detach(key)?,
                // Another process removed the pin.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    self.links.remove(&key);
                }
                Err(error) => return Err(error),
            }
        }
        link::create(key, program, &self.directory)?;
        self.links.insert(key);
        debug!(link = key.name(), "attached a program");
        Ok(1)
    }

    /// Replaces a filter in one step. The kernel can't tell cheaply which program it runs, or
    /// whether it exists.
    fn attach_filter(&mut self, key: LinkKey, program: &Program) -> io::Result<usize> {
        let is_new = clsact::attach(key, &self.programs.join(program.name), &self.directory)?;
        let is_renewed = self.renewed.insert(key);
        self.links.insert(key);
        Ok(usize::from(is_new || is_renewed))
    }

    /// Replaces the program of another layout. A link that refuses the program is removed, and ours
    /// comes after it.
    fn inherit(&mut self, key: LinkKey, program: &Program, from: &Path) -> io::Result<usize> {
        if clsact::is_marked(key, from) {
            clsact::attach(key, &self.programs.join(program.name), &self.directory)?;
            fs::remove_dir(from.join(key.name()))?;
        } else {
            match link::take_over(key, program, from, &self.directory) {
                Ok(true) => {}
                Ok(false) => {
                    self.inherited.remove(&key);
                    return self.attach(key, program);
                }
                Err(error) => {
                    warn!(link = key.name(), %error, "replacing a link's program failed; the link is created again");
                    self.detach(key)?;
                    return self.attach(key, program);
                }
            }
        }
        self.inherited.remove(&key);
        self.links.insert(key);
        debug!(link = key.name(), "took over a link");
        Ok(1)
    }

    fn detach(&mut self, key: LinkKey) -> io::Result<()> {
        let directory = self.inherited.get(&key).unwrap_or(&self.directory);
        if clsact::is_marked(key, directory) {
            clsact::detach(key, directory)?;
        } else {
            link::remove(key, directory)?;
        }
        if self.inherited.remove(&key).is_some() {
            return Ok(());
        }
        self.links.remove(&key);
        self.renewed.remove(&key);
        debug!(link = key.name(), "detached a program");
        Ok(())
    }

    /// Returns the fault of a node without an uplink that has programs on both ingress and egress.
    fn unserved(&self, topology: &Topology) -> Option<String> {
        let has = |device: u32, hooks: &[Hook]| {
            self.links.iter().any(|key| key.device == device && hooks.contains(&key.kind.hook()))
        };
        let is_served =
            |device: u32| has(device, &Hook::INGRESS) && has(device, &[Hook::TcEgress, Hook::TcEgressL3]);
        let is_uplink = |(_, target): &(&u32, &AttachTarget)| target.is_of_network();
        let uplinks = || topology.devices.iter().filter(is_uplink);
        if uplinks().next().is_none() || uplinks().any(|(device, _)| is_served(*device)) {
            return None;
        }
        let names: Vec<&str> = uplinks().map(|(_, target)| target.name.as_str()).collect();
        Some(format!(
            "no Service is served: the programs can't be attached to any uplink ({})",
            names.join(", ")
        ))
    }

    /// Logs once per device the reason for missing XDP; `tc_ingress` serves the device. Returns the
    /// text if it counts as a failure.
    fn explain(&mut self, key: LinkKey, device: &str, mode: XdpMode, error: &io::Error) -> Option<String> {
        if is_gone(error) {
            // The device is gone; a new topology without it will follow.
            return None;
        }
        if key.kind.hook() != Hook::Xdp {
            return Some(format!("{} on {device}: {error}", key.kind.name()));
        }
        let why = match error.raw_os_error() {
            Some(libc::EBUSY | libc::EEXIST) => "another XDP program is attached".to_owned(),
            Some(libc::EOPNOTSUPP) => format!("the driver has no XDP ({error})"),
            _ => error.to_string(),
        };
        let text = format!("no XDP on {device}: {why}; tc_ingress serves it");
        if mode != XdpMode::Auto {
            return Some(text);
        }
        if self.explained.insert(key.device, text.clone()).as_ref() != Some(&text) {
            if error.raw_os_error() == Some(libc::EOPNOTSUPP) {
                info!(device, reason = why, "no XDP on a device; tc_ingress serves it");
            } else {
                warn!(device, reason = why, "no XDP on a device; tc_ingress serves it");
            }
        }
        None
    }
}

fn remove_but(
    kept: &BTreeSet<LinkKey>,
    directory: &Path,
    removed: &mut Vec<PathBuf>,
) -> Result<(), OpenError> {
    let mut result = Ok(());
    for path in entries(directory)? {
        if SocketHook::of_pin(&path).is_some() {
            match sockets::detach(&path) {
                Ok(_) => removed.push(path),
                Err(error) => result = result.and(Err(OpenError::File { path, error })),
            }
            continue;
        }
        let key = path.file_name().and_then(|name| LinkKey::parse(name.to_str()?));
        let Some(key) = key.filter(|key| !kept.contains(key)) else { continue };
        let detach = if path.is_dir() { clsact::detach } else { link::remove };
        match detach(key, directory) {
            Ok(()) => removed.push(path),
            Err(error) => result = result.and(Err(OpenError::File { path, error })),
        }
    }
    result
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENXIO))
}

fn pinned(directory: &Path) -> Result<impl Iterator<Item = LinkKey>, OpenError> {
    let parse = |path: PathBuf| LinkKey::parse(path.file_name()?.to_str()?);
    Ok(entries(directory)?.into_iter().filter_map(parse))
}

fn wanted(device: u32, target: &AttachTarget, mode: XdpMode) -> impl Iterator<Item = LinkKey> {
    target.hooks.iter().filter_map(move |hook| {
        let kind = match (hook, mode) {
            (Hook::Xdp, XdpMode::Auto | XdpMode::Native) => LinkKind::XdpNative,
            (Hook::Xdp, XdpMode::Generic) => LinkKind::XdpGeneric,
            (Hook::Xdp, XdpMode::Off) => return None,
            (Hook::TcIngress, _) => LinkKind::TcIngress,
            (Hook::TcEgress, _) => LinkKind::TcEgress,
            (Hook::TcPodIn, _) => LinkKind::TcPodIn,
            (Hook::TcPodOut, _) => LinkKind::TcPodOut,
            (Hook::TcIngressL3, _) => LinkKind::TcIngressL3,
            (Hook::TcEgressL3, _) => LinkKind::TcEgressL3,
        };
        Some(LinkKey { kind, device })
    })
}
