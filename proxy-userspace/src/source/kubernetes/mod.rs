//! Follows the objects of the API server.
//!
//! Each kind is listed once: as the begin of a watch if the server supports it, else in pages. The
//! watch continues from the version of the listing, over broken connections and restarts, until the
//! server has dropped that version. Then the kind is listed again, and only the changes are sent:
//! the last state stays until then.
//!
//! Before a watch continues after a broken connection, the server is asked whether it has the
//! version. A server that was restored from a backup does not, and would be silent until it has given out as
//! many versions again.
//!
//! kube provides requests and connections. Its `watcher` is not used, for three reasons. It asks
//! again at once and for ever if a server ends each watch without an error. It ignores Retry-After.
//! One unreadable object ends its listing.

mod connect;
mod decode;
mod decode_policy;
mod doubts;
mod failure;
mod follow;
mod kinds;
mod known;
mod link;
mod metadata;
mod origin;
mod pause;
mod probe;
mod progress;
mod query;
mod renew;
mod report;
mod resource;
mod rollout;
mod token;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::mpsc::Sender;

pub use self::connect::{Connection, connect};
use self::doubts::Doubts;
pub use self::failure::explain_refusal;
use self::follow::Follower;
use self::pause::Pause;
pub use self::probe::{POLICY_RIGHTS, Probe, RIGHTS, Right, probe};
use self::progress::Progress;
use self::report::Reports;
use self::resource::Resources;
pub use self::rollout::{DaemonSetName, Rollout, wait_for_daemonset};
use super::feed::Services;
use super::policies::Policies;
use super::{Batch, PolicyBatch, SourceError};

/// The settings of the API server as a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubernetesSettings {
    /// The parts of Nodes that are read.
    pub nodes: NodeParts,
    /// The value of the label `service.kubernetes.io/service-proxy-name` of the Services to serve;
    /// `None` = those without it.
    pub service_proxy_name: Option<String>,
}

/// The parts of Nodes that are read. A change in any other part is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeParts {
    /// Labels, annotations, taints, addresses and ranges of pods of the Node with this name; of others the addresses, the
    /// ranges of pods, a foreign operating system, and whether clients are kept away. The condition Ready of all.
    OfOne(String),
    /// Labels, taints, addresses, ranges of pods and the condition Ready of all.
    OfAll,
}

/// The time limits.
#[derive(Clone, Copy, Debug)]
struct Timing {
    /// Silence after which a server counts as hanging.
    idle: Duration,
    /// Age at which the server ends a watch, so that clients spread over its instances again.
    watch: Duration,
    /// Age at which a watch counts as working.
    working: Duration,
    /// The first and the longest wait before another attempt; a random share is added.
    backoff: (Duration, Duration),
}

impl Timing {
    const DEFAULT: Self = Self {
        // Bookmarks come every minute. If a quiet server sends none, a watch is begun again without
        // need.
        idle: Duration::from_secs(90),
        watch: Duration::from_secs(290),
        working: Duration::from_secs(1),
        // As in client-go's reflector.
        backoff: (Duration::from_millis(800), Duration::from_secs(30)),
    };
}

/// Sends every Service, EndpointSlice and Node to `events`, then their changes, until the receiver
/// is dropped.
///
/// Every failure is reported as a [`SourceEvent::Problem`](super::SourceEvent::Problem), and tried
/// again.
pub async fn watch(
    connection: Connection,
    settings: KubernetesSettings,
    events: Sender<Batch>,
) -> Result<(), SourceError> {
    follow_all::<Services>(&connection, &settings, &events, Timing::DEFAULT).await;
    Ok(())
}

/// Sends every Namespace, pod and NetworkPolicy of the cluster to `events`, then their changes, until the
/// receiver is dropped.
///
/// Of Namespaces and pods, only what policies depend on is sent, and a change of any other part is none. A
/// NetworkPolicy that was never readable is replaced by one that isolates its pods and allows nothing. Every
/// failure is reported as a [`PolicyEvent::Problem`](super::PolicyEvent::Problem), and tried again. It may
/// share a connection with [`watch`].
pub async fn watch_policies(connection: Connection, events: Sender<PolicyBatch>) -> Result<(), SourceError> {
    follow_all::<Policies>(&connection, &(), &events, Timing::DEFAULT).await;
    Ok(())
}

async fn follow_all<F: Resources>(
    connection: &Connection,
    settings: &F::Settings,
    events: &Sender<Vec<F::Event>>,
    timing: Timing,
) {
    let reports = Reports::<F>::of(connection.server.clone(), connection.hint, connection.signs.clone());
    let reports = Arc::new(reports);
    let progress = Arc::new(Progress::of(F::KINDS.len()));
    let pause = Arc::new(Pause::new(timing.backoff));
    let doubts = Doubts::default();
    let followers = F::KINDS.iter().map(|kind| {
        let output = follow::Output {
            events: events.clone(),
            reports: reports.clone(),
            progress: progress.clone(),
            pause: pause.clone(),
            doubts: doubts.clone(),
        };
        Follower::new(*kind, connection.client.clone(), settings, timing, output).run()
    });
    join_all(followers).await;
}

#[cfg(test)]
mod tests;
