//! What a source shows of itself while it works: for metrics, and for whoever asks why a node is not ready.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

/// Requests by status code, method, and the server's host and port; kube-proxy's labels.
type Requests = Family<[(&'static str, String); 3], Counter>;

/// The signs of one source. Clones show the same.
#[derive(Clone, Debug, Default)]
pub struct Signs {
    /// 1 while everything was listed and nothing keeps the source from following it.
    pub synced: Gauge,
    /// When it was last heard of, in seconds since 1970.
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
    trouble: Option<String>,
}

impl Signs {
    /// The source has listed what there is; `is_complete` where it could read all of it.
    pub fn list(&self, is_complete: bool) {
        self.change(|state| state.is_listed = is_complete);
    }

    /// Something came from where the objects are.
    pub fn hear(&self) {
        self.last_event.set(Timestamp::now().as_duration().as_secs_f64());
    }

    /// A listing or a watch of a resource ended in an error.
    pub fn count_error(&self, resource: &'static str) {
        self.watch_errors.get_or_create(&[("resource", resource)]).inc();
    }

    /// A request was answered with this code, or not at all: `<error>`, as client-go has it.
    pub fn count_request(&self, code: String, method: String, host: String) {
        self.requests.get_or_create(&[("code", code), ("method", method), ("host", host)]).inc();
    }

    /// What keeps the source from going on now; `None` = nothing.
    pub fn set_trouble(&self, trouble: Option<String>) {
        self.change(|state| state.trouble = trouble);
    }

    /// What keeps the source from going on.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.state().trouble.clone()
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state();
        change(&mut state);
        self.synced.set(i64::from(state.is_listed && state.trouble.is_none()));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change leaves it whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
