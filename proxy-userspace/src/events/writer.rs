//! The task that writes Events.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tracing::{debug, warn};

use super::election::Electorate;
use super::limit::Limiter;
use super::{NodeProblem, Others, Report, Subject, Uids};
use crate::firewall::PolicyProblem;
use crate::health::Failure;
use crate::source::kubernetes::explain_refusal;

/// The reporting controller of our Events.
const CONTROLLER: &str = "millrace";
/// The API's limits, in bytes.
const LONGEST_NOTE: usize = 1024;
const LONGEST_INSTANCE: usize = 128;
/// The recorder counts a repeated Event within this time instead of writing another one.
const SERIES: Duration = Duration::from_mins(6);
/// An API server that takes longer is overloaded.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// Writes Events. A failed write is not repeated.
pub(super) struct Writer {
    client: Client,
    node: String,
    uids: Uids,
    electorate: Electorate,
    limiter: Limiter,
    recent: HashMap<Matter, Recent>,
    /// The last write's error, if it failed.
    failing: Option<String>,
    /// Reports that the limiter refused since it admitted one.
    left_out: usize,
}

/// Service and reason.
type Matter = (Arc<str>, &'static str);

/// The last Event of a Service and reason.
///
/// It has a recorder of its own. A recorder counts by reason and keeps the first note, so a changed
/// note would be counted and not shown.
struct Recent {
    recorder: Recorder,
    note: String,
    written: Instant,
}

impl Writer {
    pub fn new(client: Client, node: &str, uids: Uids, electorate: Electorate) -> Self {
        Self {
            client,
            node: node.to_owned(),
            uids,
            electorate,
            limiter: Limiter::new(Instant::now()),
            recent: HashMap::new(),
            failing: None,
            left_out: 0,
        }
    }

    /// Runs until all senders of reports are gone.
    pub async fn run(mut self, mut reports: mpsc::Receiver<Report>, mut others: Others) {
        loop {
            let report = tokio::select! {
                report = reports.recv() => match report {
                    Some(report) => Some(report),
                    None => break,
                },
                Some(failure) = others.failures.recv() => self.report_of(failure),
                Some(problem) = others.of_node.recv() => self.report_of_node(problem),
                Some(problem) = others.of_policies.recv() => self.report_of_policy(problem),
            };
            if let Some(report) = report {
                self.write_report(report).await;
            }
        }
    }

    /// Returns the report of a failure, in kube-proxy's words.
    fn report_of(&self, failure: Failure) -> Option<Report> {
        let Failure { service, port, error } = failure;
        let subject = Subject::Service(service.clone());
        let uid = self.uids.get(&subject)?;
        let note =
            format!("node {} failed to start healthcheck \"{service}\" on port {port}: {error}", self.node);
        Some(Report { subject, uid, reason: "FailedToStartServiceHealthcheck", action: "Listen", note })
    }

    /// Returns the report of a problem of this node. It needs the Node's uid.
    fn report_of_node(&self, problem: NodeProblem) -> Option<Report> {
        let subject = Subject::Node(self.node.clone());
        let uid = self.uids.get(&subject)?;
        Some(Report { subject, uid, reason: problem.reason, action: "Check", note: problem.note })
    }

    /// Returns the report of a problem of a policy; `None` where another node reports it.
    fn report_of_policy(&self, problem: PolicyProblem) -> Option<Report> {
        let PolicyProblem { policy, uid, reason, note } = problem;
        self.electorate.elects_this_node(&uid).then(|| Report {
            subject: Subject::NetworkPolicy(policy),
            uid: uid.into(),
            reason,
            action: "Enforce",
            note,
        })
    }

    async fn write_report(&mut self, report: Report) {
        let now = Instant::now();
        if !self.limiter.admits(&report.uid, now) {
            if self.left_out == 0 {
                warn!("too many Events: further problems are in the log only");
            }
            self.left_out += 1;
            return;
        }
        self.left_out = 0;
        let written = timeout(WRITE_TIMEOUT, self.write(&report, now)).await;
        let wrong = match written {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(explain_refusal(&error)),
            Err(_) => Some(format!("no answer within {} s", WRITE_TIMEOUT.as_secs())),
        };
        match wrong {
            None => {
                debug!(object = %report.subject, reason = report.reason, note = report.note, "Event written");
                self.failing = None;
            }
            Some(wrong) => {
                // The Event to count on may not exist.
                self.recent.remove(&(report.uid, report.reason));
                if self.failing.is_none() {
                    warn!(error = one_line(&wrong), "Events can't be written: problems are in the log only");
                }
                self.failing = Some(wrong);
            }
        }
    }

    async fn write(&mut self, report: &Report, now: Instant) -> Result<(), kube::Error> {
        self.recent.retain(|_, recent| now < recent.written + SERIES);
        let matter = (report.uid.clone(), report.reason);
        let note = shorten(&report.note, LONGEST_NOTE);
        let again = self.recent.get(&matter).filter(|recent| recent.note == note);
        let recorder = again.map_or_else(|| self.recorder(), |recent| recent.recorder.clone());
        let event = Event {
            type_: EventType::Warning,
            reason: report.reason.to_owned(),
            note: Some(note.to_owned()),
            action: report.action.to_owned(),
            secondary: None,
        };
        recorder.publish(&event, &reference(report)).await?;
        self.recent.insert(matter, Recent { recorder, note: note.to_owned(), written: now });
        Ok(())
    }

    fn recorder(&self) -> Recorder {
        let instance = shorten(&self.node, LONGEST_INSTANCE).to_owned();
        let reporter = Reporter { controller: CONTROLLER.to_owned(), instance: Some(instance) };
        Recorder::new(self.client.clone(), reporter)
    }
}

fn reference(report: &Report) -> ObjectReference {
    let (version, kind, namespace, name) = match &report.subject {
        Subject::Service(key) => ("v1", "Service", Some(key.namespace.clone()), key.name.clone()),
        Subject::NetworkPolicy(name) => {
            ("networking.k8s.io/v1", "NetworkPolicy", Some(name.namespace.clone()), name.name.clone())
        }
        Subject::Node(name) => ("v1", "Node", None, name.clone()),
    };
    ObjectReference {
        api_version: Some(version.to_owned()),
        kind: Some(kind.to_owned()),
        name: Some(name),
        namespace,
        uid: Some(report.uid.to_string()),
        ..ObjectReference::default()
    }
}

fn shorten(text: &str, bytes: usize) -> &str {
    text.get(..text.floor_char_boundary(bytes)).unwrap_or(text)
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
