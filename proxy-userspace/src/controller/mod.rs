//! `millrace controller`: gives Services of type LoadBalancer the addresses of nodes.
//!
//! It needs other rights than the agents: it writes statuses. So it runs apart from them, in a Deployment.
//! The agents serve the addresses like those of any other load balancer.

pub mod lease;
mod pages;
pub mod plan;
mod status;
mod tell;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Service;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{error, info, warn};

use crate::http::serve_at;
use crate::model::ServiceKey;
use crate::source::kubernetes::{KubernetesSettings, NodeParts, connect, explain_refusal, watch as follow};
use crate::source::{Batch, Listing, Signs, SourceError, SourceEvent};
use lease::Leadership;
use pages::Figures;
pub use pages::METRICS;
use plan::{Classes, Cluster, Wanted};
use status::{Statement, Statuses};
use tell::Teller;

/// The reporting controller of our Events.
const CONTROLLER: &str = "millrace-controller";
/// Batches that may wait.
const BATCHES: usize = 4;
/// Wait for changes that come together, such as all EndpointSlices of a Service.
const GATHER: Duration = Duration::from_millis(50);
/// Wait while it is in doubt whether this process leads.
const DOUBT: Duration = Duration::from_secs(1);
/// Requests at one time.
const CONCURRENT: usize = 8;
/// An API server that takes longer is overloaded. It is less than the rest of a leadership that another
/// process waits for.
const WRITE_TIMEOUT: Duration = Duration::from_secs(4);

/// The settings of the controller, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The kubeconfig; `None` = the environment's.
    pub kubeconfig: Option<PathBuf>,
    /// The Services that get addresses.
    pub classes: Classes,
    /// The value of the label `service.kubernetes.io/service-proxy-name` of the Services; `None` = those
    /// without it.
    pub service_proxy_name: Option<String>,
    /// The Lease's namespace; `None` = the one of the pod or of the kubeconfig.
    pub lease_namespace: Option<String>,
    /// The address of the HTTP server; `None` = none.
    pub bind_address: Option<SocketAddr>,
    /// This process's name in the Lease and in Events; another one in each process.
    pub identity: String,
}

/// Runs until `stop` is closed.
pub async fn run(settings: Settings, stop: watch::Receiver<()>) -> Result<(), SourceError> {
    let signs = Signs::default();
    let figures = Figures::default();
    let connection = connect(settings.kubeconfig.as_deref(), signs.clone()).await?;
    let client = connection.client.clone();
    info!(
        version = env!("CARGO_PKG_VERSION"),
        identity = settings.identity,
        class = settings.classes.name,
        is_default = settings.classes.is_default,
        "the controller starts"
    );
    let server = settings.bind_address.map(|address| {
        let router = pages::router(&figures, signs.clone());
        tokio::spawn(serve_at("--bind-address", address, router, stop.clone()))
    });
    let (sender, batches) = mpsc::channel(BATCHES);
    let wanted = KubernetesSettings {
        nodes: NodeParts::OfAll,
        service_proxy_name: settings.service_proxy_name.clone(),
    };
    let source = tokio::spawn(follow(connection, wanted, sender));
    let namespace = settings.lease_namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
    // The Lease is given back after the last write.
    let (end_election, ended) = watch::channel(());
    let (leadership, election) = lease::elect(client.clone(), &namespace, settings.identity.clone(), ended);
    let controller = Controller {
        teller: Teller::start(client.clone(), &settings.identity),
        client,
        cluster: Cluster::new(settings.classes),
        statuses: Statuses::default(),
        figures,
        signs,
        leadership,
        listing: None,
        due: None,
    };
    controller.run(batches, stop).await;
    source.abort();
    drop(end_election);
    let _ = election.await;
    if let Some(server) = server {
        let _ = server.await;
    }
    Ok(())
}

/// The task that owns the objects and writes statuses.
struct Controller {
    client: Client,
    teller: Teller,
    cluster: Cluster,
    statuses: Statuses,
    figures: Figures,
    signs: Signs,
    leadership: Leadership,
    /// The last listing. Before the first one no object may count as missing.
    listing: Option<Listing>,
    /// When statuses are to be compared again.
    due: Option<Instant>,
}

