//! An API server under the test's control: each request waits until the test answers it, byte by
//! byte if needed.

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::policy;
use crate::source::Kind;
use crate::source::feed::Services;
use crate::source::kubernetes::resource::Resources;
use crate::source::policies::Policies;

/// The longest time that an expected event takes.
pub(super) const BOUND: Duration = Duration::from_secs(20);

/// A kind that the server has.
pub(super) trait Kept {
    fn path(self) -> String;
}

impl Kept for Kind {
    fn path(self) -> String {
        Services::path(self)
    }
}

impl Kept for policy::Kind {
    fn path(self) -> String {
        Policies::path(self)
    }
}

/// Returns the paths of all kinds.
fn paths() -> impl Iterator<Item = String> {
    let policies = Policies::KINDS.iter().map(|kind| kind.path());
    Services::KINDS.iter().map(|kind| kind.path()).chain(policies)
}

pub(super) struct Server {
    pub address: SocketAddr,
    requests: HashMap<String, UnboundedReceiver<Request>>,
    /// Answers whether the server has a version, without the test.
    pub versions: Versions,
    accepting: JoinHandle<()>,
}

impl Server {
    pub async fn start() -> Self {
        Self::start_on("127.0.0.1:0".parse().unwrap()).await
    }

    pub async fn start_on(address: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut senders = HashMap::new();
        let mut requests = HashMap::new();
        for path in paths() {
            let (sender, receiver) = unbounded_channel();
            senders.insert(path.clone(), sender);
            requests.insert(path, receiver);
        }
        let versions = Versions::default();
        let accepting = tokio::spawn(accept(listener, senders, versions.clone()));
        Self { address, requests, versions, accepting }
    }

    /// Waits for the next request for this kind.
    pub async fn asked(&mut self, kind: impl Kept) -> Request {
        let path = kind.path();
        let next = self.requests.get_mut(&path).unwrap().recv();
        let asked = timeout(BOUND, next).await;
        asked.unwrap_or_else(|_| panic!("no request for {path} came")).unwrap()
    }

    /// Accepts no more connections. The present ones stay open.
    pub async fn stop(self) -> SocketAddr {
        self.accepting.abort();
        let _ = self.accepting.await;
        self.address
    }
}

async fn accept(
    listener: TcpListener,
    senders: HashMap<String, UnboundedSender<Request>>,
    versions: Versions,
) {
    loop {
        let (socket, _) = listener.accept().await.unwrap();
        let (senders, versions) = (senders.clone(), versions.clone());
        tokio::spawn(async move {
            let Some(request) = Request::read(socket).await else { return };
            if request.says("limit") == "1" {
                return versions.answer(request).await;
            }
            let sender = senders.get(&request.path);
            let _ = sender.unwrap_or_else(|| panic!("{} was asked for", request.path)).send(request);
        });
    }
}

/// The versions that the server has, and the questions for them. At first it has all.
#[derive(Clone, Default)]
pub(super) struct Versions(Arc<Mutex<Asked>>);

#[derive(Default)]
struct Asked {
    newest: Option<u64>,
    /// Refusals that are left, if the server only lags.
    lags: Option<u32>,
    /// Whether the question itself is refused.
    is_unknown: bool,
    questions: HashMap<String, u32>,
}

impl Versions {
    /// Sets the newest version.
    pub fn set_newest(&self, version: u64) {
        *self.0.lock().unwrap() = Asked { newest: Some(version), ..Asked::default() };
    }

    /// Refuses the next questions, and has all versions then.
    pub fn lag(&self, refusals: u32) {
        *self.0.lock().unwrap() = Asked { newest: Some(0), lags: Some(refusals), ..Asked::default() };
    }

    /// Refuses the question itself.
    pub fn refuse(&self) {
        *self.0.lock().unwrap() = Asked { is_unknown: true, ..Asked::default() };
    }

    /// Returns the number of questions for a kind, since the last change.
    pub fn questions(&self, kind: impl Kept) -> u32 {
        self.0.lock().unwrap().questions.get(&kind.path()).copied().unwrap_or_default()
    }

    async fn answer(&self, request: Request) {
        assert_eq!(
            (request.says("resourceVersionMatch"), request.says("labelSelector")),
            ("NotOlderThan", "")
        );
        let wanted = request.says("resourceVersion").parse().unwrap();
        if self.0.lock().unwrap().is_unknown {
            return request.answer("400 Bad Request", "", "{}").await;
        }
        match self.refusal(&request.path, wanted) {
            None => {
                let page = json!({ "metadata": { "resourceVersion": wanted.to_string() }, "items": [] });
                request.answer("200 OK", "", &page.to_string()).await;
            }
            Some(newest) => {
                let message = format!("Too large resource version: {wanted}, current: {newest}");
                let causes =
                    [json!({ "reason": "ResourceVersionTooLarge", "message": "Too large resource version" })];
                let status = json!({
                    "kind": "Status", "code": 504, "reason": "Timeout", "message": format!("Timeout: {message}"),
                    // A server that only lags says so, too; the tests save that time.
                    "details": { "causes": causes, "retryAfterSeconds": u8::from(!self.lags()) },
                });
                request.answer("504 Gateway Timeout", "", &status.to_string()).await;
            }
        }
    }

