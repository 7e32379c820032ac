//! The sysctls that files set at boot, in systemd's order: sysctl.d(5).

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::dataplane::ebpf::sees_host;

/// The directories. A file hides those of the same name in later ones.
const DIRECTORIES: [&str; 5] =
    ["etc/sysctl.d", "run/sysctl.d", "usr/local/lib/sysctl.d", "usr/lib/sysctl.d", "lib/sysctl.d"];

/// The assignments of all files, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Boot {
    assignments: Vec<Assignment>,
    /// The names that no pattern sets: a minus before the name, and no value.
    excluded: Vec<String>,
}

/// A line of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// The name, with slashes: `net/ipv4/ip_forward`. It may have `*`.
    key: String,
    /// The value.
    pub value: String,
    /// The path of the file, as the host has it.
    pub file: String,
}

impl Boot {
    /// Reads the host's files: those of process 1, where it is the host's, or else those in sight.
    pub fn read() -> Self {
        let host = Path::new("/proc/1/root");
        let is_open = fs::read_dir(host.join("etc")).is_ok();
        Self::below(if sees_host() && is_open { host } else { Path::new("/") })
    }

    /// Reads the files below a root directory.
    fn below(root: &Path) -> Self {
        let mut files = BTreeMap::new();
        for directory in DIRECTORIES {
            for entry in fs::read_dir(root.join(directory)).into_iter().flatten().flatten() {
                let Ok(name) = entry.file_name().into_string() else { continue };
                if Path::new(&name).extension().is_some_and(|extension| extension == "conf") {
                    files.entry(name.clone()).or_insert_with(|| format!("/{directory}/{name}"));
                }
            }
        }
        let mut boot = Self::default();
        for path in files.into_values() {
            let text = fs::read_to_string(root.join(path.trim_start_matches('/'))).unwrap_or_default();
            boot.add(&path, &text);
        }
        boot
    }

    /// Adds the lines of a file.
    pub fn add(&mut self, file: &str, text: &str) {
        for line in text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';'])) {
            let (name, value) =
                line.split_once('=').map_or((line, None), |(name, value)| (name, Some(value)));
            let (bare, is_marked) =
                name.trim().strip_prefix('-').map_or((name.trim(), false), |name| (name, true));
            let key = slashed(bare);
            match value {
                Some(value) => {
                    let (value, file) = (value.trim().to_owned(), file.to_owned());
                    self.assignments.push(Assignment { key, value, file });
                }
                None if is_marked && !key.is_empty() => self.excluded.push(key),
                None => {}
            }
        }
    }

    /// Whether no file sets anything.
    pub const fn is_empty(&self) -> bool {
        self.assignments.is_empty()
    }

    /// Returns what sets the sysctl `net/KEY` last. A name by itself goes before a pattern.
    pub fn value(&self, key: &str) -> Option<&Assignment> {
        let key = format!("net/{key}");
        let by_name = self.assignments.iter().rfind(|one| one.key == key);
        by_name.or_else(|| {
            let is_excluded = self.excluded.contains(&key);
            self.assignments
                .iter()
                .rfind(|one| !is_excluded && one.key.contains('*') && matches(&one.key, &key))
        })
    }
}

/// Returns a name with slashes. The first separator says which form it has: a device may have dots in its name.
fn slashed(name: &str) -> String {
    if name.find('/') < name.find('.') && name.contains('/') || !name.contains('.') {
        return name.to_owned();
    }
    name.chars()
        .map(|c| match c {
            '.' => '/',
            '/' => '.',
            other => other,
        })
        .collect()
}

/// Returns whether a name matches a pattern, part by part.
fn matches(pattern: &str, key: &str) -> bool {
    let (mut patterns, mut parts) = (pattern.split('/'), key.split('/'));
    loop {
        match (patterns.next(), parts.next()) {
            (None, None) => return true,
            (Some(pattern), Some(part)) => {
                let (start, end) = pattern.split_once('*').unwrap_or((pattern, ""));
                let is_it = if pattern.contains('*') {
                    part.len() >= start.len() + end.len() && part.starts_with(start) && part.ends_with(end)
                } else {
                    pattern == part
                };
                if !is_it {
                    return false;
                }
            }
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_the_administrator_hides_one_of_the_same_name() {
        let root = std::env::temp_dir().join(format!("millrace-boot-{}", std::process::id()));
        for (path, text) in [
            ("etc/sysctl.d/50-default.conf", "net.ipv4.ip_forward = 1\n"),
            ("usr/lib/sysctl.d/50-default.conf", "net.ipv4.ip_forward = 0\n"),
            ("usr/lib/sysctl.d/99-last.conf", "net/ipv4/conf/eth0.7/rp_filter=1\n"),
            ("etc/sysctl.d/README", "net.ipv4.ip_forward = 7\n"),
        ] {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let boot = Boot::below(&root);
        fs::remove_dir_all(&root).unwrap();
        let set = boot.value("ipv4/ip_forward").unwrap();
        assert_eq!((&*set.value, &*set.file), ("1", "/etc/sysctl.d/50-default.conf"));
        assert_eq!(boot.value("ipv4/conf/eth0.7/rp_filter").unwrap().value, "1");
        assert_eq!(boot.value("ipv4/conf/eth0/rp_filter"), None);
    }

    #[test]
    fn a_name_goes_before_a_pattern_and_may_be_left_out_of_it() {
        let mut boot = Boot::default();
        boot.add("a", "# comment\n; another\nnet.ipv4.conf.*.rp_filter = 2\n-net.ipv4.conf.all.rp_filter\n");
        boot.add(
            "b",
            "net.ipv4.conf.eth0.rp_filter = 1\n-net.ipv4.conf.eth1.rp_filter=0\nnet.ipv4.conf.*.rp_filter=3",
        );
        let value =
            |device: &str| boot.value(&format!("ipv4/conf/{device}/rp_filter")).map(|set| &*set.value);
        assert_eq!(value("eth0"), Some("1"));
        assert_eq!(value("eth1"), Some("0"));
        assert_eq!(value("eth2"), Some("3"));
        assert_eq!(value("all"), None);
        assert_eq!(boot.value("ipv4/conf/eth2/other"), None);
    }
}
