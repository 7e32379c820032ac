//! The checks of this node that a running agent repeats: for `/readyz`, Events on the Node, the metrics and the log.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tracing::{info, warn};

use crate::check::{self, Checked, Facts, Finding, Outcome, Turn};
use crate::config::Settings;
use crate::events::NodeProblem;
use crate::faces::ServedState;

/// Time between two looks. A look reads the pinned maps and all rules, and takes some tens of milliseconds.
const INTERVAL: Duration = Duration::from_mins(1);
/// Time until the first look. An agent that starts attaches its programs first.
const FIRST: Duration = Duration::from_secs(10);

/// The receivers of what is found.
#[derive(Debug)]
pub struct Receivers {
    /// The HTTP servers.
    pub served: ServedState,
    /// The task that writes Events, if there is an API server.
    pub events: mpsc::Sender<NodeProblem>,
}

/// Checks the node each minute, for ever. `nodes` are the addresses of the cluster's nodes, once they are known.
pub async fn inspect(
    settings: Settings,
    nodes: watch::Receiver<Option<BTreeSet<IpAddr>>>,
    receivers: Receivers,
) {
    let mut ticks = interval_at(Instant::now() + FIRST, INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut told = Told::default();
    loop {
        ticks.tick().await;
        let Some(nodes) = nodes.borrow().clone() else { continue };
        let (settings, runtime) = (settings.clone(), Handle::current());
        // The readers block, and a cluster's Services and rules take a while to look through.
        let checked = spawn_blocking(move || {
            let facts = runtime.block_on(Facts::of_node(settings, &nodes));
            check::run(&check::of_each_minute().collect::<Vec<_>>(), &facts)
        });
        let Ok(checked) = checked.await else { continue };
        receivers.served.set_checks(&checked);
        for problem in told.news(&checked) {
            // Without an API server nobody receives. If the channel is full, the problem is in the log only.
            let _ = receivers.events.try_send(problem);
        }
    }
}

/// The findings that were told, by check.
#[derive(Debug, Default)]
struct Told(BTreeMap<&'static str, BTreeSet<Finding>>);

impl Told {
    /// Logs what is new, and what is over. Returns the new findings for Events.
    fn news(&mut self, checked: &[Checked]) -> Vec<NodeProblem> {
        let mut problems = Vec::new();
        for one in checked {
            let wrong = one.findings.iter().filter(|finding| finding.outcome >= Outcome::Warn).cloned();
            let wrong: BTreeSet<Finding> = wrong.collect();
            let former = self.0.insert(one.id, wrong.clone()).unwrap_or_default();
            for finding in wrong.difference(&former) {
                let (reason, remedy) = (reason(one.id), finding.remedy.as_str());
                warn!(check = one.id, reason, remedy, "{}", finding.found);
                let note = format!("{}. What to do: {remedy}", finding.found);
                problems.push(NodeProblem { reason, note });
            }
            if wrong.is_empty() && !former.is_empty() {
                info!(check = one.id, "nothing is wrong any more");
            }
        }
        problems
    }
}

fn reason(id: &str) -> &'static str {
    let found = check::of_each_minute().find(|check| check.id == id);
    found.map_or("CheckFailed", |check| match check.turn {
        Turn::EachMinute { reason, .. } => reason,
        Turn::Asked => "CheckFailed",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_told_once_until_it_was_gone() {
        let mut told = Told::default();
        let checked = |findings: &[Finding]| [Checked { id: "firewall", findings: findings.to_vec() }];
        let drops = Finding::warn("inet fw/f drops", "nft");
        let expected =
            NodeProblem { reason: "FirewallConflict", note: "inet fw/f drops. What to do: nft".to_owned() };
        let alone = std::slice::from_ref(&drops);
        assert_eq!(told.news(&checked(alone)), std::slice::from_ref(&expected));
        assert_eq!(told.news(&checked(alone)), []);
        let more = told.news(&checked(&[drops.clone(), Finding::fail("all", "x")]));
        assert_eq!(more.len(), 1);
        assert_eq!(told.news(&checked(&[Finding::pass("fine")])), []);
        assert_eq!(told.news(&checked(&[drops])), [expected]);
    }
}
