//! An HTTP server on one address.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use backon::{BackoffBuilder, ExponentialBuilder};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::Ipv6V6Only;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::{debug, error};

/// Connections at one time. Further connections wait to be accepted.
const MOST_CONNECTIONS: usize = 256;
/// Time for a client to send the first or the next request of its connection.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for running requests to end when the server stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);
/// Time until another attempt to bind an address.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Shortest and longest wait after a failed accept (no descriptors left), growing with each
/// failure. Shorter than the time-out of a probe.
const ACCEPT_PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// Serves on the address of a flag until `stop` is closed.
///
/// An address that can't be bound is logged once and tried again: the data path does not need it.
pub async fn serve_at(
    flag: &'static str,
    address: SocketAddr,
    router: Router,
    mut stop: watch::Receiver<()>,
) {
    let mut told = None;
    loop {
        match listen(address).await {
            Ok(listener) => {
                debug!(flag, %address, "listening");
                return serve(listener, router, stop).await;
            }
            Err(wrong) => {
                let text = bind_error(flag, address, &wrong);
                if told.as_ref() != Some(&text) {
                    error!("{text}");
                    told = Some(text);
                }
            }
        }
        tokio::select! {
            _ = stop.changed() => return,
            () = sleep(RETRY_INTERVAL) => {}
        }
    }
}

/// Listens as Go does: 0.0.0.0 means all addresses of the host, those of IPv6 included.
async fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    if address.ip() == Ipv4Addr::UNSPECIFIED
        && let Ok(listener) = TcpListener::bind((Ipv6Addr::UNSPECIFIED, address.port())).await
        && is_dual(&listener)
    {
        return Ok(listener);
    }
    TcpListener::bind(address).await
}

fn is_dual(listener: &TcpListener) -> bool {
    getsockopt(listener, Ipv6V6Only).is_ok_and(|only| !only)
}

/// Serves until `stop` is closed. Dropping the future ends all connections.
pub async fn serve(listener: TcpListener, router: Router, stop: watch::Receiver<()>) {
    serve_accepted(listener, router, stop).await;
}

/// A source of connections.
trait Accept {
    /// Returns the next connection. Dropping the future early loses none.
    fn accept(&mut self) -> impl Future<Output = io::Result<TcpStream>> + Send;
}

impl Accept for TcpListener {
    async fn accept(&mut self) -> io::Result<TcpStream> {
        Self::accept(self).await.map(|(stream, _)| stream)
    }
}

async fn serve_accepted(mut listener: impl Accept, router: Router, mut stop: watch::Receiver<()>) {
    let mut connections = JoinSet::new();
    let mut pauses = None;
    loop {
        while connections.try_join_next().is_some() {}
        let has_room = connections.len() < MOST_CONNECTIONS;
        tokio::select! {
            biased;
            _ = stop.changed() => break,
            accepted = listener.accept(), if has_room => match accepted {
                Ok(stream) => {
                    pauses = None;
                    connections.spawn(serve_connection(stream, router.clone(), stop.clone()));
                }
                Err(wrong) => {
                    let pauses = pauses.get_or_insert_with(|| accept_pauses(&wrong));
                    let pause = pauses.next().unwrap_or(ACCEPT_PAUSES.1);
                    tokio::select! {
                        _ = stop.changed() => break,
                        () = sleep(pause) => {}
                    }
                }
            },
            _ = connections.join_next(), if !has_room => {}
        }
    }
    drop(listener);
    let all_ended = async { while connections.join_next().await.is_some() {} };
    let _ = timeout(STOP_TIMEOUT, all_ended).await;
}

/// Returns the waits after failed accepts in a row, and logs the first failure.
fn accept_pauses(wrong: &io::Error) -> impl Iterator<Item = Duration> + use<> {
    error!(error = %wrong, "HTTP connections can't be accepted; tried again");
    let (min, max) = ACCEPT_PAUSES;
    ExponentialBuilder::new().with_min_delay(min).with_max_delay(max).without_max_times().build()
}

/// Returns the 404 of Go's servers.
pub async fn not_found() -> Response {
    let headers =
        [(header::CONTENT_TYPE, "text/plain; charset=utf-8"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (StatusCode::NOT_FOUND, headers, "404 page not found\n").into_response()
}

/// Serves one connection. Header names have Go's capitals: some probers compare them with regard to
/// case.
async fn serve_connection(stream: TcpStream, router: Router, mut stop: watch::Receiver<()>) {
    let mut builder = http1::Builder::new();
    builder.title_case_headers(true).timer(TokioTimer::new()).header_read_timeout(REQUEST_TIMEOUT);
    let service = TowerToHyperService::new(router);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        _ = stop.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(wrong) = ended {
        debug!(error = %wrong, "HTTP connection failed");
    }
}

fn bind_error(flag: &str, address: SocketAddr, wrong: &io::Error) -> String {
    let seconds = RETRY_INTERVAL.as_secs();
    format!(
        "{flag}: can't listen on {address}: {wrong}; tried again every {seconds} s, everything else goes on"
    )
}

#[cfg(test)]
pub(crate) mod tests;
