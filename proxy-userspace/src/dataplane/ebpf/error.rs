//! The reasons for a failed start of the data plane.

use std::error::Error;
use std::io;
use std::path::PathBuf;

use aya::EbpfError;
use aya::maps::MapError;
use aya::programs::ProgramError;

/// The advice for missing rights.
pub(super) const TAKES_RIGHTS: &str = "run as root, or with CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN";

/// The reasons for a failed start of the data plane.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The process lacks a capability.
    #[error("missing {missing}: {TAKES_RIGHTS}")]
    Capability {
        /// The capabilities that are missing.
        missing: String,
    },
    /// There is no BPF file system, and none may be mounted.
    #[error(
        "--bpffs-path {path}: {why}; takes a BPF file system, a directory in one, or an empty directory to \
         mount one on"
    )]
    BpffsPath {
        /// The configured path.
        path: PathBuf,
        /// The obstacle at the path.
        why: String,
    },
    /// There is no BPF file system, and none could be mounted.
    #[error(
        "{path} is no BPF file system, and none can be mounted there: {error}; a container takes the host's \
         /sys/fs/bpf there (hostPath)"
    )]
    NoBpffs {
        /// The configured path.
        path: PathBuf,
        /// The kernel's error.
        error: io::Error,
    },
    /// A file operation failed.
    #[error("{path}: {error}")]
    File {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        error: io::Error,
    },
    /// The rules for new devices can't be deleted.
    #[error("the tables millrace-firewall of nftables can't be deleted: {0}")]
    Nftables(io::Error),
    /// Another agent uses the same directory.
    #[error("another agent{} is using {path}; a node has one at a time: stop that one first", numbered(*process))]
    InUse {
        /// The directory.
        path: PathBuf,
        /// Its process, if visible.
        process: Option<u32>,
    },
    /// The pins belong to another network namespace.
    #[error(
        "{path}: an agent in another network namespace made these pins; start this one in that namespace, or \
         remove them by `millrace cleanup`"
    )]
    OtherNamespace {
        /// The directory that names the namespace.
        path: PathBuf,
    },
    /// Another object is pinned in place of one of our maps.
    #[error(
        "{path}: {found} is pinned there where {wanted} belongs; remove it, or everything by `millrace cleanup`"
    )]
    ForeignPin {
        /// The pin.
        path: PathBuf,
        /// The pinned object.
        found: String,
        /// The expected object.
        wanted: String,
    },
    /// The kernel refused a program.
    #[error("the kernel refuses program {program}: {error}; verifier: {verifier}")]
    Program {
        /// Name of the program.
        program: &'static str,
        /// The kernel's error.
        error: io::Error,
        /// The last line of the verifier's log without statistics.
        verifier: String,
    },
    /// The object lacks a program: it is not from this build.
    #[error("the BPF object has no program {program}")]
    NoProgram {
        /// Name of the program.
        program: &'static str,
    },
    /// A map can't be created, opened or read.
    #[error("map {map}: {}", with_causes(error))]
    Map {
        /// Name of the map.
        map: String,
        /// aya's error.
        error: MapError,
    },
    /// A map can't be mapped into memory, or its id can't be read.
    #[error("map {map}: {error}")]
    MapIo {
        /// Name of the map.
        map: &'static str,
        /// The kernel's error.
        error: io::Error,
    },
    /// An entry of a map can't be copied.
    #[error("map {map}: {error}")]
    RawMap {
        /// Name of the map.
        map: String,
        /// The kernel's error.
        error: io::Error,
    },
    /// The load-time constants of a program can't be found.
    #[error("{path}: its load-time constants can't be read")]
    NoConstants {
        /// The pin of the program.
        path: PathBuf,
    },
    /// The object can't be loaded.
    #[error("BPF object: {}", with_causes(.0))]
    Object(EbpfError),
    /// The object has a map that is not pinned.
    #[error("the BPF object has a map {map} that the agent does not know")]
    UnknownMap {
        /// Name of the map.
        map: String,
    },
    /// An operation on a program failed.
    #[error("program {program}: {}", with_causes(error))]
    Aya {
        /// Name of the program.
        program: &'static str,
        /// aya's error.
        error: ProgramError,
    },
}

