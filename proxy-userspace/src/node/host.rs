//! The host's settings that the data path depends on. Changed settings are recorded beside the
//! maps, so that `millrace cleanup` can restore them.

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

/// The settings, and the records of their former values.
#[derive(Clone, Debug, Default)]
pub struct Host {
    sysctls: Sysctls,
    records: Records,
}

/// A changed setting.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Record {
    /// The agent reserved these ports.
    Reserved(Range),
    /// The agent made a device accept router advertisements. `former` was the value of accept_ra.
    AcceptRa { device: String, former: String },
    /// The agent turned IPv6 forwarding on.
    Forwarding,
    /// This device forwarded IPv6 before that.
    Forwarded(String),
}

impl Host {
    /// Returns the host of this network namespace. `notes` is a directory of the BPF file system;
    /// without it nothing is recorded.
    #[must_use]
    pub fn new(notes: Option<&Path>) -> Self {
        Self {
            sysctls: Sysctls::default(),
            records: Records { directory: notes.map(Path::to_owned), is_home: is_bpffs },
        }
    }

    /// Turns forwarding on, and loosens the reverse-path filter where several uplinks make paths
    /// asymmetric.
    ///
    /// Changes are logged. Settings that are right already are left alone.
    pub fn prepare(&self, uplinks: &[&str]) {
        let sysctls = &self.sysctls;
        if sysctls.read(FORWARDING).is_ok_and(|now| now == "0") {
            // Once all devices forward, a device's former value can't be read any more.
            let forwarded = self.forwarding_devices().into_iter().map(Record::Forwarded);
            let records: Vec<Record> = forwarded.chain([Record::Forwarding]).collect();
            for record in &records {
                self.records.write(record);
            }
            self.accept_advertisements(uplinks, &records);
        } else {
            self.accept_advertisements(uplinks, &self.records.all());
        }
        sysctls.change("ipv4/ip_forward", "1", |now| now == "0");
        sysctls.change(FORWARDING, "1", |now| now == "0");
        if uplinks.len() > 1 {
            for uplink in uplinks {
                sysctls.loosen_rp_filter(uplink);
            }
        }
    }

    /// Makes uplinks accept router advertisements: a node that forwards ignores them, and its
    /// default route may be one.
    ///
    /// A device that forwarded before the agent turned forwarding on worked without them.
    fn accept_advertisements(&self, uplinks: &[&str], records: &[Record]) {
        if !records.contains(&Record::Forwarding) {
            return;
        }
        let forwarded = |uplink: &str| records.contains(&Record::Forwarded(uplink.to_owned()));
        for uplink in uplinks.iter().filter(|uplink| self.is_ignoring(uplink) && !forwarded(uplink)) {
            self.records.write(&Record::AcceptRa { device: (*uplink).to_owned(), former: "1".to_owned() });
            self.sysctls.change(&accept_ra(uplink), "2", |now| now == "1");
        }
    }

    /// Returns the devices that forward IPv6, and so ignore router advertisements.
    fn forwarding_devices(&self) -> Vec<String> {
        let entries = fs::read_dir(self.sysctls.path(DEVICES)).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let forwards = |device: &String| self.sysctls.read(forwarding(device)).is_ok_and(|now| now == "1");
        names.filter(|device| forwards(device) && self.is_ignoring(device)).collect()
    }

    /// Returns whether the device ignores router advertisements as soon as it forwards.
    fn is_ignoring(&self, device: &str) -> bool {
        self.sysctls.read(accept_ra(device)).is_ok_and(|now| now == "1")
    }

    /// Reserves ports, so that no socket is given one, beside those that are reserved already.
    /// Other ports that an agent reserved are given back.
    pub fn reserve_ports(&self, ports: &RangeInclusive<u16>) {
        let wanted = (*ports.start(), *ports.end());
        for record in self.records.all() {
            if let Record::Reserved(range) = record
                && !Ports::of(wanted).holds(range)
            {
                self.give_back(range);
                self.records.remove(&record);
            }
        }
        let Ok(text) = self.sysctls.read(RESERVED) else { return };
        let missing = Ports::of(wanted).without(&Ports::parse(&text));
        for range in &missing.0 {
            self.records.write(&Record::Reserved(*range));
        }
        let all = Ports([Ports::parse(&text).0, missing.0.clone()].concat());
        self.sysctls.change(RESERVED, &all.to_string(), |_| !missing.0.is_empty());
    }

    fn give_back(&self, range: Range) -> bool {
        let Ok(text) = self.sysctls.read(RESERVED) else { return false };
        let left = Ports::parse(&text).without(&Ports::of(range));
        // An empty write would have no effect.
        self.sysctls.change(RESERVED, &format!("{left}\n"), |_| left != Ports::parse(&text))
    }

    /// Restores the recorded settings and forgets them. Returns a line for each.
    ///
    /// Forwarding stays on, since pods may need it by now. While it is on, router advertisements
    /// are still accepted, or the node would lose its default route.
    #[must_use]
    pub fn restore(&self) -> Vec<String> {
        let mut done = Vec::new();
        for record in self.records.all() {
            match &record {
                Record::Reserved((first, last)) if self.give_back((*first, *last)) => {
                    done.push(format!("net.ipv4.ip_local_reserved_ports: {first}-{last} given back"));
                }
                Record::AcceptRa { device, former } => {
                    done.extend(self.ignore_advertisements(device, former));
                }
                Record::Reserved(_) | Record::Forwarding | Record::Forwarded(_) => {}
            }
            self.records.remove(&record);
        }
        if let Some(directory) = self.records.home() {
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

/// A directory with an empty directory for each record: the BPF file system has no files.
#[derive(Clone, Debug)]
struct Records {
    directory: Option<PathBuf>,
    /// Whether the directory may be made below this one. Checked each time: an agent that falls
    /// back to IPVS unmounts the file system.
    is_home: fn(&Path) -> bool,
}

impl Default for Records {
    fn default() -> Self {
        Self { directory: None, is_home: is_bpffs }
    }
}

impl Records {
    /// Returns the directory, if it can exist.
    fn home(&self) -> Option<&Path> {
        self.directory.as_deref().filter(|directory| directory.parent().is_some_and(self.is_home))
    }

    fn all(&self) -> Vec<Record> {
        let entries = self.home().and_then(|directory| fs::read_dir(directory).ok());
        let names = entries.into_iter().flatten().flatten().map(|entry| entry.file_name());
        let mut names: Vec<_> = names.filter_map(|name| name.into_string().ok()).collect();
        names.sort_unstable();
        names.iter().filter_map(|name| Record::parse(name)).collect()
    }

    fn write(&self, record: &Record) {
        let Some(directory) = self.home() else { return };
        if let Err(error) = make(directory).and_then(|()| make(&directory.join(record.name()))) {
            let path = directory.display();
            warn!(%path, %error, "a changed setting can't be recorded: `millrace cleanup` will not restore it");
        }
    }

    fn remove(&self, record: &Record) {
        if let Some(directory) = self.home() {
            let _ = fs::remove_dir(directory.join(record.name()));
        }
    }
}

/// Makes one directory, but none above it: the file system may be gone.
fn make(directory: &Path) -> io::Result<()> {
    match fs::create_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

impl Record {
    /// Returns the name of its directory. The BPF file system allows no dots, so they become colons,
    /// which no device has in its name.
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
