//! `millrace status`.

use std::path::Path;

use proxy_common::config::HEARTBEAT_SECONDS;
use serde::Serialize;

use super::shown::Shown;
use super::table::{Table, mark};
use super::{CliError, Show, ipvs};
use crate::dataplane::ebpf::read::{CounterView, FailuresView, PinnedMaps, ReadError, StatusView, WayView};
use crate::dataplane::ebpf::{self, OtherView};
use crate::health::ReadyView;

/// The output of `millrace status -o json`: the fields of [`StatusView`], and beside them:
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Status {
    /// Heartbeat, attached programs, maps.
    #[serde(flatten)]
    view: StatusView,
    /// Whether the heartbeat is young enough for the programs to believe the agent.
    agent_alive: bool,
    /// Routes to other nodes.
    ways: Vec<WayView>,
    /// Packets by reason; all reasons.
    counters: Vec<CounterView>,
    /// Programs of other data planes of Millrace on this node's devices.
    others: Vec<OtherView>,
    /// The agent's own report; none if no agent answers.
    readiness: Option<ReadyView>,
}

/// The output during a mode change: the fields of [`Status`], and beside them:
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct WithIpvs {
    #[serde(flatten)]
    status: Status,
    /// The state of IPVS.
    ipvs: ipvs::StatusView,
}

/// The output if IPVS alone serves: the fields of [`ipvs::StatusView`], and beside them:
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct OfIpvs {
    #[serde(flatten)]
    view: ipvs::StatusView,
    /// The agent's own report; none if no agent answers.
    readiness: Option<ReadyView>,
}

/// The output for a running agent without a data plane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Waiting {
    /// Always.
    agent_alive: bool,
    /// The reasons for which it waits.
    readiness: ReadyView,
}

/// Prints the status.
pub fn run(show: &Show) -> Result<(), CliError> {
    let readiness = show.agent().map(|agent| agent.readiness);
    let of_maps = |maps: &PinnedMaps| read(maps, &show.bpffs_path, readiness.clone());
    match (Shown::read(show, of_maps, ipvs::status), readiness.clone()) {
        (Ok(Shown::Ebpf(status)), _) => show.print(&status, tables),
        (Ok(Shown::Ipvs(view)), readiness) => {
            show.print(&OfIpvs { view, readiness }, |of| vec![of_ipvs(&of.view, of.readiness.as_ref())])
        }
        (Ok(Shown::Both { ebpf, ipvs }), _) => show.print(&WithIpvs { status: ebpf, ipvs }, of_both),
        (Err(CliError::Read(ReadError::Absent { .. })), Some(readiness)) => {
            show.print(&Waiting { agent_alive: true, readiness }, |waiting| vec![of_waiting(waiting)])
        }
        (Err(error), _) => Err(error),
    }
}

/// Reads the status from the pinned maps.
fn read(maps: &PinnedMaps, bpffs_path: &Path, readiness: Option<ReadyView>) -> Result<Status, ReadError> {
    let view = maps.status()?;
    let agent_alive = view.heartbeat_age_seconds.is_some_and(|age| age <= u64::from(HEARTBEAT_SECONDS));
    let (ways, counters, others) = (maps.ways()?, maps.counters()?, ebpf::others(bpffs_path));
    Ok(Status { view, agent_alive, ways, counters, others, readiness })
}

/// Returns the text for people: devices, ways, counters that are not zero, maps.
fn tables(status: &Status) -> Vec<Table> {
    let of_maps = [summary(status), devices(status), ways(status), counters(status), maps(status)];
    let others = (!status.others.is_empty()).then(|| others(&status.others));
    of_maps.into_iter().chain(others).collect()
}

/// Returns the text for people during a mode change.
fn of_both(both: &WithIpvs) -> Vec<Table> {
    let of_ipvs = of_ipvs(&both.ipvs, both.status.readiness.as_ref());
    tables(&both.status).into_iter().chain([of_ipvs]).collect()
}

/// Returns the text for people about IPVS, whose failures only the agent knows.
fn of_ipvs(view: &ipvs::StatusView, readiness: Option<&ReadyView>) -> Table {
    ipvs::status_table(view, &fails_on(readiness, FailuresView::default()))
}

/// Returns the text for people before there is a data plane.
fn of_waiting(waiting: &Waiting) -> Table {
    let mut table = Table::new(&["AGENT", "FAILS ON"]);
    table.push([
        "runs, has no data plane yet".to_owned(),
        fails_on(Some(&waiting.readiness), FailuresView::default()),
    ]);
    table
}

fn summary(status: &Status) -> Table {
    let agent = match (status.agent_alive, status.view.heartbeat_age_seconds) {
        (_, None) => "never seen".to_owned(),
        (true, Some(age)) => format!("alive, {age} s ago"),
        (false, Some(age)) => format!("silent for {age} s; the data path goes on"),
    };
    let agent = match &status.readiness {
        Some(readiness) if !readiness.ready => format!("{agent}; runs, not ready"),
        _ => agent,
    };
    let resolved = status.ways.iter().filter(|way| way.resolved).count();
    let mut table = Table::new(&["AGENT", "SERVES", "LAYOUT", "WAYS RESOLVED", "FAILS ON"]);
    table.push([
        agent,
        match status.view.shared_seconds {
            Some(seconds) => format!("{}, since {seconds} s", status.view.serves),
            None => status.view.serves.to_string(),
        },
        status.view.layout_version.to_string(),
        format!("{resolved} of {}", status.ways.len()),
        fails_on(status.readiness.as_ref(), status.view.failures),
    ]);
    table
}

