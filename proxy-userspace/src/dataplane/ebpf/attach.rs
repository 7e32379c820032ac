//! Where the programs are attached.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use aya::util::KernelVersion;
use tracing::{debug, info, warn};

use super::bpffs::{entries, remove_tree};
use super::clsact;
use super::error::OpenError;
use super::layout::Layout;
use super::link::{self, LinkKey, LinkKind};
use super::load::{Extra, Program, Programs};
use super::settings::{Settings, XdpMode};
use super::sockets::{self, SocketHook};
use crate::dataplane::{SyncFailure, SyncReport};
use crate::node::{AttachTarget, Hook, Topology, device_name};

/// The links there are. Those an earlier agent left go on until it is known what is wanted.
#[derive(Debug)]
pub struct Attachments {
    directory: PathBuf,
    programs: PathBuf,
    links: BTreeSet<LinkKey>,
    /// Links of another layout, and the directory they are pinned in. They serve until ours take their place.
    inherited: BTreeMap<LinkKey, PathBuf>,
    /// Since 6.6 TC programs have links. Before, they are filters of a clsact qdisc.
    has_tcx: bool,
    /// Filters that run this agent's program for certain.
    renewed: BTreeSet<LinkKey>,
    /// What was said of a device already.
    explained: BTreeMap<u32, String>,
}

impl Attachments {
    /// The links that are pinned, and those pinned below the roots of other layouts.
    pub fn open(layout: &Layout, programs: &Programs, others: &[PathBuf]) -> Result<Self, OpenError> {
        let directory = layout.links();
        let links: BTreeSet<LinkKey> = pinned(&directory)?.collect();
        let mut inherited = BTreeMap::new();
        for other in others.iter().map(|root| root.join("links")) {
            let unknown = pinned(&other)?.filter(|key| !links.contains(key));
            inherited.extend(unknown.map(|key| (key, other.clone())));
        }
        let has_tcx = KernelVersion::current().is_ok_and(|version| version >= KernelVersion::new(6, 6, 0));
        Ok(Self {
            directory,
            programs: programs.directory.clone(),
            links,
            inherited,
            has_tcx,
            renewed: BTreeSet::new(),
            explained: BTreeMap::new(),
        })
    }

    /// The links that are there to be asked.
    pub fn linked(&self) -> impl Iterator<Item = LinkKey> {
        self.links.iter().copied().filter(|key| self.has_tcx || key.kind.hook() == Hook::Xdp)
    }

    /// Whether there are links of these programs, where XDP is attached as `mode` says.
    fn have(&self, extra: Extra, mode: XdpMode) -> bool {
        self.links.iter().chain(self.inherited.keys()).any(|key| extra.has(key.kind.hook(), mode))
    }

    /// Loads what links are there for.
    pub fn need(
        &self,
        programs: &mut Programs,
        settings: &Settings,
        layout: &Layout,
    ) -> Result<(), OpenError> {
        let needed = Extra::ALL.into_iter().filter(|extra| self.have(*extra, settings.xdp));
        needed.into_iter().try_for_each(|extra| programs.need(extra, settings, layout))
    }

    /// Where links are pinned.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Devices whose driver runs `xdp_ingress`.
    #[must_use]
    pub fn native_devices(&self) -> BTreeSet<u32> {
        let native = self.links.iter().filter(|key| key.kind == LinkKind::XdpNative);
        native.map(|key| key.device).collect()
    }

    /// Whether links of another layout still serve. One whose device is gone does not.
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

    /// Gives all links the programs of this agent, whether they are wanted or not: until it is known what is, none may
    /// run a program that does not know what the maps say.
    pub fn renew(&mut self, programs: &Programs) -> Result<(), OpenError> {
        self.programs.clone_from(&programs.directory);
        for key in self.links.clone() {
            let Some(program) = programs.of(key.kind.hook()) else { continue };
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
                    return Err(OpenError::File { path: self.directory.join(key.name()), error });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Attaches to what `topology` names and detaches from everything else.
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
        // The way out first: replies to what comes in must find it.
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

    /// Detaches everything that is pinned or remembered in a directory, of whichever agent; names it. What can't
    /// be detached keeps the rest from nothing: the first error comes at the end.
    pub fn remove_all(directory: &Path, removed: &mut Vec<PathBuf>) -> Result<(), OpenError> {
        remove_but(&BTreeSet::new(), directory, removed)
    }

    /// Removes another layout, which serves no more. A link that is among our own, too, as a killed agent can leave it, is
    /// only unpinned: whatever is attached there is ours.
    pub fn discard(&mut self, root: &Path) -> Result<(), OpenError> {
        let directory = root.join("links");
        let detached = remove_but(&self.links, &directory, &mut Vec::new());
        self.inherited.retain(|_, from| *from != directory);
        detached.and(remove_tree(root, &mut Vec::new()))
    }

    /// Returns how many things it had to change.
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
                // Another device has got the index of one that is gone.
                Ok(None) => self.detach(key)?,
                // Somebody removed the pin.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    self.links.remove(&key);
                }
                Err(error) => return Err(error),
            }
        }
        link::create(key, program, &self.directory)?;
        self.links.insert(key);
        debug!(link = key.name(), "attached");
        Ok(1)
    }

    /// What a filter runs, and whether it is there, can't be asked cheaply: it is replaced each time, in one
    /// step.
    fn attach_filter(&mut self, key: LinkKey, program: &Program) -> io::Result<usize> {
        let is_new = clsact::attach(key, &self.programs.join(program.name), &self.directory)?;
        let is_renewed = self.renewed.insert(key);
        self.links.insert(key);
        Ok(usize::from(is_new || is_renewed))
    }

    /// Puts our program in the place of another layout's. A link that does not take it goes, and ours comes after it.
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
                    warn!(link = key.name(), "can't be given another program, and is made anew: {error}");
                    self.detach(key)?;
                    return self.attach(key, program);
                }
            }
        }
        self.inherited.remove(&key);
        self.links.insert(key);
        debug!(link = key.name(), "taken over");
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
        debug!(link = key.name(), "detached");
        Ok(())
    }

    /// What is wrong with this node if none of its uplinks has programs both for what comes in and for what goes out.
    fn unserved(&self, topology: &Topology) -> Option<String> {
        let has = |device: u32, hooks: &[Hook]| {
            self.links.iter().any(|key| key.device == device && hooks.contains(&key.kind.hook()))
        };
        let is_served =
            |device: u32| has(device, &Hook::INGRESS) && has(device, &[Hook::TcEgress, Hook::TcEgressL3]);
        let is_uplink = |(_, target): &(&u32, &AttachTarget)| target.is_uplink();
        let uplinks = || topology.devices.iter().filter(is_uplink);
        if uplinks().next().is_none() || uplinks().any(|(device, _)| is_served(*device)) {
            return None;
        }
        let names: Vec<&str> = uplinks().map(|(_, target)| target.name.as_str()).collect();
        Some(format!("nobody is served: the programs can't be attached to any uplink ({})", names.join(", ")))
    }

    /// Says once per device why XDP is not there; `tc_ingress` serves it. Returns what counts as a failure.
    fn explain(&mut self, key: LinkKey, device: &str, mode: XdpMode, error: &io::Error) -> Option<String> {
        if is_gone(error) {
            // It is gone already; the node's network will be explained anew without it.
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
            if error.raw_os_error() == Some(libc::EOPNOTSUPP) { info!("{text}") } else { warn!("{text}") }
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
