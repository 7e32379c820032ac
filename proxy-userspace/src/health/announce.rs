//! Logs when this node becomes ready or not ready, and why.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{info, warn};

use super::Health;
use super::ready::{Condition, Readiness};

/// Time between two looks at the conditions: one of them fails by the passing of time.
const INTERVAL: Duration = Duration::from_secs(1);
/// An agent that starts is not ready for some seconds. That is expected, and not logged.
const START: u32 = 10;

/// The metric of each condition: 1 while it holds, else 0.
pub type ConditionGauges = Family<[(&'static str, &'static str); 1], Gauge>;

/// Logs changes of `health` and keeps `gauges` up to date, until `stop` is closed.
pub async fn announce(health: Arc<Health>, gauges: ConditionGauges, mut stop: watch::Receiver<()>) {
    let mut log = ReadinessLog::default();
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = stop.changed() => return,
            _ = ticks.tick() => {}
        }
        let readiness = health.readiness();
        for condition in Condition::ALL {
            let holds = readiness.message(condition).is_none();
            gauges.get_or_create(&[("condition", condition.name())]).set(i64::from(holds));
        }
        match log.change(&readiness) {
            Some(Change::Ready) => info!("this node is ready"),
            Some(Change::NotReady(reason)) => warn!(reason, "this node is not ready"),
            None => {}
        }
    }
}

/// The state that was logged last, so that only changes are logged.
#[derive(Debug, Default)]
struct ReadinessLog {
    looks: u32,
    said: Option<String>,
}

#[derive(Debug, PartialEq, Eq)]
enum Change {
    Ready,
    NotReady(String),
}

impl ReadinessLog {
    fn change(&mut self, readiness: &Readiness) -> Option<Change> {
        self.looks = self.looks.saturating_add(1);
        let is_starting = self.said.is_none() && self.looks <= START;
        let now = readiness.to_string();
        if is_starting && !readiness.is_ready() || self.said.as_ref() == Some(&now) {
            return None;
        }
        self.said = Some(now.clone());
        Some(if readiness.is_ready() { Change::Ready } else { Change::NotReady(now) })
    }
}

#[cfg(test)]
mod tests {
    use super::super::ready::Failing;
    use super::*;

    fn failing(condition: Condition, message: &str) -> Readiness {
        let failing = Failing { condition, message: message.to_owned(), cause: Some("secret".to_owned()) };
        Readiness { failing: vec![failing], failures: Vec::new() }
    }

    #[test]
    fn what_keeps_a_node_from_being_ready_is_said_once_each_time_it_changes() {
        let mut log = ReadinessLog::default();
        let listing = failing(Condition::SourceListed, "not listed");
        for _ in 0..START {
            assert_eq!(log.change(&listing), None, "it has only just begun");
        }
        assert_eq!(log.change(&listing), Some(Change::NotReady("source-listed: not listed".to_owned())));
        assert_eq!(log.change(&listing), None);
        let node = failing(Condition::NodeFound, "no Node");
        assert_eq!(log.change(&node), Some(Change::NotReady("node-found: no Node".to_owned())));
        assert_eq!(log.change(&Readiness::default()), Some(Change::Ready));
        assert_eq!(log.change(&Readiness::default()), None);
        assert_eq!(log.change(&node), Some(Change::NotReady("node-found: no Node".to_owned())), "at once");
    }

    #[test]
    fn a_node_that_is_ready_soon_was_never_called_not_ready() {
        let mut log = ReadinessLog::default();
        assert_eq!(log.change(&failing(Condition::DataPlane, "no sync has ended yet")), None);
        assert_eq!(log.change(&Readiness::default()), Some(Change::Ready));
    }
}
