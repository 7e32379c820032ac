//! The machine, the kernel and the commit of a run.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::thread;
use std::time::SystemTime;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Everything that a figure depends on, beside the code. A part that can't be read is empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Environment {
    /// The processor's model.
    pub cpu: String,
    /// Processors that this process may use.
    pub cores: usize,
    /// The kernel's release and architecture.
    pub kernel: String,
    /// The files of `/sys/devices/system/cpu/vulnerabilities`.
    pub mitigations: BTreeMap<String, String>,
    /// Whether the machine is a virtual one.
    pub is_virtual: bool,
    /// `git describe` of the sources, with `-dirty` if files differ from the commit.
    pub commit: String,
    /// Seconds since 1970.
    pub taken: u64,
}

impl Environment {
    /// Reads the description of this machine.
    pub fn of_this_machine() -> Self {
        let cpuinfo = read("/proc/cpuinfo");
        Self {
            cpu: cpu_model(&cpuinfo),
            cores: thread::available_parallelism().map_or(0, usize::from),
            kernel: format!("{} {}", read("/proc/sys/kernel/osrelease"), std::env::consts::ARCH),
            mitigations: mitigations(),
            is_virtual: cpuinfo.split_whitespace().any(|flag| flag == "hypervisor"),
            commit: commit(),
            taken: SystemTime::now()
                .duration_since(SystemTime::UNIX_EPOCH)
                .map_or(0, |elapsed| elapsed.as_secs()),
        }
    }
}

impl Environment {
    /// Returns the time of the run, by RFC 3339.
    pub fn time(&self) -> String {
        let taken = i64::try_from(self.taken).ok().and_then(|taken| Timestamp::from_second(taken).ok());
        taken.map(|taken| taken.to_string()).unwrap_or_default()
    }
}

/// Returns the first processor's name. ARM's has only numbers.
fn cpu_model(cpuinfo: &str) -> String {
    let field = |wanted: &str| {
        cpuinfo.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            (name.trim() == wanted).then(|| value.trim().to_owned())
        })
    };
    let part = || Some(format!("{}, part {}", field("CPU implementer")?, field("CPU part")?));
    field("model name").or_else(part).unwrap_or_default()
}

fn mitigations() -> BTreeMap<String, String> {
    let files = fs::read_dir("/sys/devices/system/cpu/vulnerabilities").into_iter().flatten().flatten();
    files
        .map(|file| (file.file_name().to_string_lossy().into_owned(), read(&file.path().to_string_lossy())))
        .collect()
}

/// Returns the commit of the sources; nothing outside of a repository.
fn commit() -> String {
    let git = ["-C", env!("CARGO_MANIFEST_DIR"), "describe", "--always", "--dirty"];
    let output = Command::new("git").args(git).output().map(|output| output.stdout);
    output.map(|name| String::from_utf8_lossy(&name).trim().to_owned()).unwrap_or_default()
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_has_a_name_on_both_architectures() {
        assert_eq!(cpu_model("processor\t: 0\nmodel name\t: A B\n"), "A B");
        assert_eq!(cpu_model("CPU implementer\t: 0x41\nCPU part\t: 0xd0c\n"), "0x41, part 0xd0c");
        assert_eq!(cpu_model(""), "");
    }

    #[test]
    fn this_machine_is_described() {
        let environment = Environment::of_this_machine();
        assert!(environment.cores > 0 && !environment.kernel.is_empty());
    }
}
