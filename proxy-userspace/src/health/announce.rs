//! Says in the log when this node becomes ready or not ready, and why.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{info, warn};

use super::Health;
use super::ready::{Condition, Readiness};

/// How often the conditions are looked at: one of them fails by the passing of time.
const INTERVAL: Duration = Duration::from_secs(1);
/// An agent that starts is not ready for some seconds, as anybody expects.
const START: u32 = 10;

/// Whether each condition holds: 1, or 0.
pub type ConditionGauges = Family<[(&'static str, &'static str); 1], Gauge>;

/// Keeps the log and `gauges` at what `health` says, until `stop` is closed.
pub async fn announce(health: Arc<Health>, gauges: ConditionGauges, mut stop: watch::Receiver<()>) {
    let mut teller = Teller::default();
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
        match teller.news(&readiness) {
            Some(News::Ready) => info!("this node is ready"),
            Some(News::NotReady(why)) => warn!("this node is not ready: {why}"),
            None => {}
        }
    }
}

/// Remembers what was said, so that only changes are.
#[derive(Debug, Default)]
struct Teller {
    looks: u32,
    said: Option<String>,
}

#[derive(Debug, PartialEq, Eq)]
enum News {
    Ready,
    NotReady(String),
}

impl Teller {
    fn news(&mut self, readiness: &Readiness) -> Option<News> {
        self.looks = self.looks.saturating_add(1);
        let is_starting = self.said.is_none() && self.looks <= START;
        let now = readiness.to_string();
        if is_starting && !readiness.is_ready() || self.said.as_ref() == Some(&now) {
            return None;
        }
        self.said = Some(now.clone());
        Some(if readiness.is_ready() { News::Ready } else { News::NotReady(now) })
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
        let mut teller = Teller::default();
        let listing = failing(Condition::SourceListed, "not listed");
        for _ in 0..START {
            assert_eq!(teller.news(&listing), None, "it has only just begun");
        }
        assert_eq!(teller.news(&listing), Some(News::NotReady("source-listed: not listed".to_owned())));
        assert_eq!(teller.news(&listing), None);
        let node = failing(Condition::NodeFound, "no Node");
        assert_eq!(teller.news(&node), Some(News::NotReady("node-found: no Node".to_owned())));
        assert_eq!(teller.news(&Readiness::default()), Some(News::Ready));
        assert_eq!(teller.news(&Readiness::default()), None);
        assert_eq!(teller.news(&node), Some(News::NotReady("node-found: no Node".to_owned())), "at once");
    }

    #[test]
    fn a_node_that_is_ready_soon_was_never_called_not_ready() {
        let mut teller = Teller::default();
        assert_eq!(teller.news(&failing(Condition::DataPlane, "nothing was synced yet")), None);
        assert_eq!(teller.news(&Readiness::default()), Some(News::Ready));
    }
}