impl OpenError {
    /// Returns whether the kernel lacks a feature, so that a retry on this kernel is pointless. A
    /// shortage of memory or time passes.
    #[must_use]
    pub fn is_of_the_kernel(&self) -> bool {
        match self {
            // A kernel with the file system refuses the mount only for missing rights.
            Self::NoBpffs { error, .. } => error.raw_os_error() == Some(libc::ENODEV),
            Self::Program { error, .. } => !is_shortage(error),
            Self::Object(error) => !is_shortage(error),
            Self::Map { error, .. } => !is_shortage(error),
            Self::Capability { .. }
            | Self::BpffsPath { .. }
            | Self::ForeignPin { .. }
            | Self::File { .. }
            | Self::Nftables(_)
            | Self::InUse { .. }
            | Self::OtherNamespace { .. }
            | Self::NoProgram { .. }
            | Self::MapIo { .. }
            | Self::RawMap { .. }
            | Self::NoConstants { .. }
            | Self::UnknownMap { .. }
            | Self::Aya { .. } => false,
        }
    }

    /// Returns whether the process lacks the rights.
    #[must_use]
    pub fn is_of_rights(&self) -> bool {
        let is_denied = |error: &(dyn Error + 'static)| has_cause(error, &[libc::EPERM, libc::EACCES]);
        match self {
            Self::Capability { .. } => true,
            Self::NoBpffs { error, .. }
            | Self::File { error, .. }
            | Self::MapIo { error, .. }
            | Self::RawMap { error, .. } => is_denied(error),
            Self::Map { error, .. } => is_denied(error),
            _ => false,
        }
    }

    /// Returns the error of a failed load of `program`.
    pub(super) fn load(program: &'static str, error: ProgramError) -> Self {
        match error {
            ProgramError::LoadError { io_error, verifier_log } => {
                let log = verifier_log.to_string();
                Self::Program { program, error: io_error, verifier: last_words(&log) }
            }
            error => Self::Aya { program, error },
        }
    }
}

/// Returns whether an error, or a cause of it, passes.
fn is_shortage(error: &(dyn Error + 'static)) -> bool {
    has_cause(error, &[libc::ENOMEM, libc::EAGAIN, libc::EINTR])
}

/// Returns whether an error, or a cause of it, has one of these error numbers.
fn has_cause(error: &(dyn Error + 'static), numbers: &[i32]) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        let number = error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error);
        if number.is_some_and(|number| numbers.contains(&number)) {
            return true;
        }
        next = error.source();
    }
    false
}

fn numbered(process: Option<u32>) -> String {
    process.map_or_else(String::new, |process| format!(" (process {process})"))
}

/// Returns an error and its causes in one line: aya's messages omit the causes.
fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let part = error.to_string();
        if !text.ends_with(&part) {
            text = format!("{text}: {part}");
        }
        cause = error.source();
    }
    text
}

/// Returns the last line of a verifier's log that is not a statistic.
fn last_words(log: &str) -> String {
    let is_statistic = |line: &str| {
        ["processed ", "verification time", "stack depth", "max_states"].iter().any(|s| line.starts_with(s))
    };
    let mut lines = log.lines().map(str::trim).filter(|line| !line.is_empty() && !is_statistic(line));
    lines.next_back().unwrap_or("(no output)").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_of_memory_is_not_a_missing_kernel_feature() {
        let refused = |number| OpenError::Program {
            program: "xdp_ingress",
            error: io::Error::from_raw_os_error(number),
            verifier: String::new(),
        };
        let map = |number| OpenError::Map {
            map: "FLOWS4".to_owned(),
            error: MapError::CreateError {
                name: "FLOWS4".to_owned(),
                io_error: io::Error::from_raw_os_error(number),
            },
        };
        for number in [libc::EINVAL, libc::EPERM, libc::EACCES] {
            assert!(refused(number).is_of_the_kernel() && map(number).is_of_the_kernel(), "{number}");
        }
        let mount = |number| OpenError::NoBpffs {
            path: "/sys/fs/bpf".into(),
            error: io::Error::from_raw_os_error(number),
        };
        assert!(mount(libc::ENODEV).is_of_the_kernel() && !mount(libc::EPERM).is_of_the_kernel());
        for number in [libc::ENOMEM, libc::EAGAIN] {
            assert!(!refused(number).is_of_the_kernel() && !map(number).is_of_the_kernel(), "{number}");
        }
    }

    #[test]
    fn the_reason_stands_before_the_statistics() {
        let log = "0: R1=ctx()\nunknown func bpf_foo#999\nverification time 12 usec\nstack depth 0\nprocessed 1 insns\n";
        assert_eq!(last_words(log), "unknown func bpf_foo#999");
        assert_eq!(last_words(""), "(no output)");
    }
}