/// Returns the answer of a running agent, or else the record of the last one in the maps.
fn fails_on(readiness: Option<&ReadyView>, counted: FailuresView) -> String {
    let Some(readiness) = readiness else { return last_failures(counted) };
    let failing = readiness.failing.iter().map(|failing| {
        let cause = failing.cause.as_ref().map(|cause| format!(": {cause}")).unwrap_or_default();
        format!("{}: {}{cause}", failing.condition, failing.message)
    });
    // A failure of the whole node is a condition's message, too.
    let is_new = |failure: &&String| !readiness.failing.iter().any(|failing| failing.message == **failure);
    let others = readiness.failures.iter().filter(is_new).cloned();
    let ports = (counted.service_ports > 0).then(|| format!("service ports: {}", counted.service_ports));
    let texts: Vec<String> = failing.chain(others).chain(ports).collect();
    if texts.is_empty() { "nothing".to_owned() } else { texts.join("; ") }
}

/// Returns the record of the last agent in the maps. They hold no readiness, so an empty list does not mean
/// that the node is ready.
fn last_failures(failures: FailuresView) -> String {
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
        return UNKNOWN.to_owned();
    }
    format!("{UNKNOWN}; the last one failed on {}", texts.join(", "))
}

fn devices(status: &Status) -> Table {
    let mut table = Table::new(&["DEVICE", "INDEX", "HOOK", "MODE", "PROGRAM"]);
    for attached in &status.view.attached {
        table.push([
            attached.device.clone(),
            attached.device_index.to_string(),
            attached.hook.to_string(),
            attached.mode.to_string(),
            attached.program_id.to_string(),
        ]);
    }
    table
}

/// Returns the other data planes that serve beside this one.
fn others(others: &[OtherView]) -> Table {
    let mut table = Table::new(&["ALSO ATTACHED", "HOOK", "PROGRAM", "BPFFS PATH"]);
    for other in others {
        let path = other.bpffs_path.as_ref().map(|path| path.display().to_string());
        let path = path.unwrap_or_else(|| "not in sight".to_owned());
        table.push([other.device.clone(), other.hook.clone(), other.program_id.to_string(), path]);
    }
    table
}

fn ways(status: &Status) -> Table {
    let mut table = Table::new(&["WAY TO", "ID", "SOURCE", "DEVICE", "MTU", "RESOLVED", "XDP", "NEXT HOP"]);
    for way in &status.ways {
        table.push([
            way.target.to_string(),
            way.id.to_string(),
            way.source.map(|source| source.to_string()).unwrap_or_default(),
            way.device.to_string(),
            way.mtu.to_string(),
            mark(way.resolved),
            mark(way.xdp),
            if way.resolved { way.destination_mac.clone() } else { String::new() },
        ]);
    }
    table
}

fn counters(status: &Status) -> Table {
    let mut table = Table::new(&["PROGRAM", "COUNTER", "DROP", "PACKETS", "BYTES"]);
    for counter in status.counters.iter().filter(|counter| counter.packets > 0) {
        table.push([
            counter.program.to_string(),
            counter.reason.to_string(),
            mark(counter.drop),
            counter.packets.to_string(),
            counter.bytes.to_string(),
        ]);
    }
    table
}

