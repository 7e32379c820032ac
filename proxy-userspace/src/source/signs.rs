//! The visible state of a source, for metrics and for the readiness of the node.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

/// Requests by status code, method, and the server's host and port. The labels are kube-proxy's.
type Requests = Family<[(&'static str, String); 3], Counter>;

/// The state of one source. All clones share it.
#[derive(Clone, Debug, Default)]
pub struct Signs {
    /// 1 while everything was listed and the source can follow changes.
    pub synced: Gauge,
    /// When the source last heard from its server or directory, in seconds since 1970.
    pub last_event: Gauge<f64, AtomicU64>,
    /// Listings and watches that ended in an error, by resource.
    pub watch_errors: Family<[(&'static str, &'static str); 1], Counter>,
    /// Requests to an API server.
    pub requests: Requests,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    is_listed: bool,
    /// The trouble of each group of kinds.
    troubles: BTreeMap<&'static str, String>,
}

impl Signs {
    /// Records the end of a listing; `is_complete` if the source could read all objects.
    pub fn list(&self, is_complete: bool) {
        self.change(|state| state.is_listed = is_complete);
    }

    /// Records a sign of life from the API server or the directory.
    pub fn hear(&self) {
        self.last_event.set(Timestamp::now().as_duration().as_secs_f64());
    }

    /// Counts a listing or watch of a resource that ended in an error.
    pub fn count_error(&self, resource: &'static str) {
        self.watch_errors.get_or_create(&[("resource", resource)]).inc();
    }

    /// Counts a request by its answer's status code; `<error>` for no answer, as in client-go.
    pub fn count_request(&self, code: String, method: String, host: String) {
        self.requests.get_or_create(&[("code", code), ("method", method), ("host", host)]).inc();
    }

    /// Sets the present trouble of the source; `None` = none.
    pub fn set_trouble(&self, trouble: Option<String>) {
        self.set_trouble_of("", trouble);
    }

    /// Sets the present trouble of a group of kinds, which another group can't end.
    pub(super) fn set_trouble_of(&self, group: &'static str, trouble: Option<String>) {
        self.change(|state| {
            match trouble {
                Some(trouble) => state.troubles.insert(group, trouble),
                None => state.troubles.remove(group),
            };
        });
    }

    /// Returns the present trouble of the source.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.state().troubles.values().next().cloned()
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state();
        change(&mut state);
        self.synced.set(i64::from(state.is_listed && state.troubles.is_empty()));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change leaves the state whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
