//! Events on Services and NetworkPolicies, where their owners look, and on this node's Node: `kubectl describe`.
//!
//! An observer of the reconcile task picks the problems that deserve an Event from this node. A
//! task with the API client writes it. The log has all problems, so neither task waits, and no
//! write is repeated.

mod election;
mod limit;
mod observer;
mod writer;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use kube::Client;
use tokio::sync::mpsc;

use crate::firewall::PolicyProblem;
use crate::health::Failure;
use crate::model::ServiceKey;
use crate::policy::NamespacedName;
use crate::reconcile::Observer;
pub use observer::EventObserver;
use writer::Writer;

/// Reports that may wait to be written. Later ones are dropped.
const WAITING: usize = 256;

/// Starts the task that writes Events in the name of `node`, and returns the observer that feeds
/// it.
///
/// It also reports health check node ports that could not be opened, what the checks of this node find, and problems of
/// NetworkPolicies. It ends with the observer.
#[must_use]
pub fn start(client: Client, node: &str, others: Others) -> Box<dyn Observer> {
    let (sender, reports) = mpsc::channel(WAITING);
    let observer = EventObserver::new(node, sender);
    let writer = Writer::new(client, node, observer.uids(), observer.electorate());
    tokio::spawn(writer.run(reports, others));
    Box::new(observer)
}

/// Problems that other tasks find.
#[derive(Debug)]
pub struct Others {
    /// Health check node ports that could not be opened.
    pub failures: mpsc::Receiver<Failure>,
    /// Problems of this node.
    pub of_node: mpsc::Receiver<NodeProblem>,
    /// Problems of NetworkPolicies, which all nodes see.
    pub of_policies: mpsc::Receiver<PolicyProblem>,
}

/// A problem of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeProblem {
    /// The Event's reason, one word in CamelCase.
    pub reason: &'static str,
    /// The text for people.
    pub note: String,
}

/// The object of an Event.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// A Service.
    Service(ServiceKey),
    /// A NetworkPolicy.
    NetworkPolicy(NamespacedName),
    /// This node's Node, by its name.
    Node(String),
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service(key) => key.fmt(f),
            Self::NetworkPolicy(name) => name.fmt(f),
            Self::Node(name) => f.write_str(name),
        }
    }
}

/// One problem of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The object.
    pub subject: Subject,
    /// Its `metadata.uid`.
    pub uid: Arc<str>,
    /// The Event's reason, one word in CamelCase.
    pub reason: &'static str,
    /// The action that failed, one word in CamelCase.
    pub action: &'static str,
    /// The text for people.
    pub note: String,
}

/// `metadata.uid` of all Services and of this node's Node: an Event without it belongs to no object. The lock is held for
/// one look-up.
#[derive(Clone, Debug, Default)]
struct Uids(Arc<Mutex<HashMap<Subject, Arc<str>>>>);

impl Uids {
    fn get(&self, subject: &Subject) -> Option<Arc<str>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(subject).cloned()
    }
    fn set(&self, subject: Subject, uid: Option<&str>) {
        let mut uids = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match uid {
            Some(uid) if uids.get(&subject).is_some_and(|old| **old == *uid) => {}
            Some(uid) => {
                uids.insert(subject, uid.into());
            }
            None => {
                uids.remove(&subject);
            }
        }
    }
}

#[cfg(test)]
mod tests;
