//! Brings the kernel's routes to the wanted ones.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::{WantedRoutes, tunnels};
use crate::node::{NodeError, OwnRoute, OwnRoutes, Route, TunnelEnds, Via};

/// Time for which a tunnel stays that no route needs: the other node has looked twice by then.
const FAREWELL: Duration = Duration::from_mins(1);

/// What an attempt achieved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The kernel has what is wanted.
    Done,
    /// The kernel refuses a route or a tunnel.
    Refused,
    /// A route that should be gone is there, or the routes can't be read.
    Stuck,
}

/// Keeps the routes, and tells each failure once.
#[derive(Default)]
pub struct Keeper {
    routes: Option<OwnRoutes>,
    /// Why the kernel refuses a route.
    refused: BTreeMap<OwnRoute, String>,
    /// Tunnels, and how long each is kept after no route needs it.
    former: BTreeMap<TunnelEnds, Instant>,
    /// Why the kernel refuses a tunnel.
    without_tunnel: BTreeMap<TunnelEnds, String>,
    /// Why the routes can't be read.
    failed: Option<String>,
}

impl Keeper {
    /// Brings the kernel's routes to the wanted ones, as far as it lets.
    pub async fn try_keep(&mut self, wanted: WantedRoutes) -> Outcome {
        let result = self.keep(wanted).await;
        let failed = result.as_ref().err().map(ToString::to_string);
        if let Some(error) = failed.as_ref().filter(|_| self.failed != failed) {
            warn!(%error, "the routes of Millrace can't be read");
        }
        self.failed = failed;
        if result.is_err() {
            self.routes = None;
        }
        match result {
            Ok(true) if self.refused.is_empty() && self.without_tunnel.is_empty() => Outcome::Done,
            Ok(true) => Outcome::Refused,
            _ => Outcome::Stuck,
        }
    }

    /// Removes what is not wanted first: a prefix may lead elsewhere now. Returns whether all of that is gone.
    async fn keep(&mut self, mut wanted: WantedRoutes) -> Result<bool, NodeError> {
        let mut routes = match self.routes.take() {
            Some(routes) => routes,
            None => OwnRoutes::open()?,
        };
        let found = routes.list().await?;
        let mut reached = BTreeMap::new();
        if wanted.tunnels {
            reached = routes.to_nodes(tunnels::nodes(&wanted.routes)).await?;
            let sources = wanted.own.sources(&routes.addresses().await?);
            wanted.routes = tunnels::choose(&wanted.routes, &found, &reached, &sources);
        }
        self.refused.retain(|route, _| wanted.routes.contains(route) || found.contains(route));
        let mut is_removed = true;
        for route in found.iter().filter(|route| wanted.replaces(**route)) {
            let result = routes.remove(*route).await;
            is_removed &= result.is_ok();
            self.tell(*route, "removed", result);
        }
        self.keep_tunnels(&mut routes, &wanted, &found, &reached).await?;
        // A tunnel that was made anew had lost its routes.
        let found = if wanted.tunnels { routes.list().await? } else { found };
        for route in wanted.routes.difference(&found) {
            let has_tunnel = |to| routes.tunnels().keys().any(|ends| ends.other == to);
            if !matches!(route.via, Via::Tunnel { node, .. } if !has_tunnel(node)) {
                let result = routes.add(*route).await;
                self.tell(*route, "added", result);
            }
        }
        self.routes = Some(routes);
        Ok(is_removed)
    }

    /// Keeps the tunnels of the wanted routes, of present ones that stay, and for some time those that were needed before: the
    /// other node may still send by them.
    async fn keep_tunnels(
        &mut self,
        routes: &mut OwnRoutes,
        wanted: &WantedRoutes,
        found: &BTreeSet<OwnRoute>,
        reached: &BTreeMap<IpAddr, Route>,
    ) -> Result<(), NodeError> {
        let stay = found.iter().filter(|route| !wanted.replaces(**route));
        let ends = tunnels::ends(wanted.routes.iter().chain(stay), &wanted.own, routes.tunnels());
        let is_needed = |other| wanted.routes.iter().any(|route| route.via.node() == Some(other));
        let now = Instant::now();
        self.former.retain(|former, until| {
            let is_replaced = ends.iter().any(|ends| ends.other == former.other);
            now < *until && is_needed(former.other) && !is_replaced && routes.tunnels().contains_key(former)
        });
        let former: Vec<_> = self.former.keys().copied().collect();
        self.former.extend(ends.iter().map(|ends| (*ends, now + FAREWELL)));
        let below = |ends: &TunnelEnds| {
            let way = reached.get(&ends.other)?;
            way.mtu.into_iter().chain(routes.mtu_of(way.device)).min()
        };
        let kept = ends.iter().copied().chain(former).map(|ends| (ends, below(&ends))).collect();
        let refused = routes.keep_tunnels(&kept).await?;
        self.without_tunnel.retain(|ends, _| refused.contains_key(ends));
        for (ends, error) in refused {
            let why = error.to_string();
            if self.without_tunnel.get(&ends) != Some(&why) {
                let module = if ends.other.is_ipv4() { "ipip" } else { "ip6_tunnel" };
                warn!(
                    node = %ends.other, error = why,
                    "the kernel makes no tunnel to this node, so its pods are not reached: the module {module} may be \
                     missing (modprobe {module}), or another device has the same ends or the same name"
                );
                self.without_tunnel.insert(ends, why);
            }
        }
        Ok(())
    }

    fn tell(&mut self, route: OwnRoute, done: &'static str, result: Result<(), NodeError>) {
        let node = route.via.node().map(tracing::field::display);
        let tunnel = matches!(route.via, Via::Tunnel { .. });
        let Err(error) = result else {
            self.refused.remove(&route);
            return info!(prefix = %route.prefix, node, tunnel, "route {done}");
        };
        let why = error.to_string();
        if self.refused.get(&route) != Some(&why) {
            let hint = match route.via {
                Via::Gateway(_) => {
                    "; the other node must be on a subnet of this one (--pod-routes ipip reaches the others), and no route of \
                     others may have this metric"
                }
                Via::Tunnel { .. } => "; no route of others may have this metric",
                Via::Nowhere => "",
            };
            warn!(prefix = %route.prefix, node, tunnel, error = why, "the route is not {done}{hint}");
            self.refused.insert(route, why);
        }
    }
}
