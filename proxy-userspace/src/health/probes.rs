//! /healthz and /livez: bodies and headers as kube-proxy's. What a new agent could not help does not fail /livez.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use jiff::Timestamp;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

use super::Health;

/// Answers by status code.
#[derive(Clone, Debug, Default)]
pub struct ProbeCounters {
    /// Of /healthz.
    pub healthz: Family<[(&'static str, String); 1], Counter>,
    /// Of /livez.
    pub livez: Family<[(&'static str, String); 1], Counter>,
}

#[derive(Clone, Debug)]
struct Probes {
    health: Arc<Health>,
    counters: ProbeCounters,
}

/// The paths of `--healthz-bind-address`.
pub fn router(health: Arc<Health>, counters: ProbeCounters) -> Router {
    Router::new()
        .route("/healthz", any(healthz))
        .route("/livez", any(livez))
        .fallback(crate::http::not_found)
        .with_state(Probes { health, counters })
}

async fn healthz(State(probes): State<Probes>) -> Response {
    let verdict = probes.health.verdict();
    let status = status(verdict.healthy && verdict.eligible);
    probes.counters.healthz.get_or_create(&code(status)).inc();
    // kube-proxy's rule: the time is that of the answer whenever the answer is 200, and else of the last change.
    let body = format!(
        r#"{{"lastUpdated": "{}","currentTime": "{}", "nodeEligible": {}}}"#,
        go_time(verdict.healthy.then_some(verdict.now).or(verdict.applied)),
        go_time(Some(verdict.now)),
        verdict.eligible
    );
    answer(status, body)
}

async fn livez(State(probes): State<Probes>) -> Response {
    let verdict = probes.health.verdict();
    let status = status(verdict.alive);
    probes.counters.livez.get_or_create(&code(status)).inc();
    let updated = go_time(verdict.alive.then_some(verdict.now).or(verdict.applied));
    let now = go_time(Some(verdict.now));
    answer(status, format!(r#"{{"lastUpdated": "{updated}","currentTime": "{now}"}}"#))
}

fn answer(status: StatusCode, body: String) -> Response {
    let headers = [(header::CONTENT_TYPE, "application/json"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (status, headers, body).into_response()
}

const fn status(good: bool) -> StatusCode {
    if good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

fn code(status: StatusCode) -> [(&'static str, String); 1] {
    [("code", status.as_str().to_owned())]
}

/// As Go prints a time in UTC; never is its zero time.
fn go_time(time: Option<Timestamp>) -> String {
    time.map_or_else(
        || "0001-01-01 00:00:00 +0000 UTC".to_owned(),
        |time| time.strftime("%Y-%m-%d %H:%M:%S%.f +0000 UTC").to_string(),
    )
}

#[cfg(test)]
#[path = "probes_tests.rs"]
mod tests;
