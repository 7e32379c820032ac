//! /metrics, /proxyMode, /healthz and /configz.

use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use prometheus_client::registry::Registry;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;
use tracing::warn;

use super::configz::{configuration, wanted};
use super::text::Format;
use super::{FirewallMetrics, KernelMetrics, Metrics, ProcessMetrics};
use crate::config::Settings;
use crate::dataplane::Mode;

/// The state behind the paths of `--metrics-bind-address`.
#[derive(Clone, Debug)]
pub struct Pages {
    /// One scrape at a time: each reads all maps.
    registry: Arc<Mutex<Registry>>,
    /// The mode that serves, and the mode of `--proxy-mode`, which is shown until the former is known.
    mode: Arc<OnceLock<Mode>>,
    wanted: Mode,
    /// The effective configuration, as JSON text.
    configuration: Arc<str>,
}

impl Pages {
    /// Returns the pages of an agent with these settings.
    #[must_use]
    pub fn new(settings: &Settings, metrics: &Metrics) -> Self {
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let kernel = KernelMetrics::new(settings.bpffs.clone());
        registry.register_collector(Box::new(kernel));
        let firewall = FirewallMetrics::new(settings.bpffs.clone(), metrics.firewall.clone());
        registry.register_collector(Box::new(firewall));
        registry.register_collector(Box::new(ProcessMetrics));
        Self {
            registry: Arc::new(Mutex::new(registry)),
            mode: metrics.mode.clone(),
            wanted: wanted(settings.proxy_mode),
            configuration: configuration(settings).to_string().into(),
        }
    }

    fn mode(&self) -> Mode {
        self.mode.get().copied().unwrap_or(self.wanted)
    }
}

/// Returns the paths of `--metrics-bind-address`.
pub fn router(pages: Pages) -> Router {
    Router::new()
        .route("/metrics", any(metrics))
        .route("/proxyMode", any(async |State(pages): State<Pages>| text(pages.mode().name())))
        .route("/healthz", any(async || text("ok")))
        .route("/configz", any(configz))
        .fallback(crate::http::not_found)
        .with_state(pages)
}

async fn metrics(State(pages): State<Pages>, headers: HeaderMap) -> Response {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let format = Format::accepted(accept);
    let registry = pages.registry.lock_owned().await;
    // A scrape makes a system call for each of thousands of Services, so it has a thread of its own.
    match spawn_blocking(move || format.write(&registry)).await {
        Ok(Ok(text)) => ([(header::CONTENT_TYPE, format.content_type())], text).into_response(),
        failed => {
            warn!("metrics can't be written: {failed:?}");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

async fn configz(State(pages): State<Pages>) -> Response {
    with_type("application/json", pages.configuration.to_string())
}

fn text(text: &'static str) -> Response {
    with_type("text/plain; charset=utf-8", text.to_owned())
}

fn with_type(content_type: &'static str, body: String) -> Response {
    let headers = [(header::CONTENT_TYPE, content_type), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (headers, body).into_response()
}
