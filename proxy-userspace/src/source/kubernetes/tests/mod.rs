//! Tests of the source against a server that the test controls.

mod configuration;
mod listing;
mod objects;
mod older;
mod outage;
mod policies;
mod server;
mod trouble;

use std::collections::HashMap;

use serde_json::{Value, json};
use tokio::sync::mpsc::{Receiver, channel};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use self::server::{BOUND, Server, Stream};
use super::*;
use crate::source::{Change, Kind, Listing, Signs, SourceEvent};

/// No step takes this long, unless a test says so. A new attempt comes almost at once.
const TIMING: Timing = Timing {
    idle: BOUND,
    watch: Duration::from_secs(290),
    working: Duration::ZERO,
    backoff: (Duration::from_millis(1), Duration::from_millis(10)),
};

/// A running source and its server.
struct Bench {
    server: Server,
    events: Receiver<Batch>,
    signs: Signs,
    task: JoinHandle<()>,
}

impl Bench {
    async fn start(timing: Timing) -> Self {
        Self::start_with(timing, None).await
    }

    async fn start_with(timing: Timing, service_proxy_name: Option<&str>) -> Self {
        let server = Server::start().await;
        let (connection, signs) = connection(&server);
        let settings = KubernetesSettings {
            nodes: NodeParts::OfOne("node1".to_owned()),
            service_proxy_name: service_proxy_name.map(str::to_owned),
        };
        let (sender, events) = channel(64);
        let task =
            tokio::spawn(
                async move { follow_all::<Services>(&connection, &settings, &sender, timing).await },
            );
        Self { server, events, signs, task }
    }

    /// Starts a bench that has listed only these Services, and returns its three watches.
    async fn listed(timing: Timing, services: &[Value]) -> (Self, Watches) {
        let mut bench = Self::start(timing).await;
        let slices = bench.server.asked(Kind::EndpointSlice).await.list(&[], "10").await;
        let nodes = bench.server.asked(Kind::Node).await.list(&[], "10").await;
        let services = bench.server.asked(Kind::Service).await.list(services, "10").await;
        while bench.next().await != "listed" {}
        (bench, Watches { services, slices, nodes })
    }

    /// Returns the next batch as text, one event a line.
    async fn next(&mut self) -> String {
        let batch = timeout(BOUND, self.events.recv()).await.expect("nothing was told").unwrap();
        let words: Vec<String> = batch.iter().map(words).collect();
        words.join("\n")
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn connection(server: &Server) -> (Connection, Signs) {
    let server = format!("http://{}", server.address);
    let (client, _) =
        origin::client(kube::Config::new(server.parse().unwrap()), &origin::Origin::Pod).unwrap();
    let signs = Signs::default();
    (Connection { client, server, hint: None, signs: signs.clone() }, signs)
}

struct Watches {
    services: Stream,
    slices: Stream,
    nodes: Stream,
}

fn words(event: &SourceEvent) -> String {
    match event {
        SourceEvent::Change(Change::Upsert { object, .. }) => format!("+ {}", object.key()),
        SourceEvent::Change(Change::Delete(key)) => format!("- {key}"),
        SourceEvent::Listed(Listing::Complete) => "listed".to_owned(),
        SourceEvent::Listed(Listing::Without(unread)) => {
            let unread: Vec<String> = unread.iter().map(ToString::to_string).collect();
            format!("listed without {}", unread.join(", "))
        }
        SourceEvent::Problem(problem) => format!("{:?}: {problem}", problem.severity),
    }
}

fn service(name: &str, version: u32) -> Value {
    json!({
        "metadata": {
            "name": name, "namespace": "default", "uid": format!("uid of {name}"),
            "resourceVersion": version.to_string(),
        },
        "spec": { "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"], "ports": [{ "port": 80 }] },
    })
}

/// Returns an object with nothing but a name.
fn named(name: &str, version: u32) -> Value {
    json!({ "metadata": { "name": name, "namespace": "default", "resourceVersion": version.to_string() } })
}
