//! The paths /healthz, /livez and /readyz.
//!
//! Bodies and headers of /healthz and /livez are kube-proxy's since 1.34. /livez does not fail for
//! a cause that a restart would not remove. kube-proxy has no /readyz.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use jiff::Timestamp;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use serde::Serialize;

use super::ready::{Condition, Readiness};
use super::{Health, Verdict};

/// The condition of /livez that `?exclude=` leaves out.
const FIRST_SYNC: &str = "first-sync";

/// Counters of answers by status code.
#[derive(Clone, Debug, Default)]
pub struct ProbeCounters {
    /// Answers of /healthz.
    pub healthz: Family<[(&'static str, String); 1], Counter>,
    /// Answers of /livez.
    pub livez: Family<[(&'static str, String); 1], Counter>,
}

#[derive(Clone, Debug)]
struct Probes {
    health: Arc<Health>,
    counters: ProbeCounters,
}

/// Returns the paths of `--healthz-bind-address`.
pub fn router(health: Arc<Health>, counters: ProbeCounters) -> Router {
    Router::new()
        .route("/healthz", any(healthz))
        .route("/livez", any(livez))
        .fallback(crate::http::not_found)
        .with_state(Probes { health: health.clone(), counters })
        .merge(readyz_router(health))
}

/// Returns /readyz alone, for the metrics server.
pub fn readyz_router(health: Arc<Health>) -> Router {
    Router::new().route("/readyz", any(readyz)).with_state(health)
}

/// kube-proxy's answer, in the order of its fields.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Body {
    last_updated: String,
    current_time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_eligible: Option<bool>,
    healthy: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status>,
}

/// The state of each family. kube-proxy has a proxier for each; here one serves both.
#[derive(Debug, Serialize)]
struct Status {
    #[serde(rename = "IPv4")]
    v4: FamilyStatus,
    #[serde(rename = "IPv6")]
    v6: FamilyStatus,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct FamilyStatus {
    last_updated: String,
    healthy: bool,
}

impl Body {
    /// Follows kube-proxy's rule: the time is that of the answer if it is 200, else of the last sync.
    fn new(verdict: &Verdict, healthy: bool, node_eligible: Option<bool>) -> Self {
        let is_good = healthy && node_eligible != Some(false);
        let family =
            verdict.started.then(|| FamilyStatus { last_updated: go_time(verdict.applied), healthy });
        Self {
            last_updated: go_time(is_good.then_some(verdict.now).or(verdict.applied)),
            current_time: go_time(Some(verdict.now)),
            node_eligible,
            healthy,
            status: family.map(|family| Status { v4: family.clone(), v6: family }),
        }
    }
}

async fn healthz(State(probes): State<Probes>) -> Response {
    let verdict = probes.health.verdict();
    let status = status(verdict.healthy && verdict.eligible);
    probes.counters.healthz.get_or_create(&code(status)).inc();
    json(status, &Body::new(&verdict, verdict.healthy, Some(verdict.eligible)))
}

/// Answers /livez. With `?exclude=first-sync`, an agent that waits for its source is alive: a
/// restart would not help.
async fn livez(State(probes): State<Probes>, RawQuery(query): RawQuery) -> Response {
    let verdict = probes.health.verdict();
    let may_wait = parameters(query.as_deref()).any(|parameter| parameter == ("exclude", FIRST_SYNC));
    let is_alive = verdict.alive && (verdict.started || may_wait);
    let status = status(is_alive);
    probes.counters.livez.get_or_create(&code(status)).inc();
    json(status, &Body::new(&verdict, is_alive, None))
}

/// Answers with the conditions that fail; with `?verbose` with all, as the API server lists its
/// checks.
///
/// The causes are left out, since any client may ask and they may name servers and accounts.
async fn readyz(State(health): State<Arc<Health>>, RawQuery(query): RawQuery) -> Response {
    let readiness = health.readiness();
    let status = status(readiness.is_ready());
    if parameters(query.as_deref()).any(|(name, _)| name == "verbose") {
        return answer(status, "text/plain; charset=utf-8", checks(&readiness));
    }
    let failing = readiness.failing.iter().map(
        |failing| serde_json::json!({"condition": failing.condition.name(), "message": failing.message}),
    );
    json(status, &failing.collect::<Vec<_>>())
}

fn checks(readiness: &Readiness) -> String {
    let mut text = String::new();
    for condition in Condition::ALL {
        let name = condition.name();
        // Writing to a String can't fail.
        let _ = match readiness.message(condition) {
            None => writeln!(text, "[+]{name} ok"),
            Some(message) => writeln!(text, "[-]{name} failed: {message}"),
        };
    }
    text.push_str(if readiness.is_ready() { "readyz check passed\n" } else { "readyz check failed\n" });
    text
}

/// Returns names and values of a query. None of ours has characters that would be escaped.
fn parameters(query: Option<&str>) -> impl Iterator<Item = (&str, &str)> {
    let parameters = query.unwrap_or_default().split('&').filter(|parameter| !parameter.is_empty());
    parameters.map(|parameter| parameter.split_once('=').unwrap_or((parameter, "")))
}

fn json(status: StatusCode, body: &impl Serialize) -> Response {
    match serde_json::to_string(body) {
        Ok(body) => answer(status, "application/json", body),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

fn answer(status: StatusCode, content_type: &'static str, body: String) -> Response {
    let headers = [(header::CONTENT_TYPE, content_type), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (status, headers, body).into_response()
}

const fn status(good: bool) -> StatusCode {
    if good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

fn code(status: StatusCode) -> [(&'static str, String); 1] {
    [("code", status.as_str().to_owned())]
}

/// Formats a time in UTC as Go writes it into JSON. `None` is Go's zero time.
fn go_time(time: Option<Timestamp>) -> String {
    time.map_or_else(
        || "0001-01-01T00:00:00Z".to_owned(),
        |time| time.strftime("%Y-%m-%dT%H:%M:%S%.fZ").to_string(),
    )
}

#[cfg(test)]
#[path = "probes_tests.rs"]
mod tests;
