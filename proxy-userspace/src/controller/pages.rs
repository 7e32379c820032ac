//! /healthz, /readyz and /metrics of `--bind-address`.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::source::Signs;

type Label = [(&'static str, &'static str); 1];

/// The metrics: the name that people query, and the help text.
pub const METRICS: [(&str, &str); 3] = [
    ("millrace_controller_leader", "1 while this process has the Lease, else 0"),
    (
        "millrace_controller_services",
        "Services that get addresses of nodes, by state; 0 in a process without the Lease",
    ),
    ("millrace_controller_status_writes_total", "Writes of Services' statuses, by result"),
];

/// The controller's figures. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// 1 while this process leads.
    pub leads: Gauge,
    /// Services of the controller's classes, by state; zero in a process that doesn't lead.
    pub services: Family<Label, Gauge>,
    /// Writes of statuses, by result.
    pub writes: Family<Label, Counter>,
}

#[derive(Clone, Debug)]
struct Pages {
    registry: Arc<Registry>,
    signs: Signs,
}

/// Returns the paths of `--bind-address`.
pub fn router(figures: &Figures, signs: Signs) -> Router {
    let mut registry = Registry::default();
    let [leads, services, writes] = METRICS;
    registry.register(leads.0, leads.1, figures.leads.clone());
    registry.register(services.0, services.1, figures.services.clone());
    // The registry adds the suffix of a counter.
    registry.register(writes.0.trim_end_matches("_total"), writes.1, figures.writes.clone());
    let pages = Pages { registry: Arc::new(registry), signs };
    Router::new()
        .route("/healthz", any(async || "ok"))
        .route("/readyz", any(ready))
        .route("/metrics", any(metrics))
        .fallback(crate::http::not_found)
        .with_state(pages)
}

/// A process that doesn't lead is ready, too: it knows all objects, and can take over.
async fn ready(State(pages): State<Pages>) -> Response {
    if pages.signs.synced.get() == 1 {
        return "ok".into_response();
    }
    let why = pages.signs.trouble().unwrap_or_else(|| "not everything was listed yet".to_owned());
    (StatusCode::SERVICE_UNAVAILABLE, why).into_response()
}

async fn metrics(State(pages): State<Pages>) -> Response {
    let mut text = String::new();
    match encode(&mut text, &pages.registry) {
        Ok(()) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::tests::{get, start};

    #[tokio::test]
    async fn a_scrape_has_each_metric_and_readiness_follows_the_source() {
        let (figures, signs) = (Figures::default(), Signs::default());
        figures.services.get_or_create(&[("state", "served")]).set(3);
        figures.writes.get_or_create(&[("result", "ok")]).inc();
        let (address, _stop) = start(router(&figures, signs.clone())).await;
        let text = get(address, "/metrics").await;
        for (name, help) in METRICS {
            let samples = text.lines().filter(|line| line.starts_with(name)).count();
            assert!(samples == 1 && text.contains(help), "{name}: {text}");
        }
        let answer = get(address, "/readyz").await;
        assert!(
            answer.starts_with("HTTP/1.1 503") && answer.ends_with("not everything was listed yet"),
            "{answer}"
        );
        signs.list(true);
        assert!(get(address, "/readyz").await.starts_with("HTTP/1.1 200"));
        signs.set_trouble(Some("the API server refuses".to_owned()));
        let answer = get(address, "/readyz").await;
        assert!(answer.starts_with("HTTP/1.1 503") && answer.ends_with("the API server refuses"), "{answer}");
    }
}
