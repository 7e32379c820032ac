//! The kernel settings the data path depends on.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::{fs, io};

use tracing::{info, warn};

/// `/proc/sys/net` of the network namespace this process is in.
#[derive(Clone, Debug)]
pub struct Sysctls {
    root: PathBuf,
}

impl Default for Sysctls {
    fn default() -> Self {
        Self { root: PathBuf::from("/proc/sys/net") }
    }
}

impl Sysctls {
    /// Turns forwarding on, and loosens the reverse-path filter where several uplinks make paths asymmetric.
    /// What is changed is said; what is right already is left alone.
    pub fn prepare(&self, uplinks: &[&str]) {
        for uplink in uplinks {
            // A node that forwards ignores router advertisements, its default route may be one: 2 = heed them.
            self.change(&format!("ipv6/conf/{uplink}/accept_ra"), "2", |now| now == "1");
        }
        self.change("ipv4/ip_forward", "1", |now| now == "0");
        self.change("ipv6/conf/all/forwarding", "1", |now| now == "0");
        if uplinks.len() > 1 {
            // The kernel takes the higher one of `all` and the device's.
            let is_strict = self.read("ipv4/conf/all/rp_filter").is_ok_and(|all| all == "1");
            for uplink in uplinks {
                self.change(&format!("ipv4/conf/{uplink}/rp_filter"), "2", |now| {
                    now == "1" || is_strict && now == "0"
                });
            }
        }
    }

    /// Keeps ports from being given to sockets that ask for none, beside those that are kept already.
    pub fn reserve_ports(&self, ports: &RangeInclusive<u16>) {
        const KEY: &str = "ipv4/ip_local_reserved_ports";
        let Ok(now) = self.read(KEY) else {
            return;
        };
        let range = format!("{}-{}", ports.start(), ports.end());
        let both = if now.is_empty() { range } else { format!("{now},{range}") };
        self.change(KEY, &both, |now| !reserves(now, ports));
    }

    /// Sets what has another value. A setting that this kernel lacks is passed over.
    pub fn require(&self, key: &str, wanted: &str) {
        self.change(key, wanted, |now| now != wanted);
    }

    /// Whether this kernel has a setting.
    #[must_use]
    pub fn has(&self, key: &str) -> bool {
        self.path(key).exists()
    }

    /// Sets what is lower than `least`, and returns whether it did. One that this network namespace may only read belongs
    /// to the host's.
    pub fn raise(&self, key: &str, least: u32) -> bool {
        let is_fixed = fs::metadata(self.path(key)).is_ok_and(|file| file.permissions().readonly());
        let is_lower = |now: &str| now.parse::<u32>().is_ok_and(|now| now < least);
        !is_fixed && self.change(key, &least.to_string(), is_lower)
    }

    /// Returns whether it did.
    fn change(&self, key: &str, wanted: &str, is_wrong: impl FnOnce(&str) -> bool) -> bool {
        let Ok(now) = self.read(key) else {
            return false;
        };
        if !is_wrong(&now) {
            return false;
        }
        let name = format!("net.{}", key.replace('/', "."));
        match fs::write(self.path(key), wanted) {
            Ok(()) => info!("sysctl {name}: was {now}, set to {wanted}"),
            Err(error) => {
                warn!("sysctl {name} is {now} and must be {wanted}: {error}");
                return false;
            }
        }
        true
    }

    /// The value of a setting.
    pub(super) fn read(&self, key: impl AsRef<Path>) -> io::Result<String> {
        Ok(fs::read_to_string(self.path(key))?.trim().to_owned())
    }

    /// The file of a setting.
    pub(super) fn path(&self, key: impl AsRef<Path>) -> PathBuf {
        self.root.join(key)
    }
}

/// Whether one of the ranges in `text`, a list such as `8080,61000-65535`, holds all of `ports`. The kernel merges
/// ranges that touch.
fn reserves(text: &str, ports: &RangeInclusive<u16>) -> bool {
    text.split(',').any(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let bounds = first.trim().parse::<u16>().ok().zip(last.trim().parse::<u16>().ok());
        bounds.is_some_and(|(first, last)| first <= *ports.start() && *ports.end() <= last)
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub fn fresh(name: &str, values: &[(&str, &str)]) -> Sysctls {
        let root = std::env::temp_dir().join(format!("millrace-{name}-{}", std::process::id()));
        for (key, value) in values {
            let path = root.join(key);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, value).unwrap();
        }
        Sysctls { root }
    }

    #[test]
    fn forwarding_is_turned_on_and_router_advertisements_stay_heeded() {
        let sysctls = fresh(
            "forwarding",
            &[
                ("ipv4/ip_forward", "0\n"),
                ("ipv6/conf/all/forwarding", "0\n"),
                ("ipv6/conf/eth0/accept_ra", "1\n"),
                ("ipv4/conf/all/rp_filter", "0\n"),
                ("ipv4/conf/eth0/rp_filter", "1\n"),
            ],
        );
        sysctls.prepare(&["eth0"]);
        assert_eq!(sysctls.read("ipv4/ip_forward").unwrap(), "1");
        assert_eq!(sysctls.read("ipv6/conf/all/forwarding").unwrap(), "1");
        assert_eq!(sysctls.read("ipv6/conf/eth0/accept_ra").unwrap(), "2");
        assert_eq!(sysctls.read("ipv4/conf/eth0/rp_filter").unwrap(), "1", "one uplink: paths are symmetric");
        fs::remove_dir_all(sysctls.root).unwrap();
    }

    #[test]
    fn a_strict_reverse_path_filter_is_loosened_with_several_uplinks() {
        let sysctls = fresh(
            "rp-filter",
            &[
                ("ipv4/conf/all/rp_filter", "1\n"),
                ("ipv4/conf/eth0/rp_filter", "0\n"),
                ("ipv4/conf/eth1/rp_filter", "1\n"),
            ],
        );
        sysctls.prepare(&["eth0", "eth1"]);
        assert_eq!(sysctls.read("ipv4/conf/eth0/rp_filter").unwrap(), "2");
        assert_eq!(sysctls.read("ipv4/conf/eth1/rp_filter").unwrap(), "2");
        assert_eq!(sysctls.read("ipv4/conf/all/rp_filter").unwrap(), "1");
        fs::remove_dir_all(sysctls.root).unwrap();
    }

    #[test]
    fn ports_are_reserved_beside_those_that_are_already() {
        let sysctls = fresh("reserved", &[("ipv4/ip_local_reserved_ports", "8080,9000-9100\n")]);
        let reserved = || sysctls.read("ipv4/ip_local_reserved_ports").unwrap();
        sysctls.reserve_ports(&(61000..=65535));
        assert_eq!(reserved(), "8080,9000-9100,61000-65535");
        sysctls.reserve_ports(&(62000..=65535));
        assert_eq!(reserved(), "8080,9000-9100,61000-65535");
        fs::remove_dir_all(sysctls.root).unwrap();
    }
}
