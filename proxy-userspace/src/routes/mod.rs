//! Keeps routes in the main table: to addresses of Services and to this node's pods, for routing daemons to announce, and
//! to the pods of other nodes.
//!
//! A daemon such as FRR or BIRD announces what it finds in the kernel. So a route to an address is there only while this
//! node serves the address. It leads nowhere: the programs take packets of Services before the kernel routes them (decision
//! 190).

mod keeper;
mod plan;
mod tunnels;

use std::collections::BTreeSet;
use std::time::Duration;

use ipnet::IpNet;
use tokio::sync::watch;
use tokio::time::sleep;

use self::keeper::{Keeper, Outcome};
use self::tunnels::OwnEnd;
use crate::model::Desired;
use crate::node::{OwnRoute, PodRoutes, RouteSettings, Via};
use crate::reconcile::{Observer, Synced};

/// Time between two looks at the routes: a person or another program may have removed one.
const LOOK: Duration = Duration::from_secs(30);
/// Time until it is tried again to remove a route, or to read them. A route that should be gone brings packets that nobody
/// serves.
const RETRY: Duration = Duration::from_secs(5);

/// The routes to keep.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WantedRoutes {
    routes: BTreeSet<OwnRoute>,
    /// Whether nodes behind a router are reached by tunnels.
    tunnels: bool,
    own: OwnEnd,
    /// The prefixes of routes whose objects were read by this agent, now or before.
    known: BTreeSet<IpNet>,
    /// Whether all objects could be read. If not, other routes of an earlier agent stay.
    is_complete: bool,
    /// Whether this node serves. If not, no route to an address of a Service stays.
    serves: bool,
}

impl WantedRoutes {
    /// Returns whether a route that was found is to go. One that leads elsewhere would be in the way of a wanted one.
    fn replaces(&self, found: OwnRoute) -> bool {
        let is_in_the_way = || self.routes.iter().any(|route| route.prefix == found.prefix);
        let is_over =
            self.is_complete || self.known.contains(&found.prefix) || !self.serves && is_to_service(&found);
        !self.routes.contains(&found) && (is_over || is_in_the_way())
    }
}

/// Returns whether a route is there for the address of a Service, and not for pods.
fn is_to_service(route: &OwnRoute) -> bool {
    route.via == Via::Nowhere && route.prefix.prefix_len() == route.prefix.max_prefix_len()
}

/// Tells the task which routes to keep, once the addresses are served.
#[derive(Debug)]
pub struct RouteObserver {
    settings: RouteSettings,
    wanted: watch::Sender<Option<WantedRoutes>>,
    /// While not all objects can be read: the prefixes of routes whose objects were.
    known: BTreeSet<IpNet>,
}

impl RouteObserver {
    /// Returns an observer of a task that has not begun.
    #[must_use]
    pub fn new(settings: RouteSettings, wanted: watch::Sender<Option<WantedRoutes>>) -> Self {
        Self { settings, wanted, known: BTreeSet::new() }
    }
}

impl Observer for RouteObserver {
    fn synced(&mut self, synced: &Synced<'_>) {
        let is_complete = !synced.dirty.incomplete;
        let mut routes = plan::plan(synced.desired, &self.settings);
        if is_complete {
            self.known.clear();
        } else {
            self.known.extend(routes.iter().map(|route| route.prefix));
            // Other nodes may serve these. Without any candidate, the slices may be what can't be read.
            let elsewhere = synced.desired.announced.iter().filter(|(_, candidates)| candidates.is_any());
            self.known.extend(elsewhere.map(|(address, _)| IpNet::from(*address)));
        }
        // A node without programs can't serve what it would announce.
        let serves = synced.report.serves();
        routes.retain(|route| serves || !is_to_service(route));
        let tunnels = self.settings.to_pods == PodRoutes::Ipip;
        let Desired { nodes, pod_ranges, node_name, .. } = synced.desired;
        let own = OwnEnd {
            addresses: nodes.get(node_name).cloned().unwrap_or_default(),
            ranges: pod_ranges.get(node_name).cloned().unwrap_or_default(),
        };
        let known = self.known.clone();
        let wanted = WantedRoutes { routes, tunnels, own, known, is_complete, serves };
        self.wanted.send_if_modified(|now| {
            let is_new = now.as_ref() != Some(&wanted);
            *now = Some(wanted);
            is_new
        });
    }
}

/// Keeps our routes as `wanted`, until the sender is gone. They stay when the agent ends.
pub async fn keep_routes(mut wanted: watch::Receiver<Option<WantedRoutes>>) {
    if wanted.wait_for(Option::is_some).await.is_err() {
        return;
    }
    let mut keeper = Keeper::default();
    loop {
        let now = wanted.borrow_and_update().clone().unwrap_or_default();
        // Without any route there is nothing to look after.
        let has_routes = !now.routes.is_empty();
        let outcome = keeper.try_keep(now).await;
        let pause = if outcome == Outcome::Stuck { RETRY } else { LOOK };
        tokio::select! {
            changed = wanted.changed() => if changed.is_err() { return },
            () = sleep(pause), if has_routes || outcome != Outcome::Done => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn while_objects_are_unreadable_only_routes_that_are_wrong_for_sure_go() {
        let route = |prefix: &str, via| OwnRoute { prefix: prefix.parse().unwrap(), via };
        let node = |number| Via::Gateway([172, 30, 0, number].into());
        let (to_pods, moved) = (route("10.244.2.0/24", node(12)), route("10.244.2.0/24", node(22)));
        let (other, served) = (route("10.244.3.0/24", node(13)), route("203.0.113.7/32", Via::Nowhere));
        let goes = |is_complete, serves| {
            let wanted =
                WantedRoutes { routes: [to_pods].into(), is_complete, serves, ..WantedRoutes::default() };
            [to_pods, moved, other, served].map(|found| wanted.replaces(found))
        };
        let wanted = WantedRoutes { known: [served.prefix].into(), serves: true, ..WantedRoutes::default() };
        assert_eq!(
            [other, served].map(|found| wanted.replaces(found)),
            [false, true],
            "a Service that was read"
        );
        assert_eq!(goes(true, true), [false, true, true, true]);
        assert_eq!(goes(false, true), [false, true, false, false]);
        assert_eq!(goes(false, false), [false, true, false, true]);
    }
}
