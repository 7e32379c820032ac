//! The host's settings that the data path depends on. What is changed is noted beside the maps, so that `millrace cleanup` can
//! give it back.

use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use nix::sys::statfs::{BPF_FS_MAGIC, statfs};
use tracing::warn;

use super::Sysctls;
use super::ports::{Ports, Range};

const RESERVED: &str = "ipv4/ip_local_reserved_ports";
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
}

impl Host {
    /// The host of this network namespace; `notes` is a directory of the BPF file system. Where there is none, nothing is noted.
    #[must_use]
    pub fn new(notes: Option<&Path>) -> Self {
        let is_bpffs = |path: &&Path| {
            let parent = path.parent().and_then(|parent| statfs(parent).ok());
            parent.is_some_and(|found| found.filesystem_type() == BPF_FS_MAGIC)
        };
        Self { sysctls: Sysctls::default(), notes: Notes(notes.filter(is_bpffs).map(Path::to_owned)) }
    }

    /// Turns forwarding on, and loosens the reverse-path filter where several uplinks make paths asymmetric.
    /// What is changed is said; what is right already is left alone.
    pub fn prepare(&self, uplinks: &[&str]) {
        let sysctls = &self.sysctls;
        let turns_on = sysctls.read(FORWARDING).is_ok_and(|now| now == "0");
        if turns_on {
            self.notes.write(&Note::Forwarding);
        }
        if turns_on || self.notes.all().contains(&Note::Forwarding) {
            for uplink in uplinks {
                self.heed_advertisements(uplink, turns_on);
            }
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
    /// before did without.
    fn heed_advertisements(&self, uplink: &str, turns_on: bool) {
        let key = accept_ra(uplink);
        let forwarded = self.sysctls.read(forwarding(uplink)).is_ok_and(|now| now == "1");
        let is_ignoring = self.sysctls.read(&key).is_ok_and(|now| now == "1");
        if is_ignoring && !(turns_on && forwarded) {
            self.notes.write(&Note::AcceptRa { device: uplink.to_owned(), former: "1".to_owned() });
            self.sysctls.change(&key, "2", |now| now == "1");
        }
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
                Note::Reserved(_) | Note::Forwarding => {}
            }
            self.notes.remove(&note);
        }
        if let Some(directory) = &self.notes.0 {
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

/// A directory with an empty directory for each note: there are no files in the BPF file system.
#[derive(Clone, Debug, Default)]
struct Notes(Option<PathBuf>);

impl Notes {
    fn all(&self) -> Vec<Note> {
        let entries = self.0.as_ref().and_then(|directory| fs::read_dir(directory).ok());
        let names = entries.into_iter().flatten().flatten().map(|entry| entry.file_name());
        let mut names: Vec<_> = names.filter_map(|name| name.into_string().ok()).collect();
        names.sort_unstable();
        names.iter().filter_map(|name| Note::parse(name)).collect()
    }

    fn write(&self, note: &Note) {
        let Some(directory) = &self.0 else { return };
        if let Err(error) = fs::create_dir_all(directory.join(note.name())) {
            let path = directory.display();
            warn!(%path, "a changed setting can't be noted: {error}; `millrace cleanup` will leave it");
        }
    }

    fn remove(&self, note: &Note) {
        if let Some(directory) = &self.0 {
            let _ = fs::remove_dir(directory.join(note.name()));
        }
    }
}

impl Note {
    /// The BPF file system takes no dots. No device has a colon in its name.
    fn name(&self) -> String {
        match self {
            Self::Reserved((first, last)) => format!("reserved_ports-{first}-{last}"),
            Self::AcceptRa { device, former } => format!("accept_ra-{former}-{}", device.replace('.', ":")),
            Self::Forwarding => "forwarding6".to_owned(),
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
            _ => None,
        }
    }
}

#[cfg(test)]
#[path = "host_tests.rs"]
mod tests;