impl Controller {
    async fn run(mut self, mut batches: mpsc::Receiver<Batch>, mut stop: watch::Receiver<()>) {
        loop {
            let due = self.due.into_iter().chain(self.statuses.due(Instant::now())).min();
            let wait = async {
                match due {
                    Some(due) => sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                _ = stop.changed() => return,
                batch = batches.recv() => {
                    let Some(batch) = batch else {
                        error!("the source has ended, which is a fault in this program");
                        return;
                    };
                    self.apply(batch);
                }
                is_held_on = self.leadership.changed() => {
                    if !is_held_on {
                        return;
                    }
                    // What another leader did meanwhile is unknown.
                    self.statuses.forget();
                    self.figures.leads.set(i64::from(self.leadership.is_held()));
                    self.count(&BTreeMap::new());
                    self.due = Some(Instant::now());
                }
                () = wait => tokio::select! {
                    _ = stop.changed() => return,
                    () = self.write() => {}
                },
            }
        }
    }

    fn apply(&mut self, batch: Batch) {
        for event in batch {
            match event {
                SourceEvent::Change(change) => {
                    if let Some(key) = self.cluster.apply(change) {
                        self.statuses.heard(&key, self.cluster.has_request(&key));
                    }
                }
                SourceEvent::Listed(listing) => {
                    self.signs.list(listing == Listing::Complete);
                    self.listing = Some(listing);
                }
                SourceEvent::Problem(problem) => warn!("{problem}"),
            }
        }
        self.due.get_or_insert(Instant::now() + GATHER);
    }

    /// Writes the statuses that differ from the wanted ones, if this process leads.
    async fn write(&mut self) {
        self.due = None;
        let Some(listing) = &self.listing else { return };
        if !self.leadership.is_held() {
            // A renewal that comes late begins no leadership, and wakes nobody.
            self.due = self.leadership.is_in_doubt().then(|| Instant::now() + DOUBT);
            return;
        }
        let now = Instant::now();
        let mut statements = BTreeMap::new();
        let mut wanted = self.cluster.wanted();
        for (key, wanted) in &mut wanted {
            let Some(current) = self.cluster.current(key) else { continue };
            if *listing != Listing::Complete {
                wanted.keep(current);
            }
            let (statement, news) = self.statuses.compare(key, wanted, current, now);
            for notice in news {
                self.teller.tell(key, self.cluster.uid(key), notice);
            }
            if let Some(statement) = statement {
                statements.insert(key.clone(), statement);
            }
        }
        self.count(&wanted);
        self.write_all(statements).await;
    }

    fn count(&self, wanted: &BTreeMap<ServiceKey, Wanted>) {
        for state in STATES {
            let count = wanted.values().filter(|wanted| state_of(wanted) == state).count();
            self.figures
                .services
                .get_or_create(&[("state", state)])
                .set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    async fn write_all(&mut self, statements: BTreeMap<ServiceKey, Statement>) {
        let (client, leadership) = (&self.client, &self.leadership);
        let writes = statements.into_iter().map(|(key, statement)| async move {
            // Each write checks this: many of them may take longer than the leadership lasts.
            let result = if leadership.is_held() {
                patch(client, &key, &statement).await
            } else {
                Ok(Patched::InDoubt)
            };
            (key, statement, result)
        });
        let mut results = stream::iter(writes).buffer_unordered(CONCURRENT);
        while let Some((key, statement, result)) = results.next().await {
            match result {
                Ok(Patched::Written) => {
                    let addresses = statement.addresses.as_ref().map(|list| format!("{list:?}"));
                    info!(service = %key, addresses, conflict = statement.conflict, "status written");
                    self.statuses.wrote(&key, statement);
                    self.figures.writes.get_or_create(&[("result", "ok")]).inc();
                }
                Ok(Patched::Gone) => {}
                Ok(Patched::InDoubt) => self.due = Some(Instant::now() + DOUBT),
                Err(error) => {
                    self.figures.writes.get_or_create(&[("result", "error")]).inc();
                    if self.statuses.failed(&key, Instant::now()) {
                        warn!(service = %key, error, "the status can't be written; tried again");
                    }
                }
            }
        }
    }
}

/// The states of a Service, for the metric.
const STATES: [&str; 4] = ["served", "conflict", "no_node", "no_endpoint"];

fn state_of(wanted: &Wanted) -> &'static str {
    match wanted {
        Wanted { shortage: Some(_), .. } => "no_node",
        Wanted { conflict: Some(_), .. } => "conflict",
        Wanted { addresses: Some(addresses), .. } if addresses.is_empty() => "no_endpoint",
        _ => "served",
    }
}

enum Patched {
    Written,
    /// The Service is gone.
    Gone,
    /// This process may lead no longer.
    InDoubt,
}

async fn patch(client: &Client, key: &ServiceKey, statement: &Statement) -> Result<Patched, String> {
    let services = Api::<Service>::namespaced(client.clone(), &key.namespace);
    let body = Patch::Strategic(statement.patch(&Timestamp::now().to_string()));
    let parameters = PatchParams { field_manager: Some(CONTROLLER.to_owned()), ..PatchParams::default() };
    match timeout(WRITE_TIMEOUT, services.patch_status(&key.name, &parameters, &body)).await {
        Ok(Ok(_)) => Ok(Patched::Written),
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => Ok(Patched::Gone),
        Ok(Err(error)) => Err(explain_refusal(&error)),
        Err(_) => Err(format!("no answer within {} s", WRITE_TIMEOUT.as_secs())),
    }
}
