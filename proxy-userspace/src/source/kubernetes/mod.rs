//! Objects from the API server, followed as they change.
//!
//! Each kind is listed once, as the begin of a watch where the server can do that, else in pages; then the watch goes
//! on from the version it has come to, over cuts and restarts, until the server no longer knows that version. Then
//! everything is listed again, and what is told is the difference: the last state stays until then.
//!
//! kube makes the requests and the connections. Its `watcher` is not used: it asks again at once, for ever, where a
//! server ends each watch without an error; it does not see Retry-After; and one object that can't be read ends the
//! listing.

mod connect;
mod decode;
mod failure;
mod follow;
mod known;
mod link;
mod metadata;
mod pause;
mod progress;
mod query;
mod renew;
mod report;
mod token;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::mpsc::Sender;

pub use self::connect::{Connection, connect};
pub use self::failure::explain_refusal;
use self::follow::Follower;
use self::pause::Pause;
use self::progress::Progress;
use self::report::Reports;
use super::{Batch, Kind, SourceError};

/// What is wanted of the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubernetesSettings {
    /// The Node of which more than its addresses matters.
    pub node_name: String,
    /// The Services whose label `service.kubernetes.io/service-proxy-name` says this; `None` = those without it.
    pub service_proxy_name: Option<String>,
}

/// How long to wait for what.
#[derive(Clone, Copy, Debug)]
struct Timing {
    /// A server that sends nothing for so long hangs.
    idle: Duration,
    /// A watch that lives so long works.
    settled: Duration,
    /// The first and the longest wait before another attempt; a random share is added.
    backoff: (Duration, Duration),
}

impl Timing {
    const DEFAULT: Self = Self {
        // Bookmarks come every minute. Where a quiet server sends none, a watch is asked for again for nothing.
        idle: Duration::from_secs(90),
        settled: Duration::from_secs(1),
        // As client-go's reflector has them.
        backoff: (Duration::from_millis(800), Duration::from_secs(30)),
    };
}

/// Kinds in the order in which their listings are asked for.
const KINDS: [Kind; 3] = [Kind::Node, Kind::Service, Kind::EndpointSlice];

/// Tells `events` of every Service, EndpointSlice and Node, then follows them until the receiver is dropped. Whatever
/// goes wrong is a [`SourceEvent::Problem`](super::SourceEvent::Problem) and tried again; it never fails.
pub async fn watch(
    connection: Connection,
    settings: KubernetesSettings,
    events: Sender<Batch>,
) -> Result<(), SourceError> {
    follow_all(&connection, &settings, &events, Timing::DEFAULT).await;
    Ok(())
}

async fn follow_all(
    connection: &Connection,
    settings: &KubernetesSettings,
    events: &Sender<Batch>,
    timing: Timing,
) {
    let reports = Reports::of(connection.server.clone(), connection.hint, connection.signs.clone());
    let reports = Arc::new(reports);
    let progress = Arc::new(Progress::of(KINDS.len()));
    let pause = Arc::new(Pause::new(timing.backoff));
    let followers = KINDS.map(|kind| {
        let teller = follow::Teller {
            events: events.clone(),
            reports: reports.clone(),
            progress: progress.clone(),
            pause: pause.clone(),
        };
        Follower::new(kind, connection.client.clone(), settings, timing, teller).run()
    });
    join_all(followers).await;
}

#[cfg(test)]
mod tests;
