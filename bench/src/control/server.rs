//! An API server of one cluster, for the agent's own source to list and watch over loopback.
//!
//! It has only what the source needs: the beginning of a watch with all objects, and later changes.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::Uri;
use axum::routing::{MethodRouter, get};
use futures_util::StreamExt;
use futures_util::stream::{iter, unfold};
use millrace::model::Kind;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::{Mutex, mpsc};
use tokio::time::timeout;

use super::objects::Scale;

/// The number of objects that are sent in one piece.
const PIECE: usize = 64;
/// The interval of bookmarks on a watch without changes.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(30);

/// The server. It ends when it is dropped.
pub struct Server {
    kubeconfig: PathBuf,
    changes: mpsc::UnboundedSender<Bytes>,
    sent: Arc<AtomicUsize>,
    _runtime: Runtime,
}

#[derive(Clone)]
struct Cluster {
    scale: Scale,
    sent: Arc<AtomicUsize>,
    changes: Arc<Mutex<mpsc::UnboundedReceiver<Bytes>>>,
}

impl Server {
    /// Starts the server.
    pub fn start(scale: Scale) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let listener = runtime.block_on(TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))))?;
        let address = listener.local_addr()?;
        let (changes, receiver) = mpsc::unbounded_channel();
        let sent = Arc::new(AtomicUsize::new(0));
        let cluster = Cluster { scale, sent: Arc::clone(&sent), changes: Arc::new(Mutex::new(receiver)) };
        let routes = Router::new()
            .route("/api/v1/nodes", kind_route(Kind::Node))
            .route("/api/v1/services", kind_route(Kind::Service))
            .route("/apis/discovery.k8s.io/v1/endpointslices", kind_route(Kind::EndpointSlice))
            .with_state(cluster);
        runtime.spawn(async move { axum::serve(listener, routes).await });
        let kubeconfig =
            std::env::temp_dir().join(format!("millrace-bench-{}-{}", std::process::id(), address.port()));
        std::fs::write(&kubeconfig, config(address))
            .with_context(|| format!("can't write {}", kubeconfig.display()))?;
        Ok(Self { kubeconfig, changes, sent, _runtime: runtime })
    }

    /// Returns the kubeconfig that leads to the server.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Sends the new state of an EndpointSlice to the watches.
    pub fn change(&self, slice: &str) -> Result<()> {
        let line = line("MODIFIED", Kind::EndpointSlice, slice);
        self.changes.send(Bytes::from(line)).context("the server has ended")
    }

    /// Returns the number of bytes sent so far.
    pub fn sent(&self) -> usize {
        self.sent.load(Ordering::Relaxed)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.kubeconfig);
    }
}

fn kind_route(kind: Kind) -> MethodRouter<Cluster> {
    get(async move |State(cluster): State<Cluster>, uri: Uri| {
        cluster.watch(kind, uri.query().is_some_and(|query| query.contains("sendInitialEvents=true")))
    })
}

impl Cluster {
    fn watch(&self, kind: Kind, from_begin: bool) -> Body {
        let first = from_begin.then(|| self.pieces(kind)).into_iter().flatten();
        let changes = (kind == Kind::EndpointSlice).then(|| Arc::clone(&self.changes));
        let later = unfold(changes, move |changes| async move {
            let next = async {
                match &changes {
                    Some(changes) => changes.lock().await.recv().await,
                    None => std::future::pending().await,
                }
            };
            match timeout(BOOKMARK_INTERVAL, next).await {
                Ok(change) => Some((change?, changes)),
                Err(_) => Some((Bytes::from(bookmark(kind, "")), changes)),
            }
        });
        let sent = Arc::clone(&self.sent);
        let count = move |piece: &Bytes| {
            sent.fetch_add(piece.len(), Ordering::Relaxed);
        };
        Body::from_stream(iter(first).chain(later).inspect(count).map(Ok::<_, Infallible>))
    }

    /// Returns all objects, and the bookmark that ends the list.
    fn pieces(&self, kind: Kind) -> impl Iterator<Item = Bytes> + use<> {
        let mut objects = self.scale.objects(kind).fuse();
        let objects = std::iter::from_fn(move || {
            let piece: String =
                objects.by_ref().take(PIECE).map(|object| line("ADDED", kind, &object)).collect();
            (!piece.is_empty()).then(|| Bytes::from(piece))
        });
        let end = bookmark(kind, r#","annotations":{"k8s.io/initial-events-end":"true"}"#);
        objects.chain([Bytes::from(end)])
    }
}

fn line(event: &str, kind: Kind, object: &str) -> String {
    let (version, rest) = (api_version(kind), object.strip_prefix('{').unwrap_or_default());
    format!(r#"{{"type":"{event}","object":{{"kind":"{kind}","apiVersion":"{version}",{rest}}}{}"#, '\n')
}

fn bookmark(kind: Kind, annotations: &str) -> String {
    line("BOOKMARK", kind, &format!(r#"{{"metadata":{{"resourceVersion":"99000000"{annotations}}}}}"#))
}

const fn api_version(kind: Kind) -> &'static str {
    match kind {
        Kind::Node | Kind::Service => "v1",
        Kind::EndpointSlice => "discovery.k8s.io/v1",
    }
}

fn config(address: SocketAddr) -> String {
    format!(
        r#"{{"apiVersion":"v1","kind":"Config","current-context":"bench","users":[{{"name":"bench","user":{{}}}}],
"contexts":[{{"name":"bench","context":{{"cluster":"bench","user":"bench"}}}}],
"clusters":[{{"name":"bench","cluster":{{"server":"http://{address}"}}}}]}}"#
    )
}
