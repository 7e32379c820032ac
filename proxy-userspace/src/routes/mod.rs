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
use tracing::{debug, info, warn};

use crate::dataplane::SyncFailure;
use crate::node::{NodeError, OwnRoute, OwnRoutes, RouteSettings};
use crate::reconcile::{Observer, Synced};

/// Time between two looks at the routes: a person or another program may have removed one.
const LOOK: Duration = Duration::from_secs(10);

/// Tells the task which routes to keep, once the addresses are served.
#[derive(Debug)]
pub struct RouteObserver {
    settings: RouteSettings,
    wanted: watch::Sender<Option<BTreeSet<OwnRoute>>>,
}

impl RouteObserver {
    /// Returns an observer of a task that has not begun.
    #[must_use]
    pub fn new(settings: RouteSettings, wanted: watch::Sender<Option<BTreeSet<OwnRoute>>>) -> Self {
        Self { settings, wanted }
    }
}

impl Observer for RouteObserver {
    fn synced(&mut self, synced: &Synced<'_>) {
        let mut wanted = plan::plan(synced.desired, &self.settings);
        // A node without programs can't serve what it would announce.
        if synced.report.failures.iter().any(SyncFailure::is_fatal) {
            wanted.retain(|route| route.gateway.is_some());
        }
        self.wanted.send_if_modified(|now| {
            let is_new = now.as_ref() != Some(&wanted);
            *now = Some(wanted);
            is_new
        });
    }
}

/// Keeps our routes as `wanted`, until the sender is gone. They stay when the agent ends.
pub async fn keep_routes(mut wanted: watch::Receiver<Option<BTreeSet<OwnRoute>>>) {
    if wanted.wait_for(Option::is_some).await.is_err() {
        return;
    }
    let routes = match OwnRoutes::open() {
        Ok(routes) => routes,
        Err(error) => return warn!(%error, "no routes are kept"),
    };
    let mut keeper = Keeper { routes, refused: BTreeMap::new() };
    loop {
        let now = wanted.borrow_and_update().clone().unwrap_or_default();
        if let Err(error) = keeper.keep(&now).await {
            debug!(%error, "the routes can't be read");
        }
        tokio::select! {
            changed = wanted.changed() => if changed.is_err() { return },
            () = sleep(LOOK) => {}
        }
    }
}

struct Keeper {
    routes: OwnRoutes,
    /// Why the kernel refuses a route. It is told once.
    refused: BTreeMap<OwnRoute, String>,
}

impl Keeper {
    /// Removes what is not wanted first: a prefix may have another next hop now.
    async fn keep(&mut self, wanted: &BTreeSet<OwnRoute>) -> Result<(), NodeError> {
        let found = self.routes.list().await?;
        self.refused.retain(|route, _| wanted.contains(route));
        for route in &found - wanted {
            let result = self.routes.remove(route).await;
            self.tell(route, "removed", result);
        }
        for route in wanted - &found {
            let result = self.routes.add(route).await;
            self.tell(route, "added", result);
        }
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
                "; the node must be on a subnet of this node, and no other program may have set a route with this metric"
            } else {
                ""
            };
            warn!(prefix = %route.prefix, gateway, error = why, "the route is not {done}{hint}");
            self.refused.insert(route, why);
        }
    }
}