    fn lags(&self) -> bool {
        self.0.lock().unwrap().lags.is_some()
    }

    /// Returns the newest version, if it is older than the wanted one.
    fn refusal(&self, path: &str, wanted: u64) -> Option<u64> {
        let mut asked = self.0.lock().unwrap();
        *asked.questions.entry(path.to_owned()).or_default() += 1;
        if let Some(left) = asked.lags {
            asked.lags = Some(left.checked_sub(1)?);
        }
        asked.newest.filter(|newest| *newest < wanted)
    }
}

/// A request without an answer so far.
pub(super) struct Request {
    path: String,
    pub query: BTreeMap<String, String>,
    head: String,
    socket: TcpStream,
}

impl Request {
    async fn read(mut socket: TcpStream) -> Option<Self> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(socket.read_u8().await.ok()?);
        }
        let head = String::from_utf8(head).unwrap();
        let target = head.split(' ').nth(1).unwrap();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        let query = pairs.map(|(name, value)| (name.to_owned(), unescape(value))).collect();
        Some(Self { path: path.to_owned(), query, head: head.clone(), socket })
    }

    /// Returns a value of the query; empty if it has none.
    pub fn says(&self, name: &str) -> &str {
        self.query.get(name).map_or("", String::as_str)
    }

    /// Returns the value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.filter(|(header, _)| header.eq_ignore_ascii_case(name)).map(|(_, value)| value).next()
    }

    /// Answers at once with a whole body.
    pub async fn answer(mut self, status: &str, headers: &str, body: &str) {
        let length = body.len();
        let head =
            format!("HTTP/1.1 {status}\r\n{headers}Connection: close\r\nContent-Length: {length}\r\n\r\n");
        self.socket.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
        self.socket.shutdown().await.unwrap();
    }

    /// Begins an answer that goes on until the test ends it.
    pub async fn stream(mut self) -> Stream {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
        self.socket.write_all(head.as_bytes()).await.unwrap();
        Stream { socket: self.socket }
    }

    /// Answers with all objects and their version, as the begin of a watch.
    pub async fn list(self, objects: &[Value], version: &str) -> Stream {
        assert_eq!((self.says("sendInitialEvents"), self.says("resourceVersion")), ("true", ""));
        let mut stream = self.stream().await;
        for object in objects {
            stream.tell("ADDED", object).await;
        }
        stream.end_listing(version).await;
        stream
    }
}

/// An open watch.
pub(super) struct Stream {
    socket: TcpStream,
}

impl Stream {
    pub async fn tell(&mut self, event: &str, object: &Value) {
        self.try_tell(event, object).await.unwrap();
    }

    /// Fails when the client has closed the connection.
    pub async fn try_tell(&mut self, event: &str, object: &Value) -> io::Result<()> {
        self.write_line(&serde_json::json!({ "type": event, "object": object }).to_string()).await
    }

    pub async fn end_listing(&mut self, version: &str) {
        let annotations = serde_json::json!({ "k8s.io/initial-events-end": "true" });
        let metadata = serde_json::json!({ "resourceVersion": version, "annotations": annotations });
        self.tell("BOOKMARK", &serde_json::json!({ "metadata": metadata })).await;
    }

    pub async fn line(&mut self, line: &str) {
        self.write_line(line).await.unwrap();
    }

    async fn write_line(&mut self, line: &str) -> io::Result<()> {
        let chunk = format!("{:x}\r\n{line}\n\r\n", line.len() + 1);
        self.socket.write_all(chunk.as_bytes()).await
    }

    /// Ends the watch as the server does after its time limit.
    pub async fn end(mut self) {
        self.socket.write_all(b"0\r\n\r\n").await.unwrap();
        self.socket.shutdown().await.unwrap();
    }

    /// Ends the watch in the middle of a chunk, after `text`.
    pub async fn cut_after(mut self, text: &str) {
        let chunk = format!("{:x}\r\n{text}", text.len() + 1000);
        self.socket.write_all(chunk.as_bytes()).await.unwrap();
        self.socket.shutdown().await.unwrap();
    }
}

fn unescape(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digits = [rest.next().unwrap(), rest.next().unwrap()];
                u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
            }
            other => other,
        });
    }
    String::from_utf8(bytes).unwrap()
}
