use std::future::Future;
use std::net::Ipv4Addr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

/// Returns an address of this host without a listener.
pub async fn free_address() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    listener.local_addr().unwrap()
}

/// Returns the address of a running server, and the means to stop it.
pub async fn start(router: Router) -> (SocketAddr, watch::Sender<()>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = watch::channel(());
    tokio::spawn(serve(listener, router, stopped));
    (address, stop)
}

/// Sends a request and reads until the server closes. Returns the answer without its date.
pub async fn ask(address: SocketAddr, request: &str, headers: &str) -> String {
    try_ask(address, request, headers).await.expect("an answer")
}

/// Does the same as [`ask`]; `None` if no server listens or answers.
pub async fn try_ask(address: SocketAddr, request: &str, headers: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    let request = format!("{request} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = String::new();
    timeout(Duration::from_secs(10), stream.read_to_string(&mut answer)).await.ok()?.ok()?;
    // Go's servers send the date, too.
    let start = answer.find("Date: ")?;
    let end = start + answer[start..].find("\r\n")? + 2;
    answer.replace_range(start..end, "");
    Some(answer)
}

pub async fn get(address: SocketAddr, path: &str) -> String {
    ask(address, &format!("GET {path}"), "").await
}

/// Waits for a condition, at most ten seconds.
pub async fn until<F: Future<Output = bool>>(mut condition: impl FnMut() -> F) {
    for _ in 0..1000 {
        if condition().await {
            return;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("the condition never held");
}

pub async fn is_open(address: SocketAddr) -> bool {
    TcpStream::connect(address).await.is_ok()
}

fn hello() -> Router {
    Router::new().route("/", axum::routing::any(async || "hello")).fallback(not_found)
}

#[tokio::test]
async fn an_unknown_path_is_answered_as_go_does() {
    let (address, _stop) = start(hello()).await;
    let answer = get(address, "/nothing").await;
    assert_eq!(
        answer,
        "HTTP/1.1 404 Not Found\r\nContent-Type: text/plain; charset=utf-8\r\nX-Content-Type-Options: nosniff\r\n\
         Content-Length: 19\r\nConnection: close\r\n\r\n404 page not found\n"
    );
}

#[tokio::test]
async fn a_server_that_stops_closes_its_port_and_its_idle_connections() {
    let (address, stop) = start(hello()).await;
    let mut idle = TcpStream::connect(address).await.unwrap();
    idle.write_all(b"GET / HTTP/1.1\r\nHost: node\r\n\r\n").await.unwrap();
    let mut first = [0; 15];
    idle.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 200 OK");
    drop(stop);
    let mut rest = Vec::new();
    timeout(Duration::from_secs(10), idle.read_to_end(&mut rest)).await.unwrap().unwrap();
    until(async || !is_open(address).await).await;
}

#[tokio::test(start_paused = true)]
async fn an_address_in_use_is_tried_again_until_it_is_free() {
    let blocker = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = blocker.local_addr().unwrap();
    let (_stop, stopped) = watch::channel(());
    let server = tokio::spawn(serve_at("--healthz-bind-address", address, hello(), stopped));
    sleep(RETRY_INTERVAL * 3).await;
    assert!(!server.is_finished());
    drop(blocker);
    until(async || is_open(address).await).await;
    tokio::time::resume();
    assert!(get(address, "/").await.ends_with("\r\n\r\nhello"));
}

/// A listener without free descriptors for some time; then it has one connection.
struct Exhausted {
    failures: usize,
    stream: Option<TcpStream>,
}

impl Accept for Exhausted {
    async fn accept(&mut self) -> io::Result<TcpStream> {
        if self.failures > 0 {
            self.failures -= 1;
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        match self.stream.take() {
            Some(stream) => Ok(stream),
            None => std::future::pending().await,
        }
    }
}

#[tokio::test]
async fn a_server_out_of_descriptors_for_a_moment_answers_within_a_probes_patience() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let client = tokio::spawn(async move { get(address, "/").await });
    let (stream, _) = listener.accept().await.unwrap();
    let (_stop, stopped) = watch::channel(());
    tokio::spawn(serve_accepted(Exhausted { failures: 3, stream: Some(stream) }, hello(), stopped));
    assert!(client.await.unwrap().ends_with("\r\n\r\nhello"));
}

#[tokio::test(start_paused = true)]
async fn a_server_out_of_descriptors_stops_when_it_is_told_to() {
    let (stop, stopped) = watch::channel(());
    let exhausted = Exhausted { failures: usize::MAX, stream: None };
    let server = tokio::spawn(serve_accepted(exhausted, hello(), stopped));
    sleep(Duration::from_mins(1)).await;
    assert!(!server.is_finished());
    drop(stop);
    let told_at = tokio::time::Instant::now();
    server.await.unwrap();
    assert_eq!(told_at.elapsed(), Duration::ZERO, "not after its pause");
}

#[test]
fn a_server_out_of_descriptors_waits_for_a_second_at_most() {
    let wrong = io::Error::from_raw_os_error(libc::EMFILE);
    let pauses: Vec<_> = accept_pauses(&wrong).take(9).collect();
    assert!(pauses.is_sorted(), "{pauses:?}");
    assert_eq!((pauses[0], pauses[8]), (Duration::from_millis(10), Duration::from_secs(1)));
}

#[tokio::test]
async fn the_unspecified_ipv4_address_is_every_address_of_both_families() {
    let port = free_address().await.port();
    let (_stop, stopped) = watch::channel(());
    let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
    tokio::spawn(serve_at("--healthz-bind-address", address, hello(), stopped));
    for local in
        [SocketAddr::from((Ipv4Addr::LOCALHOST, port)), SocketAddr::from((Ipv6Addr::LOCALHOST, port))]
    {
        until(async || is_open(local).await).await;
        assert!(get(local, "/").await.ends_with("\r\n\r\nhello"), "{local}");
    }
}

#[test]
fn a_failed_bind_names_flag_and_address() {
    let wrong = io::Error::from_raw_os_error(libc::EADDRINUSE);
    assert_eq!(
        bind_error("--metrics-bind-address", "127.0.0.1:10249".parse().unwrap(), &wrong),
        "--metrics-bind-address: can't listen on 127.0.0.1:10249: Address already in use (os error 98); tried again \
         every 5 s, everything else goes on"
    );
}
