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
    let prefix = registry.sub_registry_with_prefix("millrace_controller");
    prefix.register("leader", "1 while this process has the Lease, else 0", figures.leads.clone());
    prefix.register(
        "services",
        "Services that get addresses of nodes, by state; 0 in a process without the Lease",
        figures.services.clone(),
    );
    prefix.register("status_writes", "Writes of Services' statuses, by result", figures.writes.clone());
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
