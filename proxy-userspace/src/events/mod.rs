//! Events on Services, where the owner of a Service looks: `kubectl describe service`.
//!
//! An observer of the reconcile task picks the problems that deserve an Event from this node. A
//! task with the API client writes it. The log has all problems, so neither task waits, and no
//! write is repeated.

mod election;
mod limit;
mod observer;
mod writer;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use kube::Client;
use tokio::sync::mpsc;

use crate::health::Failure;
use crate::model::ServiceKey;
use crate::reconcile::Observer;
pub use observer::EventObserver;
use writer::Writer;

/// Reports that may wait to be written. Later ones are dropped.
const WAITING: usize = 256;

/// Starts the task that writes Events in the name of `node`, and returns the observer that feeds
/// it.
///
/// It also reports health check node ports that could not be opened. It ends with the observer.
#[must_use]
pub fn start(client: Client, node: &str, failures: mpsc::Receiver<Failure>) -> Box<dyn Observer> {
    let (sender, reports) = mpsc::channel(WAITING);
    let observer = EventObserver::new(node, sender);
    tokio::spawn(Writer::new(client, node, observer.uids()).run(reports, failures));
    Box::new(observer)
}

/// One problem of one Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The Service.
    pub service: ServiceKey,
    /// Its `metadata.uid`.
    pub uid: Arc<str>,
    /// The Event's reason, one word in CamelCase.
    pub reason: &'static str,
    /// The action that failed, one word in CamelCase.
    pub action: &'static str,
    /// The text for people.
    pub note: String,
}

/// `metadata.uid` of all Services: an Event without it belongs to no object. The lock is held for
/// one look-up.
#[derive(Clone, Debug, Default)]
struct Uids(Arc<Mutex<HashMap<ServiceKey, Arc<str>>>>);

impl Uids {
    fn get(&self, service: &ServiceKey) -> Option<Arc<str>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(service).cloned()
    }
    fn set(&self, service: ServiceKey, uid: Option<&str>) {
        let mut uids = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match uid {
            Some(uid) if uids.get(&service).is_some_and(|old| **old == *uid) => {}
            Some(uid) => {
                uids.insert(service, uid.into());
            }
            None => {
                uids.remove(&service);
            }
        }
    }
}

#[cfg(test)]
mod tests;
