//! `millrace status`.

mod summary;

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use proxy_common::config::HEARTBEAT_SECONDS;
use serde::Serialize;

use super::error::CliError;
use super::ipvs;
use super::output::{Document, OutputArgs, WatchArgs, duration};
use super::place::Place;
use super::ready::reasons;
use super::shown::Shown;
use super::version::Agent;
use crate::config::this_node;
use crate::dataplane::ebpf::read::{CounterView, PinnedMaps, ReadError, StatusView, WayView};
use crate::dataplane::ebpf::{self, OtherView};
use crate::health::{AgentView, ReadyView};

/// The pause between two questions of `--wait`.
const PAUSE: Duration = Duration::from_millis(500);

/// Arguments of `millrace status`.
#[derive(Args, Clone, Debug)]
pub struct StatusArgs {
    /// Wait until this holds; status 4 if it does not within --timeout
    #[arg(long, value_name = "CONDITION", value_enum, ignore_case = true)]
    wait: Option<Condition>,
    /// Longest time of --wait
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration)]
    timeout: Duration,
    #[command(flatten)]
    form: OutputArgs,
    #[command(flatten)]
    watch: WatchArgs,
    #[command(flatten)]
    place: Place,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Condition {
    /// The agent answers and all its conditions hold
    #[value(name = "Ready")]
    Ready,
}

/// The output of `millrace status -o json`: the fields of [`StatusView`], and beside them:
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Status {
    /// Heartbeat, attached programs, maps.
    #[serde(flatten)]
    view: StatusView,
    /// Whether the heartbeat is young enough for the programs to believe the agent.
    agent_alive: bool,
    /// Number of Services.
    services: usize,
    /// Routes to other nodes.
    ways: Vec<WayView>,
    /// Packets by reason; all reasons.
    counters: Vec<CounterView>,
    /// Programs of other data planes of Millrace on this node's devices.
    others: Vec<OtherView>,
    /// The agent's own report.
    #[serde(flatten)]
    report: Report,
}

/// What a running agent says about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Report {
    /// The agent; none if no agent answers.
    agent: Option<Agent>,
    /// Its readiness; none if no agent answers.
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
    /// The agent's own report.
    #[serde(flatten)]
    report: Report,
}

/// The output for a running agent without a data plane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Waiting {
    /// Always.
    agent_alive: bool,
    /// The agent's own report.
    #[serde(flatten)]
    report: Report,
}

/// Prints the status.
pub fn run(args: &StatusArgs) -> Result<(), CliError> {
    if args.wait == Some(Condition::Ready) {
        wait_until_ready(&args.place, args.timeout)?;
    }
    args.watch.show(|| args.form.document(&args.place, &document(&args.place)?))
}

/// Fails with the conditions that do not hold when the time is over.
fn wait_until_ready(place: &Place, timeout: Duration) -> Result<(), CliError> {
    let end = Instant::now() + timeout;
    loop {
        let why = match place.agent().map(|agent| agent.readiness) {
            Some(view) if view.ready => return Ok(()),
            Some(view) => reasons(&view).join("; "),
            None => "no agent answers".to_owned(),
        };
        if Instant::now() >= end {
            return Err(CliError::NotReady(why));
        }
        thread::sleep(PAUSE.min(end.saturating_duration_since(Instant::now())));
    }
}

fn document(place: &Place) -> Result<Document, CliError> {
    let agent = place.agent();
    let node = agent.as_ref().and_then(|agent| agent.node.clone()).unwrap_or_else(this_node);
    let report = Report::of(agent);
    let of_maps = |maps: &PinnedMaps| read(maps, &place.bpffs_path, report.clone());
    match Shown::read(place, of_maps, ipvs::status) {
        Ok(Shown::Ebpf(status)) => Document::lines("Status", &status, summary::of_ebpf(&node, &status, None)),
        Ok(Shown::Ipvs(view)) => {
            let status = OfIpvs { view, report };
            Document::lines("Status", &status, summary::of_ipvs(&node, &status))
        }
        Ok(Shown::Both { ebpf, ipvs }) => {
            let text = summary::of_ebpf(&node, &ebpf, Some(&ipvs));
            Document::lines("Status", &WithIpvs { status: ebpf, ipvs }, text)
        }
        Err(CliError::Read(ReadError::Absent { .. })) if report.agent.is_some() => {
            let waiting = Waiting { agent_alive: true, report };
            Document::lines("Status", &waiting, summary::of_waiting(&node, &waiting))
        }
        Err(error) => Err(error),
    }
}

/// Reads the status from the pinned maps.
fn read(maps: &PinnedMaps, bpffs_path: &Path, report: Report) -> Result<Status, ReadError> {
    let view = maps.status()?;
    Ok(Status {
        agent_alive: view.heartbeat_age_seconds.is_some_and(|age| age <= u64::from(HEARTBEAT_SECONDS)),
        view,
        services: maps.service_names()?.len(),
        ways: maps.ways()?,
        counters: maps.counters()?,
        others: ebpf::others(bpffs_path),
        report,
    })
}

impl Report {
    fn of(agent: Option<AgentView>) -> Self {
        Self { agent: agent.as_ref().map(Agent::of), readiness: agent.map(|agent| agent.readiness) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_an_agent_the_wait_ends_with_the_reason() {
        let place = Place { bpffs_path: format!("/sys/fs/bpf/nobody/{}", std::process::id()).into() };
        let error = wait_until_ready(&place, Duration::from_millis(20)).unwrap_err();
        assert_eq!(error.to_string(), "this node is not ready: no agent answers");
    }

    #[test]
    fn the_parts_of_the_json_stand_side_by_side() {
        let report = Report { agent: None, readiness: None };
        let status = summary::tests::status(Some(3), report.clone());
        let json = serde_json::to_value(&status).unwrap();
        assert_eq!((&json["agent_alive"], &json["layout_version"]), (&true.into(), &5.into()));
        assert_eq!(json["counters"].as_array().unwrap().len(), 3, "counters that are zero, too");
        assert!(json["agent"].is_null() && json.get("ipvs").is_none());
        let view = summary::tests::ipvs_view(true);
        let both = serde_json::to_value(WithIpvs { status, ipvs: view.clone() }).unwrap();
        assert_eq!((&both["ipvs"]["servers"], &both["agent_alive"]), (&9.into(), &true.into()));
        let alone = serde_json::to_value(OfIpvs { view, report }).unwrap();
        assert_eq!((&alone["mode"], &alone["readiness"]), (&"ipvs".into(), &serde_json::Value::Null));
    }
}
