//! Follows the desired state for the announcer.

use ipnet::IpNet;
use tokio::sync::watch;

use super::rank::{Ranks, ranks};
use crate::dataplane::SyncFailure;
use crate::model::Desired;
use crate::reconcile::{Observer, Synced};

/// Tells the announcer which addresses this node is a candidate for, once they are served.
#[derive(Debug)]
pub struct AnnounceObserver {
    /// `--l2-announce`.
    ranges: Vec<IpNet>,
    ranks: watch::Sender<Option<Ranks>>,
    /// What the last ranks were computed from.
    last: Option<Desired>,
}

impl AnnounceObserver {
    /// Returns an observer of a task that has not begun.
    #[must_use]
    pub fn new(ranges: Vec<IpNet>, ranks: watch::Sender<Option<Ranks>>) -> Self {
        Self { ranges, ranks, last: None }
    }
}

impl Observer for AnnounceObserver {
    fn synced(&mut self, synced: &Synced<'_>) {
        // A node without programs can't serve what it would announce.
        let can_serve = !synced.report.failures.iter().any(SyncFailure::is_fatal);
        let nothing = Desired::default();
        let desired =
            if can_serve && !synced.desired.announced.is_empty() { synced.desired } else { &nothing };
        let is_same = |last: &Desired| (&last.announced, &last.nodes) == (&desired.announced, &desired.nodes);
        if self.last.as_ref().is_some_and(is_same) {
            return;
        }
        self.ranks.send_replace(Some(ranks(desired, &self.ranges)));
        let (announced, nodes) = (desired.announced.clone(), desired.nodes.clone());
        self.last = Some(Desired { announced, nodes, ..Desired::default() });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::net::IpAddr;
    use std::time::Duration;

    use super::*;
    use crate::dataplane::SyncReport;
    use crate::model::{Candidates, Dirty};

    #[test]
    fn addresses_are_told_when_they_are_served_and_taken_back_when_nothing_is() {
        let (sender, ranks) = watch::channel(None);
        let mut observer = AnnounceObserver::new(vec!["203.0.113.0/24".parse().unwrap()], sender);
        let address = IpAddr::from([203, 0, 113, 7]);
        let desired = Desired {
            node_name: "node-1".to_owned(),
            nodes: [("node-1".to_owned(), BTreeSet::new())].into(),
            announced: [(address, Candidates::All)].into(),
            ..Desired::default()
        };
        let mut sync = |desired: &Desired, failures: Vec<SyncFailure>| {
            let report = SyncReport { failures, ..SyncReport::default() };
            let (dirty, took) = (Dirty::default(), Duration::ZERO);
            observer.synced(&Synced { desired, dirty: &dirty, report: &report, took });
            ranks.borrow().clone()
        };
        assert_eq!(sync(&desired, Vec::new()), Some(Ranks::from([(address, 0)])));
        let device = SyncFailure::Device("eth0: generic XDP".to_owned());
        assert_eq!(sync(&desired, vec![device]), Some(Ranks::from([(address, 0)])));
        assert_eq!(sync(&desired, vec![SyncFailure::Node("no uplink".to_owned())]), Some(Ranks::new()));
        assert_eq!(sync(&desired, Vec::new()), Some(Ranks::from([(address, 0)])));
        assert_eq!(sync(&Desired::default(), Vec::new()), Some(Ranks::new()));
    }
}
