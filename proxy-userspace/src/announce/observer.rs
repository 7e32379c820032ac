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
    /// The addresses whose Services were read since all objects could be read.
    known: BTreeSet<IpAddr>,
}

impl AnnounceObserver {
    /// Returns an observer of a task that has not begun.
    #[must_use]
    pub fn new(ranges: Vec<IpNet>, wanted: watch::Sender<Option<Wanted>>) -> Self {
        Self { ranges, wanted, last: None, known: BTreeSet::new() }
    }

    fn is_announced(&self, address: IpAddr) -> bool {
        self.last.as_ref().is_some_and(|(last, _)| last.announced.contains_key(&address))
    }
}

impl Observer for AnnounceObserver {
    fn synced(&mut self, synced: &Synced<'_>) {
        // A node without programs can't serve what it would announce.
        let can_serve = synced.report.serves();
        let is_complete = !synced.dirty.incomplete || !can_serve;
        let nothing = Desired::default();
        let mut unwritten = synced.unwritten();
        // A Service that is served already goes on with its former endpoints.
        unwritten
            .retain(|address| synced.desired.announced.contains_key(address) && !self.is_announced(*address));
        let without_new = (!unwritten.is_empty()).then(|| parts(synced.desired, &unwritten));
        let desired = match &without_new {
            _ if !can_serve || synced.desired.announced.is_empty() => &nothing,
            Some(desired) => desired,
            None => synced.desired,
        };
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
        }
        self.known.extend(desired.announced.keys());
        let ranks = ranks(desired, &self.ranges);
        self.wanted.send_replace(Some(Wanted { ranks, known: self.known.clone(), is_complete }));
        self.last = Some((parts(desired, &BTreeSet::new()), is_complete));
    }
}

/// Returns what ranks are computed from, without some addresses.
fn parts(desired: &Desired, without: &BTreeSet<IpAddr>) -> Desired {
    let mut announced = desired.announced.clone();
    announced.retain(|address, _| !without.contains(address));
    Desired {
        node_name: desired.node_name.clone(),
        nodes: desired.nodes.clone(),
        without_clients: desired.without_clients.clone(),
        not_ready: desired.not_ready.clone(),
        announced,
        ..Desired::default()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::*;
    use crate::announce::rank::Ranks;
    use crate::dataplane::{SyncFailure, SyncReport};
    use crate::model::{
        Algorithm, Candidates, Dirty, Family, Forwarding, Frontend, FrontendKind, List, PortKey, Protocol,
        Scope, ServiceKey, ServicePort,
    };

    fn port_at(address: IpAddr) -> (PortKey, ServicePort) {
        let service = ServiceKey { namespace: "default".to_owned(), name: "web".to_owned() };
        let frontend = Frontend {
            address: (address, 80).into(),
            scope: Scope::External,
            kind: FrontendKind::LoadBalancer,
            list: List::Cluster,
        };
        let port = ServicePort {
            protocol: Protocol::Tcp,
            frontends: [frontend].into(),
            forwarding: Forwarding::Snat,
            algorithm: Algorithm::Random,
            scheduler: None,
            affinity_seconds: 0,
            source_ranges: None,
            endpoints: BTreeMap::new(),
            cluster: None,
            local: None,
            has_any: true,
        };
        (PortKey { service, port: "http".to_owned(), family: Family::of(address) }, port)
    }

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

    #[test]
    fn a_new_address_waits_until_its_service_is_written_and_one_that_is_served_stays() {
        let (sender, wanted) = watch::channel(None);
        let mut observer = AnnounceObserver::new(vec!["203.0.113.0/24".parse().unwrap()], sender);
        let address = IpAddr::from([203, 0, 113, 7]);
        let (key, port) = port_at(address);
        let desired = Desired {
            node_name: "node-1".to_owned(),
            nodes: [("node-1".to_owned(), BTreeSet::new())].into(),
            announced: [(address, Candidates::All)].into(),
            ports: [(key.clone(), port)].into(),
            ..Desired::default()
        };
        let mut is_wanted = |pending: bool| {
            let pending = pending.then(|| (key.clone(), "full".to_owned())).into_iter().collect();
            let (dirty, report) = (Dirty::default(), SyncReport { pending, ..SyncReport::default() });
            observer.synced(&Synced {
                desired: &desired,
                dirty: &dirty,
                report: &report,
                took: Duration::ZERO,
            });
            wanted.borrow().clone().unwrap().ranks.contains_key(&address)
        };
        assert_eq!([true, false, true].map(&mut is_wanted), [false, true, true]);
    }

    #[test]
    fn while_objects_are_unreadable_only_addresses_of_services_that_were_read_are_given_up() {
        let (sender, wanted) = watch::channel(None);
        let mut observer = AnnounceObserver::new(vec!["203.0.113.0/24".parse().unwrap()], sender);
        let [served, elsewhere, unknown] = [7, 8, 9].map(|n| IpAddr::from([203, 0, 113, n]));
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
            [served, elsewhere, unknown].map(|address| wanted.is_over(address))
        };
        assert_eq!(over(&desired, true), [false, true, false]);
        desired.announced.remove(&served);
        assert_eq!(over(&desired, true), [true, true, false]);
        assert_eq!(over(&desired, false), [true, true, true]);
    }
}
