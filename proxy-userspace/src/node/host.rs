//! The host's settings that the data path depends on. What is changed is noted beside the maps, so that `millrace cleanup` can
//! give it back.

use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use nix::sys::statfs::{BPF_FS_MAGIC, statfs};
use tracing::warn;

use super::Sysctls;
use super::ports::{Ports, Range};

const RESERVED: &str = "ipv4/ip_local_reserved_ports";
const DEVICES: &str = "ipv6/conf";
const FORWARDING: &str = "ipv6/conf/all/forwarding";

/// The settings, and what is noted of them.
#[derive(Clone, Debug, Default)]
pub struct Host {
    sysctls: Sysctls,
    notes: Notes,
}

/// Something that was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Note {
    /// These ports were reserved.
    Reserved(Range),
    /// Router advertisements are heeded on a device, which had this value of accept_ra.
    AcceptRa { device: String, former: String },
    /// Forwarding was turned on for IPv6.
    Forwarding,
    /// This device forwarded IPv6 when forwarding was turned on.
    Forwarded(String),
}

impl Host {
    /// The host of this network namespace; `notes` is a directory of the BPF file system. Where there is none, nothing is noted.
    #[must_use]
    pub fn new(notes: Option<&Path>) -> Self {
        Self {
            sysctls: Sysctls::default(),
            notes: Notes { directory: notes.map(Path::to_owned), is_home: is_bpffs },
        }
    }

    /// Turns forwarding on, and loosens the reverse-path filter where several uplinks make paths asymmetric.
    /// What is changed is said; what is right already is left alone.
    pub fn prepare(&self, uplinks: &[&str]) {
        let sysctls = &self.sysctls;
        if sysctls.read(FORWARDING).is_ok_and(|now| now == "0") {
            // What a device did before can't be read any more once all forward.
            let forwarded = self.forwarding_devices().into_iter().map(Note::Forwarded);
            let notes: Vec<Note> = forwarded.chain([Note::Forwarding]).collect();
            for note in &notes {
                self.notes.write(note);
            }
            self.heed_advertisements(uplinks, &notes);
        } else {
            self.heed_advertisements(uplinks, &self.notes.all());
        }
        sysctls.change("ipv4/ip_forward", "1", |now| now == "0");
        sysctls.change(FORWARDING, "1", |now| now == "0");
        if uplinks.len() > 1 {
            // The kernel takes the higher one of `all` and the device's.
            let is_strict = sysctls.read("ipv4/conf/all/rp_filter").is_ok_and(|all| all == "1");
            for uplink in uplinks {
                sysctls.change(&format!("ipv4/conf/{uplink}/rp_filter"), "2", |now| {
                    now == "1" || is_strict && now == "0"
                });
            }
        }
    }

    /// A node that forwards ignores router advertisements, its default route may be one: 2 = heed them. A device that forwarded
    /// before this agent turned it on did without.
    fn heed_advertisements(&self, uplinks: &[&str], notes: &[Note]) {
        if !notes.contains(&Note::Forwarding) {
            return;
        }
        let forwarded = |uplink: &str| notes.contains(&Note::Forwarded(uplink.to_owned()));
        for uplink in uplinks.iter().filter(|uplink| self.is_ignoring(uplink) && !forwarded(uplink)) {
            self.notes.write(&Note::AcceptRa { device: (*uplink).to_owned(), former: "1".to_owned() });
            self.sysctls.change(&accept_ra(uplink), "2", |now| now == "1");
        }
    }

    /// Devices that forward IPv6 and ignore router advertisements for it.
    fn forwarding_devices(&self) -> Vec<String> {
        let entries = fs::read_dir(self.sysctls.path(DEVICES)).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let forwards = |device: &String| self.sysctls.read(forwarding(device)).is_ok_and(|now| now == "1");
        names.filter(|device| forwards(device) && self.is_ignoring(device)).collect()
    }

    /// Whether it ignores router advertisements as soon as it forwards.
    fn is_ignoring(&self, device: &str) -> bool {
        self.sysctls.read(accept_ra(device)).is_ok_and(|now| now == "1")
    }

    /// Keeps ports from being given to sockets that ask for none, beside those that are kept already. Others that an agent
    /// reserved before are given back.
    pub fn reserve_ports(&self, ports: &RangeInclusive<u16>) {
        let wanted = (*ports.start(), *ports.end());
        for note in self.notes.all() {
            if let Note::Reserved(range) = note
                && !Ports::of(wanted).holds(range)
            {
                self.give_back(range);
                self.notes.remove(&note);
            }
        }
        let Ok(text) = self.sysctls.read(RESERVED) else { return };
        let missing = Ports::of(wanted).without(&Ports::parse(&text));
        for range in &missing.0 {
            self.notes.write(&Note::Reserved(*range));
        }
        let all = Ports([Ports::parse(&text).0, missing.0.clone()].concat());
        self.sysctls.change(RESERVED, &all.to_string(), |_| !missing.0.is_empty());
    }

