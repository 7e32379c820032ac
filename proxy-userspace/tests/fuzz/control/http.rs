//! Requests with faults to the agent's HTTP servers.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use clap::Parser;
use millrace::config::Settings;
use millrace::health::{self, Health, SystemClock};
use millrace::metrics::{self, Metrics, Pages};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::time::timeout;

use super::node::Agent;
use super::{mutate, play};
use crate::folder::Folder;

/// Inputs of a usual run.
const INPUTS: u64 = 500;
/// Time for an answer.
const PATIENCE: Duration = Duration::from_secs(20);

const REQUESTS: [&str; 9] = [
    "GET /metrics HTTP/1.1\r\nHost: node\r\nAccept: application/openmetrics-text;version=1.0.0,*/*;q=0.1\r\n\r\n",
    "GET /healthz HTTP/1.1\r\nHost: node\r\nUser-Agent: kube-probe/1.34\r\nConnection: close\r\n\r\n",
    "GET /livez?exclude=first-sync HTTP/1.1\r\nHost: node\r\n\r\n",
    "GET /readyz?verbose&x=%00&&= HTTP/1.0\r\n\r\n",
    "HEAD /configz HTTP/1.1\r\nHost: node\r\n\r\nGET /proxyMode HTTP/1.1\r\nHost: node\r\n\r\n",
    "POST /healthz HTTP/1.1\r\nHost: node\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "PUT /nothing HTTP/1.1\r\nHost: node\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\nhello",
    "GET http://node/metrics HTTP/1.1\r\nHost: node\r\nUpgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\n\r\n",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
];

#[test]
fn a_faulty_request_leaves_the_next_one_answered() {
    let folder = Folder::new(&std::env::temp_dir(), "http");
    let servers = Servers::start(&format!("--bpffs-path={}", folder.path.display()));
    play(INPUTS, |random, given| {
        let (address, good) = *random.pick(&servers.addresses);
        let request = *random.pick(&REQUESTS);
        let request = mutate::text(random, request);
        given.note(String::from_utf8_lossy(&request));
        servers.runtime.block_on(async {
            let answer = ask(address, &request, End::Client).await;
            check(&answer);
            let good = format!("GET {good} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n");
            let answer = ask(address, good.as_bytes(), End::Server).await;
            assert!(answer.starts_with(b"HTTP/1.1 200 OK\r\n"), "{}", String::from_utf8_lossy(&answer));
        });
    });
}

/// Both servers, on the thread of the test, so that their memory and their panics are its own.
struct Servers {
    runtime: Runtime,
    /// The addresses, each with a path that is always answered by 200.
    addresses: [(SocketAddr, &'static str); 2],
    _stop: watch::Sender<()>,
}

impl Servers {
    fn start(flag: &str) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let agent = Agent::parse_from(["agent", flag]);
        let settings = Settings::resolve_on(&agent.args, Some("node-1".to_owned())).unwrap();
        let metrics = Metrics::new();
        let health = Arc::new(Health::new(SystemClock, settings.max_sync_interval));
        let probes = health::router(health.clone(), metrics.probes.clone());
        let pages = metrics::router(Pages::new(&settings, &metrics)).merge(health::readyz_router(health));
        let (stop, stopped) = watch::channel(());
        let serve = |router: Router| {
            let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).unwrap();
            let address = listener.local_addr().unwrap();
            runtime.spawn(millrace::http::serve(listener, router, stopped.clone()));
            address
        };
        let addresses = [(serve(probes), "/livez?exclude=first-sync"), (serve(pages), "/proxyMode")];
        Self { addresses, runtime, _stop: stop }
    }
}

/// Who says that nothing follows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// The client closes its half behind the request. A faulty request may ask for a connection that stays.
    Client,
    /// The request asks the server to close.
    Server,
}

/// Sends a request, and returns the answer. A server may close early.
async fn ask(address: SocketAddr, request: &[u8], end: End) -> Vec<u8> {
    let exchange = async {
        let stream = TcpStream::connect(address).await.unwrap();
        let (mut answers, mut requests) = stream.into_split();
        let send = async {
            if requests.write_all(request).await.is_ok() && end == End::Client {
                let _ = requests.shutdown().await;
            }
            requests
        };
        let mut answer = Vec::new();
        let _ = tokio::join!(send, answers.read_to_end(&mut answer));
        answer
    };
    timeout(PATIENCE, exchange).await.unwrap_or_else(|_| panic!("no end after {PATIENCE:?}"))
}

/// Checks an answer: none, or one that does not blame the server.
fn check(answer: &[u8]) {
    let line = String::from_utf8_lossy(answer.split(|byte| *byte == b'\r').next().unwrap_or_default());
    let status = line.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1)?.parse::<u16>().ok());
    let is_fine = status.is_some_and(|status| status != 500);
    assert!(answer.is_empty() || is_fine, "{}", String::from_utf8_lossy(answer));
}
