//! The agent's log on standard error.

use std::io::{self, IsTerminal};

use tokio::signal::unix::{SignalKind, signal};
use tracing::{info, warn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload::Handle;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, fmt, reload};

use crate::config::LogFormat;

/// What a person cares about. The netlink crate warns of overruns, which the monitor handles; kube calls each
/// failed attempt an error without saying whose, which the source does once.
const USUAL: &str = "info,netlink_proto=error,kube_client=off";
/// Decisions of ours, too.
const DETAILED: &str = "info,millrace=debug,netlink_proto=error,kube_client=off";

/// The level of a running agent's log.
#[derive(Debug)]
pub struct Level {
    handle: Handle<EnvFilter, Registry>,
    usual: String,
}

/// Writes the log to standard error: RUST_LOG as everywhere, or else [`USUAL`].
pub fn to_stderr(format: LogFormat) -> Level {
    let usual = usual(std::env::var("RUST_LOG").ok());
    let (filter, handle) = reload::Layer::new(EnvFilter::new(&usual));
    let text = || fmt::layer().with_writer(io::stderr).with_target(false);
    let registry = tracing_subscriber::registry().with(filter);
    match format {
        LogFormat::Text => registry.with(text().with_ansi(io::stderr().is_terminal())).init(),
        LogFormat::Json => registry.with(text().json().flatten_event(true)).init(),
    }
    Level { handle, usual }
}

/// Returns RUST_LOG if it is a filter, or else [`USUAL`].
fn usual(given: Option<String>) -> String {
    given.filter(|given| EnvFilter::try_new(given).is_ok()).unwrap_or_else(|| USUAL.to_owned())
}

impl Level {
    /// Changes between the usual and the detailed level at each SIGUSR1, until the process ends.
    pub async fn follow_signal(self) {
        let Ok(mut signals) = signal(SignalKind::user_defined1()) else {
            warn!("SIGUSR1 can't be received; the log keeps its level");
            return;
        };
        let mut is_detailed = false;
        while signals.recv().await.is_some() {
            is_detailed = !is_detailed;
            let level = if is_detailed { DETAILED } else { &self.usual };
            match self.handle.reload(EnvFilter::new(level)) {
                Ok(()) => info!(filter = level, "SIGUSR1 changed the level of the log"),
                Err(error) => warn!(%error, "changing the level of the log failed"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_that_is_none_leaves_the_usual_one() {
        assert_eq!(usual(Some("millrace=debug".to_owned())), "millrace=debug");
        assert_eq!(usual(Some("millrace=loud".to_owned())), USUAL);
        assert_eq!(usual(None), USUAL);
        for filter in [USUAL, DETAILED] {
            assert!(EnvFilter::try_new(filter).is_ok(), "{filter}");
        }
    }
}