    fn give_back(&self, range: Range) -> bool {
        let Ok(text) = self.sysctls.read(RESERVED) else { return false };
        let left = Ports::parse(&text).without(&Ports::of(range));
        // Nothing at all would not be a write.
        self.sysctls.change(RESERVED, &format!("{left}\n"), |_| left != Ports::parse(&text))
    }

    /// Gives back what is noted, and forgets it. Returns what became of each setting, in words.
    ///
    /// Forwarding stays on: pods may have come to rely on it. While it is on, router advertisements are heeded as now, or the
    /// node would lose its default route.
    #[must_use]
    pub fn restore(&self) -> Vec<String> {
        let mut done = Vec::new();
        for note in self.notes.all() {
            match &note {
                Note::Reserved((first, last)) if self.give_back((*first, *last)) => {
                    done.push(format!("net.ipv4.ip_local_reserved_ports: {first}-{last} given back"));
                }
                Note::AcceptRa { device, former } => done.extend(self.ignore_advertisements(device, former)),
                Note::Reserved(_) | Note::Forwarding | Note::Forwarded(_) => {}
            }
            self.notes.remove(&note);
        }
        if let Some(directory) = self.notes.home() {
            let _ = fs::remove_dir(directory);
        }
        done
    }

    fn ignore_advertisements(&self, device: &str, former: &str) -> Option<String> {
        let (key, name) = (accept_ra(device), format!("net.ipv6.conf.{device}.accept_ra"));
        if self.sysctls.read(&key).ok()? != "2" {
            return None;
        }
        if self.sysctls.read(forwarding(device)).is_ok_and(|now| now != "0") {
            return Some(format!("{name}: stays 2 instead of {former}, as forwarding stays on"));
        }
        self.sysctls.change(&key, former, |_| true).then(|| format!("{name}: {former} again"))
    }
}

fn accept_ra(device: &str) -> String {
    format!("ipv6/conf/{device}/accept_ra")
}

fn forwarding(device: &str) -> String {
    format!("ipv6/conf/{device}/forwarding")
}

fn is_bpffs(path: &Path) -> bool {
    statfs(path).is_ok_and(|found| found.filesystem_type() == BPF_FS_MAGIC)
}

/// A directory with an empty directory for each note: there are no files in the BPF file system.
#[derive(Clone, Debug)]
struct Notes {
    directory: Option<PathBuf>,
    /// Whether the directory may be made below this one. Asked each time: the file system goes with an agent that serves by IPVS
    /// after all.
    is_home: fn(&Path) -> bool,
}

impl Default for Notes {
    fn default() -> Self {
        Self { directory: None, is_home: is_bpffs }
    }
}

impl Notes {
    /// The directory, where it can be.
    fn home(&self) -> Option<&Path> {
        self.directory.as_deref().filter(|directory| directory.parent().is_some_and(self.is_home))
    }

    fn all(&self) -> Vec<Note> {
        let entries = self.home().and_then(|directory| fs::read_dir(directory).ok());
        let names = entries.into_iter().flatten().flatten().map(|entry| entry.file_name());
        let mut names: Vec<_> = names.filter_map(|name| name.into_string().ok()).collect();
        names.sort_unstable();
        names.iter().filter_map(|name| Note::parse(name)).collect()
    }

    fn write(&self, note: &Note) {
        let Some(directory) = self.home() else { return };
        if let Err(error) = make(directory).and_then(|()| make(&directory.join(note.name()))) {
            let path = directory.display();
            warn!(%path, "a changed setting can't be noted: {error}; `millrace cleanup` will leave it");
        }
    }

    fn remove(&self, note: &Note) {
        if let Some(directory) = self.home() {
            let _ = fs::remove_dir(directory.join(note.name()));
        }
    }
}

/// One directory, and none above it, in a file system that may have gone.
fn make(directory: &Path) -> io::Result<()> {
    match fs::create_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

impl Note {
    /// The BPF file system takes no dots. No device has a colon in its name.
    fn name(&self) -> String {
        match self {
            Self::Reserved((first, last)) => format!("reserved_ports-{first}-{last}"),
            Self::AcceptRa { device, former } => format!("accept_ra-{former}-{}", device.replace('.', ":")),
            Self::Forwarding => "forwarding6".to_owned(),
            Self::Forwarded(device) => format!("forwarded6-{}", device.replace('.', ":")),
        }
    }

    fn parse(name: &str) -> Option<Self> {
        let (kind, rest) = name.split_once('-').unwrap_or((name, ""));
        match kind {
            "reserved_ports" => {
                let (first, last) = rest.split_once('-')?;
                Some(Self::Reserved((first.parse().ok()?, last.parse().ok()?)))
            }
            "accept_ra" => {
                let (former, device) = rest.split_once('-')?;
                Some(Self::AcceptRa { device: device.replace(':', "."), former: former.to_owned() })
            }
            "forwarding6" => Some(Self::Forwarding),
            "forwarded6" => Some(Self::Forwarded(rest.replace(':', "."))),
            _ => None,
        }
    }
}

#[cfg(test)]
#[path = "host_tests.rs"]
mod tests;
