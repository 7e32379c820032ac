//! Follows the desired state for the announcer.

use ipnet::IpNet;
use tokio::sync::watch;

use super::rank::{Wanted, ranks};
use crate::model::Desired;
use crate::reconcile::{Observer, Synced};

/// Tells the announcer which addresses this node is a candidate for, once they are served.
#[derive(Debug)]
pub struct AnnounceObserver {
    /// `--l2-announce`.
    ranges: Vec<IpNet>,
    wanted: watch::Sender<Option<Wanted>>,
    /// What the last ranks were computed from, and whether that was complete.
    last: Option<(Desired, bool)>,
}

impl AnnounceObserver {
    /// Returns an observer of a task that has not begun.
    #[must_use]
    pub fn new(ranges: Vec<IpNet>, wanted: watch::Sender<Option<Wanted>>) -> Self {
        Self { ranges, wanted, last: None }
    }
}

impl Observer for AnnounceObserver {
    fn synced(&mut self, synced: &Synced<'_>) {
        // A node without programs can't serve what it would announce.
        let can_serve = synced.report.serves();
        let is_complete = !synced.dirty.incomplete || !can_serve;
        let nothing = Desired::default();
        let desired =
            if can_serve && !synced.desired.announced.is_empty() { synced.desired } else { &nothing };
        let is_same = |(last, was_complete): &(Desired, bool)| {
            let parts = |desired: &Desired| {
                (&desired.announced, &desired.nodes, &desired.without_clients)
                    == (&last.announced, &last.nodes, &last.without_clients)
            };
            *was_complete == is_complete && parts(desired)
        };
        if self.last.as_ref().is_some_and(is_same) {
            return;
        }
        self.wanted.send_replace(Some(Wanted { ranks: ranks(desired, &self.ranges), is_complete }));
        let last = Desired {
            nodes: desired.nodes.clone(),
            without_clients: desired.without_clients.clone(),
            announced: desired.announced.clone(),
            ..Desired::default()
        };
        self.last = Some((last, is_complete));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::net::IpAddr;
    use std::time::Duration;

    use super::*;
    use crate::announce::rank::Ranks;
    use crate::dataplane::{SyncFailure, SyncReport};
    use crate::model::{Candidates, Dirty};

    #[test]
    fn addresses_are_told_when_they_are_served_and_taken_back_when_nothing_is() {
        let (sender, wanted) = watch::channel(None);
        let mut observer = AnnounceObserver::new(vec!["203.0.113.0/24".parse().unwrap()], sender);
        let address = IpAddr::from([203, 0, 113, 7]);
        let desired = Desired {
            node_name: "node-1".to_owned(),
            nodes: [("node-1".to_owned(), BTreeSet::new())].into(),
            announced: [(address, Candidates::All)].into(),
            ..Desired::default()
        };
        let mut sync = |desired: &Desired, incomplete: bool, failures: Vec<SyncFailure>| {
            let report = SyncReport { failures, ..SyncReport::default() };
            let (dirty, took) = (Dirty { incomplete, ..Dirty::default() }, Duration::ZERO);
            observer.synced(&Synced { desired, dirty: &dirty, report: &report, took });
            wanted.borrow().clone().unwrap()
        };
        let is = |ranks: Ranks, is_complete| Wanted { ranks, is_complete };
        let with = || Ranks::from([(address, 0)]);
        assert_eq!(sync(&desired, false, Vec::new()), is(with(), true));
        let device = SyncFailure::Device("eth0: generic XDP".to_owned());
        assert_eq!(sync(&desired, false, vec![device]), is(with(), true));
        let node = || vec![SyncFailure::Node("no uplink".to_owned())];
        assert_eq!(sync(&desired, false, node()), is(Ranks::new(), true));
        assert_eq!(sync(&desired, false, Vec::new()), is(with(), true));
        // An object that can't be read now may be that of an address.
        assert_eq!(sync(&Desired::default(), true, Vec::new()), is(Ranks::new(), false));
        assert_eq!(sync(&desired, true, node()), is(Ranks::new(), true));
        assert_eq!(sync(&Desired::default(), false, Vec::new()), is(Ranks::new(), true));
    }
}
