//! Events on Services: what is wrong with a Service is told where its owner looks (`kubectl describe service`).
//!
//! An observer of the reconcile task picks what is worth an Event and whether this node is the one to tell it; a task
//! with the API client writes it. The log has everything in any case, so nothing here waits, and nothing is tried again.

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

/// What may wait to be written. More than that says no more.
const WAITING: usize = 256;

/// Begins to write Events in the name of `node`, of what the returned observer finds and of health check node ports that
/// could not be opened. Ends with the observer.
#[must_use]
pub fn start(client: Client, node: &str, failures: mpsc::Receiver<Failure>) -> Box<dyn Observer> {
    let (sender, reports) = mpsc::channel(WAITING);
    let observer = EventObserver::new(node, sender);
    tokio::spawn(Writer::new(client, node, observer.uids()).run(reports, failures));
    Box::new(observer)
}

/// One thing to tell of one Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The Service.
    pub service: ServiceKey,
    /// Its `metadata.uid`.
    pub uid: Arc<str>,
    /// Why, in one word of the API's style.
    pub reason: &'static str,
    /// What was to be done, in one word of the API's style.
    pub action: &'static str,
    /// What a person reads.
    pub note: String,
}

/// `metadata.uid` of all Services, without which an Event belongs to no object. The lock is held for one look-up.
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
