//! Health check node ports, where load balancers ask whether this node has endpoints of a Service.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::{info, warn};

use super::Health;
use crate::http::serve;
use crate::model::{HealthCheck, ServiceKey};

/// Time until another attempt to open a port.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
const WEIGHT: HeaderName = HeaderName::from_static("x-load-balancing-endpoint-weight");

/// The ports to open, and the addresses to open them on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Targets {
    /// The health check of each Service.
    pub checks: BTreeMap<ServiceKey, HealthCheck>,
    /// Addresses of this node.
    pub addresses: BTreeSet<IpAddr>,
}

/// A port that could not be opened, for an Event `FailedToStartServiceHealthcheck` on its Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The Service.
    pub service: ServiceKey,
    /// Its `spec.healthCheckNodePort`.
    pub port: u16,
    /// The kernel's error, with the address.
    pub error: String,
}

/// The port of a Service on one address.
type Place = (ServiceKey, SocketAddr);

/// Opens and closes ports as `targets` says, until `stop` is closed.
///
/// A port that can't be opened is reported once, and tried again until it can.
pub async fn serve_ports(
    mut targets: watch::Receiver<Targets>,
    health: Arc<Health>,
    failures: mpsc::Sender<Failure>,
    mut stop: watch::Receiver<()>,
) {
    let mut open = BTreeMap::new();
    let mut failed: BTreeMap<Place, Failure> = BTreeMap::new();
    loop {
        let places = targets.borrow_and_update().places();
        // Closing comes first: a port may go from one Service to another.
        close(&mut open, &places).await;
        failed.retain(|place, _| places.contains(place));
        for place in &places {
            if open.contains_key(place) {
                continue;
            }
            let answer =
                Answer { service: place.0.clone(), targets: targets.clone(), health: health.clone() };
            match bind(place.1, answer, &stop).await {
                Ok(server) => {
                    info!(service = %place.0, address = %place.1, "health check node port is open");
                    failed.remove(place);
                    open.insert(place.clone(), server);
                }
                Err(wrong) => report_failure(&mut failed, &failures, place, &wrong),
            }
        }
        tokio::select! {
            _ = stop.changed() => break,
            changed = targets.changed() => if changed.is_err() { break },
            () = sleep(RETRY_INTERVAL), if !failed.is_empty() => {}
        }
    }
    // Each server ends by itself after its last answer.
    for (_, mut server) in open {
        while server.join_next().await.is_some() {}
    }
}

impl Targets {
    fn places(&self) -> BTreeSet<Place> {
        let of_service = |(service, check): (&ServiceKey, &HealthCheck)| {
            let (service, port) = (service.clone(), check.port);
            self.addresses.iter().map(move |address| (service.clone(), SocketAddr::new(*address, port)))
        };
        self.checks.iter().flat_map(of_service).collect()
    }
}

async fn close(open: &mut BTreeMap<Place, JoinSet<()>>, places: &BTreeSet<Place>) {
    let gone: Vec<_> = open.extract_if(.., |place, _| !places.contains(place)).collect();
    for ((service, address), mut server) in gone {
        server.shutdown().await;
        info!(%service, %address, "health check node port is closed");
    }
}

/// Starts a server. Dropping it ends its connections.
async fn bind(address: SocketAddr, answer: Answer, stop: &watch::Receiver<()>) -> io::Result<JoinSet<()>> {
    let listener = TcpListener::bind(address).await?;
    let router = Router::new().fallback(answer_check).with_state(answer);
    let mut server = JoinSet::new();
    server.spawn(serve(listener, router, stop.clone()));
    Ok(server)
}

fn report_failure(
    failed: &mut BTreeMap<Place, Failure>,
    failures: &mpsc::Sender<Failure>,
    place: &Place,
    wrong: &io::Error,
) {
    let (service, address) = place;
    let error = format!("listen on {address}: {wrong}");
    let failure = Failure { service: service.clone(), port: address.port(), error };
    if failed.get(place) == Some(&failure) {
        return;
    }
    warn!(%service, error = failure.error, "health check node port can't be opened; tried again");
    // The receiver may be gone; the log has the failure.
    let _ = failures.try_send(failure.clone());
    failed.insert(place.clone(), failure);
}

#[derive(Clone, Debug)]
struct Answer {
    service: ServiceKey,
    targets: watch::Receiver<Targets>,
    health: Arc<Health>,
}

async fn answer_check(State(answer): State<Answer>) -> Response {
    let check = answer.targets.borrow().checks.get(&answer.service).copied();
    let count = check.map_or(0, |check| check.local_endpoints);
    let healthy = answer.health.verdict().healthy;
    let status = if count > 0 && healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/json")),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (WEIGHT, HeaderValue::from(count)),
    ];
    (status, headers, body(&answer.service, count, healthy)).into_response()
}

/// Returns kube-proxy's body, byte for byte.
fn body(service: &ServiceKey, count: usize, healthy: bool) -> String {
    let (namespace, name) = (&service.namespace, &service.name);
    format!(
        "{{\n\t\"service\": {{\n\t\t\"namespace\": {namespace:?},\n\t\t\"name\": {name:?}\n\t}},\n\
         \t\"localEndpoints\": {count},\n\t\"serviceProxyHealthy\": {healthy}\n}}"
    )
}

#[cfg(test)]
#[path = "ports_tests.rs"]
mod tests;
