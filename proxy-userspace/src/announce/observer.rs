//! Follows the desired state for the announcer.

use std::collections::BTreeSet;
use std::net::IpAddr;

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
    /// While not all objects can be read: the addresses whose Services were.
    known: BTreeSet<IpAddr>,
}

impl AnnounceObserver {
    /// Returns an observer of a task that has not begun.
    #[must_use]
    pub fn new(ranges: Vec<IpNet>, wanted: watch::Sender<Option<Wanted>>) -> Self {
        Self { ranges, wanted, last: None, known: BTreeSet::new() }
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
            *was_complete == is_complete
                && (&desired.announced, &desired.nodes, &desired.without_clients, &desired.not_ready)
                    == (&last.announced, &last.nodes, &last.without_clients, &last.not_ready)
        };
        if self.last.as_ref().is_some_and(is_same) {
            return;
        }
        if is_complete {
            self.known.clear();
        } else {
            // Without any candidate, the slices may be what can't be read.
            let known = desired.announced.iter().filter(|(_, candidates)| candidates.is_any());
            self.known.extend(known.map(|(address, _)| *address));
        }
        let ranks = ranks(desired, &self.ranges);
        self.wanted.send_replace(Some(Wanted { ranks, known: self.known.clone(), is_complete }));
        let last = Desired {
            nodes: desired.nodes.clone(),
            without_clients: desired.without_clients.clone(),
            not_ready: desired.not_ready.clone(),
            announced: desired.announced.clone(),
            ..Desired::default()
        };
        self.last = Some((last, is_complete));
    }
}

#[cfg(test)]
mod tests {
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
            let Wanted { ranks, is_complete, .. } = wanted.borrow().clone().unwrap();
            (ranks, is_complete)
        };
        let is = |ranks: Ranks, is_complete| (ranks, is_complete);
        let with = || Ranks::from([(address, 0.into())]);
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

    #[test]
    fn while_objects_are_unreadable_only_addresses_of_services_that_were_read_are_given_up() {
        let (sender, wanted) = watch::channel(None);
        let mut observer = AnnounceObserver::new(vec!["203.0.113.0/24".parse().unwrap()], sender);
        let [served, elsewhere, unknown, nowhere] = [7, 8, 9, 10].map(|n| IpAddr::from([203, 0, 113, n]));
        let mut desired = Desired {
            node_name: "node-1".to_owned(),
            nodes: [("node-1".to_owned(), BTreeSet::new())].into(),
            announced: [(served, Candidates::All), (elsewhere, Candidates::Only(["node-2".into()].into()))]
                .into(),
            ..Desired::default()
        };
        let mut over = |desired: &Desired, incomplete| {
            let (dirty, report) = (Dirty { incomplete, ..Dirty::default() }, SyncReport::default());
            observer.synced(&Synced { desired, dirty: &dirty, report: &report, took: Duration::ZERO });
            let wanted = wanted.borrow().clone().unwrap();
            [served, elsewhere, unknown, nowhere].map(|address| wanted.is_over(address))
        };
        assert_eq!(over(&desired, true), [false, true, false, false]);
        desired.announced.remove(&served);
        assert_eq!(over(&desired, true), [true, true, false, false]);
        assert_eq!(over(&desired, false), [true, true, true, true]);
    }
}
