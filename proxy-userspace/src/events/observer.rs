//! Picks the problems that deserve an Event, and the node that writes it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tracing::warn;

use super::election::Electorate;
use super::{Report, Subject, Uids};
use crate::dataplane::{Check, Crowded, SnatPorts};
use crate::model::{Kind, Object, ObjectKey, Problem, ServiceKey, Severity, Topic, may_run_agent};
use crate::reconcile::{Observer, Synced};
use crate::source::{Change, SourceEvent};

/// Uid and reason.
type Matter = (Arc<str>, &'static str);

/// Hands problems of Services to the task that writes Events.
#[derive(Debug)]
pub struct EventObserver {
    node: String,
    electorate: Electorate,
    uids: Uids,
    /// Problems since the last sync, by uid and reason. All notes of one entry become one Event.
    found: BTreeMap<Matter, (Report, BTreeSet<String>)>,
    /// Services and backends that were short of SNAT ports at the last check.
    crowded: BTreeSet<(ServiceKey, SocketAddr)>,
    reports: mpsc::Sender<Report>,
    /// Reports that were dropped since the channel had room last.
    left_out: usize,
}

impl EventObserver {
    /// Returns an observer on this node that sends to `reports`.
    pub(super) fn new(node: &str, reports: mpsc::Sender<Report>) -> Self {
        Self {
            node: node.to_owned(),
            electorate: Electorate::new(node),
            uids: Uids::default(),
            found: BTreeMap::new(),
            crowded: BTreeSet::new(),
            reports,
            left_out: 0,
        }
    }

    /// Returns the uids of the known Services and of this node's Node, kept up to date.
    pub(super) fn uids(&self) -> Uids {
        self.uids.clone()
    }

    /// Returns the nodes that agree on the writer of a problem, kept up to date.
    pub(super) fn electorate(&self) -> Electorate {
        self.electorate.clone()
    }

    fn learn(&mut self, batch: &[SourceEvent]) {
        for event in batch {
            match event {
                SourceEvent::Change(Change::Upsert { object: Object::Service(service), .. }) => {
                    let key = ObjectKey::new(Kind::Service, &service.metadata);
                    self.uids.set(Subject::Service(key.service()), service.metadata.uid.as_deref());
                }
                SourceEvent::Change(Change::Upsert { object: Object::Node(node), .. }) => {
                    let name = node.metadata.name.as_deref().unwrap_or_default();
                    if name == self.node {
                        self.uids.set(Subject::Node(name.to_owned()), node.metadata.uid.as_deref());
                    }
                    if may_run_agent(node) { self.electorate.add(name) } else { self.electorate.retire(name) }
                }
                SourceEvent::Change(Change::Delete(key)) => match key.kind {
                    Kind::Service => self.uids.set(Subject::Service(key.service()), None),
                    Kind::Node => self.electorate.remove(&key.name),
                    Kind::EndpointSlice => {}
                },
                SourceEvent::Change(Change::Upsert { object: Object::EndpointSlice(_), .. })
                | SourceEvent::Listed(_)
                | SourceEvent::Problem(_) => {}
            }
        }
    }

    /// Sends a report without waiting. If the channel is full, the problem is in the log only.
    fn hand_over(&mut self, report: Report) {
        match self.reports.try_send(report) {
            Ok(()) if self.left_out > 0 => {
                warn!(
                    count = self.left_out,
                    "Events are written too slowly: these problems are in the log only"
                );
                self.left_out = 0;
            }
            Err(TrySendError::Full(_)) => self.left_out += 1,
            Ok(()) | Err(TrySendError::Closed(_)) => {}
        }
    }

    /// Returns the report of a problem; `None` where it concerns no Service, or another node
    /// reports it.
    fn report(&self, problem: &Problem) -> Option<Report> {
        let (reason, seen_by) = event_of(problem)?;
        let subject = Subject::Service(affected_service(problem)?);
        let uid = self.uids.get(&subject)?;
        let note = note_of(problem);
        let note = match seen_by {
            SeenBy::AllNodes if !self.electorate.elects_this_node(&uid) => return None,
            SeenBy::AllNodes => note,
            SeenBy::ThisNode => format!("node {}: {note}", self.node),
        };
        Some(Report { subject, uid, reason, action: "Serve", note })
    }
}

impl Observer for EventObserver {
    fn listing(&mut self, batch: &[SourceEvent]) {
        self.learn(batch);
    }

    fn received(&mut self, batch: &[SourceEvent]) {
        self.learn(batch);
    }

    fn problem(&mut self, problem: &Problem) {
        let Some(report) = self.report(problem) else { return };
        let of_matter = self.found.entry((report.uid.clone(), report.reason));
        let (_, notes) = of_matter.or_insert_with(|| (report.clone(), BTreeSet::new()));
        notes.insert(report.note);
    }

    fn synced(&mut self, _synced: &Synced<'_>) {
        for (report, notes) in std::mem::take(&mut self.found).into_values() {
            let note = notes.into_iter().collect::<Vec<_>>().join("; ");
            self.hand_over(Report { note, ..report });
        }
    }

    fn checked(&mut self, check: &Check) {
        let told = std::mem::take(&mut self.crowded);
        let mut news: BTreeMap<&ServiceKey, Vec<&Crowded>> = BTreeMap::new();
        for crowded in &check.snat.crowded {
            for service in &crowded.services {
                let matter = (service.clone(), crowded.backend);
                if !told.contains(&matter) {
                    news.entry(service).or_default().push(crowded);
                }
                self.crowded.insert(matter);
            }
        }
        for (service, backends) in news {
            let subject = Subject::Service(service.clone());
            let Some(uid) = self.uids.get(&subject) else { continue };
            let note = format!("node {}: {}", self.node, shortage(&check.snat, &backends));
            let reason = "SnatPortsRunningOut";
            self.hand_over(Report { subject, uid, reason, action: "Serve", note });
        }
    }
}

/// Describes the shortage of SNAT ports towards these backends.
fn shortage(ports: &SnatPorts, backends: &[&Crowded]) -> String {
    let used = backends.iter().map(|crowded| format!("{} to {}", crowded.used, crowded.backend));
    let used = used.collect::<Vec<_>>().join(", ");
    let size = ports.size;
    format!(
        "most of the {size} ports for connections to backends on other nodes (--snat-ports) are in use: {used}; \
         new connections begin to fail"
    )
}

#[derive(Clone, Copy)]
enum SeenBy {
    AllNodes,
    ThisNode,
}

/// Returns the Event's reason and who else sees the problem; `None` for a problem that passes by
/// itself.
fn event_of(problem: &Problem) -> Option<(&'static str, SeenBy)> {
    if problem.severity < Severity::Warning {
        return None;
    }
    match problem.topic {
        Topic::Field => Some(("InvalidField", SeenBy::AllNodes)),
        Topic::Annotation => Some(("InvalidAnnotation", SeenBy::AllNodes)),
        Topic::RefusedAddress => Some(("RefusedAddress", SeenBy::AllNodes)),
        Topic::RefusedHere => Some(("RefusedAddress", SeenBy::ThisNode)),
        Topic::Conflict => Some(("AddressConflict", SeenBy::AllNodes)),
        Topic::ConflictHere => Some(("AddressConflict", SeenBy::ThisNode)),
        Topic::Mismatch => None,
    }
}

fn affected_service(problem: &Problem) -> Option<ServiceKey> {
    let of_service = problem.object.as_ref().filter(|object| object.kind == Kind::Service);
    problem.service.clone().or_else(|| of_service.map(ObjectKey::service))
}

/// Returns the problem's text without the object, which the Event names already.
fn note_of(problem: &Problem) -> String {
    let object = problem.object.clone().filter(|object| object.kind != Kind::Service);
    Problem { file: None, object, ..problem.clone() }.to_string()
}