fn maps(status: &Status) -> Table {
    let mut table = Table::new(&["MAP", "USED", "ENTRIES"]);
    for map in &status.view.maps {
        table.push([
            map.name.clone(),
            map.used.map(|used| used.to_string()).unwrap_or_default(),
            map.entries.to_string(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::FailingView;

    fn status(heartbeat_age_seconds: Option<u64>) -> Status {
        let view = StatusView {
            layout_version: 1,
            heartbeat_age_seconds,
            failures: FailuresView::default(),
            serves: "all connections".into(),
            shared_seconds: None,
            attached: Vec::new(),
            cluster_sources: Vec::new(),
            maps: Vec::new(),
        };
        let counter = |reason: &'static str, drop, packets, bytes| {
            let (program, reason) = ("xdp_ingress".into(), reason.into());
            CounterView { program, reason, drop, packets, bytes }
        };
        let counters = vec![counter("not_ours", false, 0, 0), counter("no_way", true, 2, 120)];
        Status {
            view,
            agent_alive: heartbeat_age_seconds == Some(3),
            ways: Vec::new(),
            counters,
            others: Vec::new(),
            readiness: None,
        }
    }

    #[test]
    fn where_ipvs_serves_the_status_says_so_and_whether_the_agent_lives() {
        let view = |agent_alive| ipvs::StatusView {
            mode: "ipvs",
            agent_alive,
            virtual_services: 4,
            servers: 9,
            draining: 1,
            connections: 17,
            addresses: 3,
            forged_tunnel: 5,
        };
        let words = |alive| {
            let table = ipvs::status_table(&view(alive), "nothing").to_string();
            table.lines().last().unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(words(true), "ipvs alive 4 9 1 17 3 5 nothing");
        assert_eq!(words(false), "ipvs gone; the data path goes on 4 9 1 17 3 5 nothing");
        let alone = status(Some(3));
        assert!(serde_json::to_value(&alone).unwrap().get("ipvs").is_none());
        let both = WithIpvs { status: alone.clone(), ipvs: view(true) };
        let json = serde_json::to_value(&both).unwrap();
        assert_eq!((&json["ipvs"]["servers"], &json["agent_alive"]), (&9.into(), &true.into()));
        assert_eq!(of_both(&both).len(), tables(&alone).len() + 1);
    }

    #[test]
    fn the_summary_says_whether_the_agent_lives() {
        assert!(summary(&status(Some(3))).to_string().contains("alive, 3 s ago"));
        assert!(summary(&status(Some(99))).to_string().contains("silent for 99 s"));
        assert!(summary(&status(None)).to_string().contains("never seen"));
    }

    #[test]
    fn the_summary_says_which_connections_are_served_while_the_mode_changes() {
        let alone = status(Some(3));
        assert!(summary(&alone).to_string().contains("all connections "));
        let view = StatusView {
            serves: "existing connections".into(),
            shared_seconds: Some(90),
            ..alone.view.clone()
        };
        let older = Status { view, ..alone };
        assert!(summary(&older).to_string().contains("existing connections, since 90 s"));
    }

    #[test]
    fn the_summary_names_what_the_last_agent_failed_on_and_that_none_answers() {
        assert!(summary(&status(Some(99))).to_string().trim_end().ends_with("unknown: no agent answers"));
        let some = FailuresView { device: 1, service_ports: 3, ..FailuresView::default() };
        let known = "unknown: no agent answers; the last one failed on";
        assert_eq!(last_failures(some), format!("{known} devices: 1, service ports: 3"));
        let view = FailuresView { node: 1, device: 2, map: 7, ..FailuresView::default() };
        assert_eq!(last_failures(view), format!("{known} all uplinks, devices: 2, entries of full maps: 7"));
    }

    #[test]
    fn another_data_plane_has_a_table_of_its_own() {
        let alone = status(Some(3));
        let other = |path: Option<&str>| OtherView {
            bpffs_path: path.map(Into::into),
            device: "eth0".to_owned(),
            hook: "tc_ingress".to_owned(),
            program_id: 17,
        };
        let beside = Status { others: vec![other(Some("/run/bpf")), other(None)], ..alone.clone() };
        assert_eq!(tables(&beside).len(), tables(&alone).len() + 1);
        let table = others(&beside.others).to_string();
        assert!(
            table.contains("eth0") && table.contains("/run/bpf") && table.contains("not in sight"),
            "{table}"
        );
    }

    #[test]
    fn an_agent_that_runs_names_what_keeps_its_node_from_being_ready() {
        let failing = |condition: &str, message: &str, cause: Option<&str>| FailingView {
            condition: condition.to_owned(),
            message: message.to_owned(),
            cause: cause.map(str::to_owned),
        };
        let view = ReadyView {
            ready: false,
            failing: vec![
                failing("source-listed", "not listed", Some("401 Unauthorized")),
                failing("data-plane", "no device is an uplink", None),
            ],
            failures: vec!["no device is an uplink".to_owned(), "there is no device eth9".to_owned()],
        };
        let words = "source-listed: not listed: 401 Unauthorized; data-plane: no device is an uplink; there is no device eth9";
        let counted = FailuresView { node: 1, service_ports: 2, ..FailuresView::default() };
        assert_eq!(fails_on(Some(&view), counted), format!("{words}; service ports: 2"));
        let table = of_waiting(&Waiting { agent_alive: true, readiness: view.clone() }).to_string();
        assert!(table.contains(words), "{table}");
        let waiting = Status { readiness: Some(view), ..status(Some(99)) };
        let table = summary(&waiting).to_string();
        assert!(table.contains("silent for 99 s") && table.contains("runs, not ready"), "{table}");
        let ready = ReadyView { ready: true, failing: Vec::new(), failures: Vec::new() };
        let well = Status { readiness: Some(ready), ..status(Some(3)) };
        assert!(summary(&well).to_string().trim_end().ends_with("nothing"));
        assert_eq!(serde_json::to_value(&well).unwrap()["readiness"]["ready"], true);
    }

    #[test]
    fn counters_that_are_zero_are_in_the_json_but_not_in_the_table() {
        let status = status(Some(3));
        let table = counters(&status).to_string();
        let rows: Vec<&str> = table.lines().collect();
        assert_eq!(rows.len(), 2, "{table}");
        assert!(rows[1].contains("no_way"), "{table}");
        let json = serde_json::to_value(&status).unwrap();
        assert_eq!(json["counters"].as_array().unwrap().len(), 2);
        assert_eq!((&json["agent_alive"], &json["layout_version"]), (&true.into(), &1.into()));
    }
}
