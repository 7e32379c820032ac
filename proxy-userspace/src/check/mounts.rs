//! File systems: BPF, and the control groups.

use std::path::{Path, PathBuf};

use super::finding::faults_or;
use super::{Facts, Finding, Fix};
use crate::config::{ProxyMode, Settings};
use crate::dataplane::ebpf::{self, Mount, OtherView, SocketLb, cgroup};

/// The file systems, and the programs of other agents in them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounts {
    /// The BPF file system at `--bpffs-path`.
    pub bpffs: Mount,
    /// Data planes with another `--bpffs-path`.
    pub others: Vec<OtherView>,
    /// The control group of the socket hooks, if there is one.
    pub cgroup: Option<PathBuf>,
    /// Whether the control group has others above it.
    pub is_below: bool,
}

impl Mounts {
    /// Looks for the file systems that the settings name.
    pub fn read(settings: &Settings) -> Self {
        let cgroup = settings.sockets.cgroup.clone().or_else(cgroup::mounted);
        Self {
            bpffs: Mount::of(&settings.bpffs),
            others: ebpf::others(&settings.bpffs),
            is_below: cgroup.as_deref().is_some_and(cgroup::is_below_others),
            cgroup,
        }
    }
}

pub fn bpffs(facts: &Facts) -> Vec<Finding> {
    let path = facts.settings.bpffs.display();
    if facts.settings.proxy_mode == ProxyMode::Ipvs {
        return vec![Finding::skip("not used with --proxy-mode ipvs")];
    }
    vec![match facts.mounts.bpffs {
        Mount::Host => Finding::pass(format!("{path} is the host's")),
        Mount::Missing => Finding::warn(
            format!("{path} is no BPF file system; the agent mounts one"),
            format!(
                "in a container: mount the host's /sys/fs/bpf there (hostPath). On the host: mount -t bpf bpf {path}"
            ),
        ),
        Mount::Private => Finding::fail(
            format!(
                "{path} belongs to this container alone: its pins, and with them all connections, end with the pod"
            ),
            "mount the host's /sys/fs/bpf there (hostPath)",
        ),
        Mount::Unknown => Finding::skip(format!(
            "{path} is a BPF file system; whether the host has it is not visible here (it takes hostPID)"
        )),
    }]
}

pub fn foreign(facts: &Facts) -> Vec<Finding> {
    let mut paths: Vec<&Option<PathBuf>> =
        facts.mounts.others.iter().map(|other| &other.bpffs_path).collect();
    paths.dedup();
    let faults = paths.into_iter().map(|path| {
        let programs: Vec<&OtherView> =
            facts.mounts.others.iter().filter(|other| other.bpffs_path == *path).collect();
        another(path.as_deref(), &programs)
    });
    faults_or(faults.collect(), || "no other data plane of Millrace is on this node".to_owned())
}

/// Returns the finding of another data plane with these programs.
fn another(path: Option<&Path>, programs: &[&OtherView]) -> Finding {
    let names: Vec<String> = programs.iter().map(|one| format!("{} on {}", one.hook, one.device)).collect();
    let found = format!("another data plane of Millrace serves here, too ({})", names.join(", "));
    match (path, programs.iter().find_map(|one| one.process)) {
        (None, _) => Finding::warn(
            format!("{found}, without visible pins"),
            "end the container that mounted its BPF file system",
        ),
        (Some(path), Some(process)) => Finding::warn(
            format!("{found}: agent {process} with --bpffs-path {}", path.display()),
            "end one of the two agents, and clean its data plane up",
        ),
        (Some(path), None) => Fix::Root(path.to_owned())
            .warn(format!("{found}: an agent with --bpffs-path {} left it", path.display())),
    }
}

pub fn cgroup(facts: &Facts) -> Vec<Finding> {
    if facts.settings.sockets.lb == SocketLb::Off {
        return vec![Finding::skip("no socket hook with --socket-lb off")];
    }
    vec![match &facts.mounts.cgroup {
        None => Finding::warn(
            "no cgroup2 file system is mounted: sockets on this node are not served by hooks",
            "mount -t cgroup2 none /sys/fs/cgroup, or name another by --cgroup-path",
        ),
        Some(path) if facts.mounts.is_below => Finding::warn(
            format!(
                "{} is not the root: the hooks miss the sockets of control groups beside and above it",
                path.display()
            ),
            "name the root by --cgroup-path; in a container, mount the host's /sys/fs/cgroup (hostPath)",
        ),
        Some(path) => Finding::pass(format!("{} is the root", path.display())),
    }]
}

#[cfg(test)]
mod tests {
    use super::super::finding::Outcome;
    use super::*;

    #[test]
    fn a_file_system_of_the_containers_own_is_a_fault() {
        let of = |mount| {
            let mut facts = Facts::example();
            facts.mounts.bpffs = mount;
            bpffs(&facts).remove(0)
        };
        assert_eq!(of(Mount::Host).outcome, Outcome::Pass);
        assert_eq!(of(Mount::Missing).outcome, Outcome::Warn);
        assert_eq!(of(Mount::Unknown).outcome, Outcome::Skip);
        let private = of(Mount::Private);
        assert_eq!(private.outcome, Outcome::Fail);
        assert_eq!(private.remedy, "mount the host's /sys/fs/bpf there (hostPath)");
    }

    #[test]
    fn each_other_data_plane_is_named_with_the_way_to_end_it() {
        let mut facts = Facts::example();
        assert_eq!(foreign(&facts)[0].outcome, Outcome::Pass);
        let other = |path: Option<&str>, process| OtherView {
            bpffs_path: path.map(PathBuf::from),
            device: "eth0".to_owned(),
            hook: "tc_ingress".to_owned(),
            program_id: 1,
            process,
        };
        facts.mounts.others = vec![
            other(None, None),
            other(Some("/sys/fs/bpf/a"), None),
            other(Some("/sys/fs/bpf/b"), Some(7)),
        ];
        let found = foreign(&facts);
        assert!(found[0].found.contains("without visible pins"));
        assert_eq!(found[1].remedy, "millrace cleanup --bpffs-path /sys/fs/bpf/a");
        assert!(found[2].found.contains("agent 7 with --bpffs-path /sys/fs/bpf/b"));
    }

    #[test]
    fn a_control_group_that_is_not_the_root_is_a_warning() {
        let mut facts = Facts::example();
        assert_eq!(cgroup(&facts)[0].outcome, Outcome::Pass);
        facts.mounts.is_below = true;
        assert_eq!(cgroup(&facts)[0].outcome, Outcome::Warn);
        facts.mounts.cgroup = None;
        assert_eq!(cgroup(&facts)[0].outcome, Outcome::Warn);
        facts.settings.sockets.lb = SocketLb::Off;
        assert_eq!(cgroup(&facts)[0].outcome, Outcome::Skip);
    }
}
