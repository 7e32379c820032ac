//! The summary that `millrace status` shows to people.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use super::{OfIpvs, Report, Status, Waiting};
use crate::cli::ipvs;
use crate::cli::maps::{percent, readable};
use crate::cli::output::some_of;
use crate::dataplane::ebpf::OtherView;
use crate::dataplane::ebpf::read::{AttachedView, CounterView, FailuresView};
use crate::health::ReadyView;

/// A map is worth a line from this use on, in percent.
const CROWDED: u32 = 80;
/// The reasons of drops that are named.
const NAMED: usize = 3;

/// Lines with a label each, below a first line.
struct Summary(String);

/// Returns the summary where eBPF serves, and IPVS beside it during a mode change.
pub fn of_ebpf(node: &str, status: &Status, ipvs: Option<&ipvs::StatusView>) -> String {
    let modes = if ipvs.is_some() { "eBPF and IPVS" } else { "eBPF" };
    let mut summary = Summary::new(node, &status.report, modes);
    summary.line("agent", &agent(status));
    summary.line("uplinks", &devices(&status.view.attached));
    if let Some(hooks) = sockets_and_pods(&status.view.attached) {
        summary.line("inside", &hooks);
    }
    summary.line("serves", &serves(status));
    if !status.ways.is_empty() {
        let resolved = status.ways.iter().filter(|way| way.resolved).count();
        summary.line("ways", &format!("{resolved} of {} resolved", status.ways.len()));
    }
    summary.line("drops", &drops(&status.counters));
    summary.line("maps", &fullest(status));
    if let Some(ipvs) = ipvs {
        summary.line("ipvs", &of_servers(ipvs));
    }
    let mut problems = problems(status.report.readiness.as_ref(), status.view.failures);
    problems.extend(crowded(status));
    problems.extend(others(&status.others));
    summary.problems(&problems)
}

/// Returns the summary where IPVS alone serves. Its failures only the agent knows.
pub fn of_ipvs(node: &str, status: &OfIpvs) -> String {
    let mut summary = Summary::new(node, &status.report, "IPVS");
    let gone = if status.view.agent_alive { "alive" } else { "gone; the data path goes on" };
    summary.line("agent", &status.report.agent.as_ref().map_or_else(|| gone.to_owned(), ToString::to_string));
    summary.line("serves", &of_servers(&status.view));
    summary.line("drops", &format!("forged_tunnel {}", status.view.forged_tunnel));
    summary.problems(&problems(status.report.readiness.as_ref(), FailuresView::default()))
}

/// Returns the summary before there is a data plane.
pub fn of_waiting(node: &str, waiting: &Waiting) -> String {
    let mut summary = Summary::new(node, &waiting.report, "no data plane yet");
    if let Some(agent) = &waiting.report.agent {
        summary.line("agent", &agent.to_string());
    }
    summary.problems(&problems(waiting.report.readiness.as_ref(), FailuresView::default()))
}

impl Summary {
    fn new(node: &str, report: &Report, modes: &str) -> Self {
        let state = match &report.readiness {
            Some(view) if view.ready => "Ready",
            Some(_) => "not ready",
            None => "unknown, no agent answers",
        };
        Self(format!("{node}: {state}; {modes}\n"))
    }

    fn line(&mut self, label: &str, text: &str) {
        // Writing to a String fails never.
        let _ = writeln!(self.0, "  {label:9}{text}");
    }

    fn problems(mut self, problems: &[String]) -> String {
        match problems {
            [] => self.line("problems", "none"),
            problems => {
                self.line("problems", &problems.len().to_string());
                for problem in problems {
                    let _ = writeln!(self.0, "    {problem}");
                }
            }
        }
        self.0
    }
}

fn agent(status: &Status) -> String {
    let heartbeat = match status.view.heartbeat_age_seconds {
        Some(age) if status.agent_alive => format!("heartbeat {age} s ago"),
        Some(age) => format!("silent for {age} s"),
        None => "no heartbeat yet".to_owned(),
    };
    match &status.report.agent {
        Some(agent) => format!("{agent}; {heartbeat}"),
        None => format!("none answers; {heartbeat}; the data path goes on"),
    }
}

/// Returns each uplink with its hooks: `eth0 xdp native, tc tcx`.
fn devices(attached: &[AttachedView]) -> String {
    let mut devices: BTreeMap<(u32, &str), Vec<String>> = BTreeMap::new();
    for one in attached {
        let hook = match one.hook.as_ref() {
            "xdp" => "xdp",
            "tc_ingress" => "tc",
            _ => continue,
        };
        devices.entry((one.device_index, &one.device)).or_default().push(format!("{hook} {}", one.mode));
    }
    if devices.is_empty() {
        return "none".to_owned();
    }
    let texts = devices.into_iter().map(|((_, device), mut hooks)| {
        hooks.sort_unstable_by_key(|hook| Reverse(hook.clone()));
        format!("{device} ({})", hooks.join(", "))
    });
    texts.collect::<Vec<_>>().join(", ")
}

fn sockets_and_pods(attached: &[AttachedView]) -> Option<String> {
    let sockets = attached.iter().filter(|one| one.device_index == 0).count();
    let pods = attached.iter().filter(|one| one.hook == "tc_pod_in").count();
    let counted = [(sockets, "socket hooks"), (pods, "pod devices")];
    let texts = counted.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}"));
    let texts: Vec<String> = texts.collect();
    (!texts.is_empty()).then(|| texts.join(", "))
}

