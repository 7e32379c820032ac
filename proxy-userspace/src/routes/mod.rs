//! Keeps routes in the main table: to addresses of Services, for routing daemons to announce, and to the pods of other
//! nodes.
//!
//! A daemon such as FRR or BIRD announces what it finds in the kernel. So a route to an address is there only while this
//! node serves the address. It leads nowhere: the programs take packets of Services before the kernel routes them (decision
//! 190).

mod plan;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{info, warn};

use crate::dataplane::SyncFailure;
use crate::node::{NodeError, OwnRoute, OwnRoutes, RouteSettings};
use crate::reconcile::{Observer, Synced};

/// Time between two looks at the routes: a person or another program may have removed one.
const LOOK: Duration = Duration::from_secs(30);

/// The routes to keep.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WantedRoutes {
    routes: BTreeSet<OwnRoute>,
    /// Whether all objects could be read. If not, other routes of ours stay.
    is_complete: bool,
    /// Whether this node serves. If not, no route to an address of a Service stays.
    serves: bool,
}

impl WantedRoutes {
    /// Returns whether a route that was found is to go. One of another next hop would be in the way of a wanted one.
    fn replaces(&self, found: OwnRoute) -> bool {
        let is_in_the_way = || self.routes.iter().any(|route| route.prefix == found.prefix);
        let is_over = self.is_complete || !self.serves && found.gateway.is_none();
        !self.routes.contains(&found) && (is_over || is_in_the_way())
    }
}

/// Tells the task which routes to keep, once the addresses are served.
#[derive(Debug)]
pub struct RouteObserver {
    settings: RouteSettings,
    wanted: watch::Sender<Option<WantedRoutes>>,
}

impl RouteObserver {
    /// Returns an observer of a task that has not begun.
    #[must_use]
    pub fn new(settings: RouteSettings, wanted: watch::Sender<Option<WantedRoutes>>) -> Self {
        Self { settings, wanted }
    }
}

impl Observer for RouteObserver {
    fn synced(&mut self, synced: &Synced<'_>) {
        let mut routes = plan::plan(synced.desired, &self.settings);
        // A node without programs can't serve what it would announce.
        let serves = !synced.report.failures.iter().any(SyncFailure::is_fatal);
        routes.retain(|route| serves || route.gateway.is_some());
        let wanted = WantedRoutes { routes, is_complete: !synced.dirty.incomplete, serves };
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
    let mut keeper = Keeper { routes: None, refused: BTreeMap::new(), failed: None };
    loop {
        let now = wanted.borrow_and_update().clone().unwrap_or_default();
        let is_kept = keeper.try_keep(&now).await;
        // Without any route there is nothing to look after.
        let is_idle = is_kept && now.routes.is_empty();
        tokio::select! {
            changed = wanted.changed() => if changed.is_err() { return },
            () = sleep(LOOK), if !is_idle => {}
        }
    }
}

struct Keeper {
    routes: Option<OwnRoutes>,
    /// Why the kernel refuses a route. It is told once.
    refused: BTreeMap<OwnRoute, String>,
    /// Why the routes can't be read. It is told once.
    failed: Option<String>,
}

impl Keeper {
    /// Returns whether the kernel was asked and everything was done.
    async fn try_keep(&mut self, wanted: &WantedRoutes) -> bool {
        let result = self.keep(wanted).await;
        let failed = result.as_ref().err().map(ToString::to_string);
        if let Some(error) = failed.as_ref().filter(|_| self.failed != failed) {
            warn!(%error, "the routes of Millrace can't be read");
        }
        self.failed = failed;
        if result.is_err() {
            self.routes = None;
        }
        result.is_ok() && self.refused.is_empty()
    }

    /// Removes what is not wanted first: a prefix may have another next hop now.
    async fn keep(&mut self, wanted: &WantedRoutes) -> Result<(), NodeError> {
        let routes = match self.routes.take() {
            Some(routes) => routes,
            None => OwnRoutes::open()?,
        };
        let found = routes.list().await?;
        self.refused.retain(|route, _| wanted.routes.contains(route) || found.contains(route));
        for route in found.iter().filter(|route| wanted.replaces(**route)) {
            let result = routes.remove(*route).await;
            self.tell(*route, "removed", result);
        }
        for route in &wanted.routes - &found {
            let result = routes.add(route).await;
            self.tell(route, "added", result);
        }
        self.routes = Some(routes);
        Ok(())
    }

    fn tell(&mut self, route: OwnRoute, done: &'static str, result: Result<(), NodeError>) {
        let gateway = route.gateway.map(tracing::field::display);
        let Err(error) = result else {
            self.refused.remove(&route);
            return info!(prefix = %route.prefix, gateway, "route {done}");
        };
        let why = error.to_string();
        if self.refused.get(&route) != Some(&why) {
            let hint = if gateway.is_some() {
                "; the other node must be on a subnet of this one, and no route of others may have this metric"
            } else {
                ""
            };
            warn!(prefix = %route.prefix, gateway, error = why, "the route is not {done}{hint}");
            self.refused.insert(route, why);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn while_objects_are_unreadable_only_routes_that_are_wrong_for_sure_go() {
        let route = |prefix: &str, gateway: Option<&str>| OwnRoute {
            prefix: prefix.parse().unwrap(),
            gateway: gateway.map(|text| text.parse().unwrap()),
        };
        let to_pods = route("10.244.2.0/24", Some("172.30.0.12"));
        let moved = route("10.244.2.0/24", Some("172.30.0.22"));
        let (other, served) = (route("10.244.3.0/24", Some("172.30.0.13")), route("203.0.113.7/32", None));
        let goes = |is_complete, serves| {
            let wanted = WantedRoutes { routes: [to_pods].into(), is_complete, serves };
            [to_pods, moved, other, served].map(|found| wanted.replaces(found))
        };
        assert_eq!(goes(true, true), [false, true, true, true]);
        assert_eq!(goes(false, true), [false, true, false, false]);
        assert_eq!(goes(false, false), [false, true, false, true]);
    }
}
