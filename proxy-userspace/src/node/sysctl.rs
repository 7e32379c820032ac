//! The sysctls that the data path depends on.

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
    /// Sets a sysctl that has another value. One that this kernel lacks is skipped.
    pub fn require(&self, key: &str, wanted: &str) {
        self.change(key, wanted, |now| now != wanted);
    }

    /// Returns whether this kernel has a sysctl.
    #[must_use]
    pub fn has(&self, key: &str) -> bool {
        self.path(key).exists()
    }

    /// Raises a sysctl that is lower than `least`. Returns whether it did.
    ///
    /// A sysctl that is read-only in this network namespace belongs to the host's, and is left
    /// alone.
    #[must_use]
    pub fn raise(&self, key: &str, least: u32) -> bool {
        let is_fixed = fs::metadata(self.path(key)).is_ok_and(|file| file.permissions().readonly());
        let is_lower = |now: &str| now.parse::<u32>().is_ok_and(|now| now < least);
        !is_fixed && self.change(key, &least.to_string(), is_lower)
    }

    /// Loosens a device's reverse path filter if it is strict. The kernel uses the higher value of `all` and
    /// the device.
    pub fn loosen_rp_filter(&self, device: &str) {
        let is_strict = self.read("ipv4/conf/all/rp_filter").is_ok_and(|all| all == "1");
        self.change(&format!("ipv4/conf/{device}/rp_filter"), "2", |now| {
            now == "1" || is_strict && now == "0"
        });
    }

    /// Changes a sysctl with a wrong value, and logs it. Returns whether it did.
    pub(super) fn change(&self, key: &str, wanted: &str, is_wrong: impl FnOnce(&str) -> bool) -> bool {
        let Ok(now) = self.read(key) else {
            return false;
        };
        if !is_wrong(&now) {
            return false;
        }
        let name = format!("net.{}", key.replace('/', "."));
        let shown =
            |text: &str| if text.trim().is_empty() { "nothing".to_owned() } else { text.trim().to_owned() };
        let (now, shown) = (shown(&now), shown(wanted));
        match self.write(key, wanted) {
            Ok(()) => info!(name, from = now, to = shown, "sysctl changed"),
            Err(error) => {
                warn!(
                    name,
                    value = now,
                    wanted = shown,
                    %error,
                    "changing a sysctl failed, and the data path needs it: set it on the node, or run \
                     `millrace agent --init-only` as root with the agent's flags"
                );
                return false;
            }
        }
        true
    }

    /// Sets a sysctl, whatever its value is.
    pub fn write(&self, key: &str, value: &str) -> io::Result<()> {
        fs::write(self.path(key), value)
    }

    /// Returns the value of a sysctl.
    pub fn read(&self, key: impl AsRef<Path>) -> io::Result<String> {
        Ok(fs::read_to_string(self.path(key))?.trim().to_owned())
    }

    /// Returns the file of a sysctl.
    pub(super) fn path(&self, key: impl AsRef<Path>) -> PathBuf {
        self.root.join(key)
    }
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
}