fn serves(status: &Status) -> String {
    let connections = match status.view.shared_seconds {
        Some(seconds) => format!("{}, since {seconds} s", status.view.serves),
        None => status.view.serves.to_string(),
    };
    let used = |name: &str| status.view.maps.iter().find(|map| map.name == name).and_then(|map| map.used);
    let backends: u32 = ["BACKENDS4", "BACKENDS6"].into_iter().filter_map(used).sum();
    format!("{connections}; {} Services, {backends} endpoints", status.services)
}

/// Returns the most frequent reasons of drops since the maps were made.
fn drops(counters: &[CounterView]) -> String {
    let mut reasons: BTreeMap<&str, u64> = BTreeMap::new();
    for counter in counters.iter().filter(|counter| counter.drop && counter.packets > 0) {
        *reasons.entry(&counter.reason).or_default() += counter.packets;
    }
    let mut reasons: Vec<(&str, u64)> = reasons.into_iter().collect();
    reasons.sort_by_key(|(_, packets)| Reverse(*packets));
    let named: Vec<String> =
        reasons.iter().take(NAMED).map(|(reason, packets)| format!("{reason} {packets}")).collect();
    match (named.len(), reasons.len().saturating_sub(NAMED)) {
        (0, _) => "none".to_owned(),
        (_, 0) => named.join(", "),
        (_, more) => format!("{}, {more} more reasons", named.join(", ")),
    }
}

fn fullest(status: &Status) -> String {
    let maps = status.view.maps.iter().filter_map(|map| Some((percent(map)?, map.name.as_str())));
    let fullest =
        maps.max().map(|(percent, name)| format!("; fullest {name} {percent}%")).unwrap_or_default();
    let memory: u64 = status.view.maps.iter().filter_map(|map| map.memory_bytes).sum();
    format!("layout {}, {}{fullest}", status.view.layout_version, readable(memory))
}

fn crowded(status: &Status) -> impl Iterator<Item = String> {
    let maps = status.view.maps.iter().filter_map(|map| Some((map, percent(map)?)));
    let crowded = maps.filter(|(_, percent)| *percent >= CROWDED);
    crowded.map(|(map, percent)| format!("map {} is {percent}% full ({} entries)", map.name, map.entries))
}

fn of_servers(view: &ipvs::StatusView) -> String {
    format!(
        "{} virtual services, {} servers ({} draining), {} connections, {} addresses",
        view.virtual_services, view.servers, view.draining, view.connections, view.addresses
    )
}

/// Returns a line for each other data plane of Millrace, with its programs and how to remove them.
fn others(others: &[OtherView]) -> Vec<String> {
    let mut paths: BTreeMap<Option<&PathBuf>, Vec<&OtherView>> = BTreeMap::new();
    for other in others {
        paths.entry(other.bpffs_path.as_ref()).or_default().push(other);
    }
    let line = |(path, programs): (Option<&PathBuf>, Vec<&OtherView>)| {
        let names: Vec<String> =
            programs.iter().map(|one| format!("{} on {}", one.hook, one.device)).collect();
        let what_to_do = match (path, programs.iter().find_map(|one| one.process)) {
            (None, _) => {
                "its pins are not in sight: end the container that mounted its BPF file system".to_owned()
            }
            (Some(path), Some(process)) => {
                format!("agent {process} with --bpffs-path {} runs: end it", path.display())
            }
            (Some(path), None) => format!("left over: `millrace cleanup --bpffs-path {}`", path.display()),
        };
        format!("another data plane is attached ({}); {what_to_do}", some_of(&names))
    };
    paths.into_iter().map(line).collect()
}

/// Returns the answer of a running agent, or else the record of the last one in the maps.
fn problems(readiness: Option<&ReadyView>, counted: FailuresView) -> Vec<String> {
    let Some(readiness) = readiness else { return last_failures(counted) };
    let failing = readiness.failing.iter().map(|failing| {
        let cause = failing.cause.as_ref().map(|cause| format!(": {cause}")).unwrap_or_default();
        format!("{}: {}{cause}", failing.condition, failing.message)
    });
    // A failure of the whole node is a condition's message, too.
    let is_new = |failure: &&String| !readiness.failing.iter().any(|failing| failing.message == **failure);
    let others = readiness.failures.iter().filter(is_new).cloned();
    let ports = (counted.service_ports > 0).then(|| format!("service ports: {}", counted.service_ports));
    failing.chain(others).chain(ports).collect()
}

/// Returns the record of the last agent in the maps. They hold no readiness, so an empty list does not mean
/// that the node is ready.
fn last_failures(failures: FailuresView) -> Vec<String> {
    const UNKNOWN: &str = "unknown: no agent answers";
    let counted = [
        ("devices", failures.device),
        ("entries of full maps", failures.map),
        ("service ports", failures.service_ports),
    ];
    let counted = counted.into_iter().filter(|(_, count)| *count > 0);
    let counted = counted.map(|(what, count)| format!("{what}: {count}"));
    let of_node = (failures.node > 0).then(|| "all uplinks".to_owned());
    let texts: Vec<String> = of_node.into_iter().chain(counted).collect();
    if texts.is_empty() {
        return vec![UNKNOWN.to_owned()];
    }
    vec![format!("{UNKNOWN}; the last one failed on {}", texts.join(", "))]
}

#[cfg(test)]
#[path = "summary_tests.rs"]
pub mod tests;
