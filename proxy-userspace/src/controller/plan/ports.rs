//! Gives each port of each node to one Service: the oldest that requests it.

use std::collections::{BTreeMap, BTreeSet};

use super::node::{NodeFacts, NodeName};
use super::pool::Pool;
use super::service::{Port, ServiceFacts};
use crate::model::ServiceKey;

/// The nodes of each Service.
#[derive(Debug, Default)]
pub(super) struct Assignment {
    services: BTreeMap<ServiceKey, Share>,
}

#[derive(Debug, Default)]
struct Share {
    has_pool: bool,
    won: BTreeSet<NodeName>,
    conflict: Option<String>,
}

impl Assignment {
    /// Returns the nodes where a Service has all its ports.
    pub fn won(&self, key: &ServiceKey) -> &BTreeSet<NodeName> {
        const NONE: &BTreeSet<NodeName> = &BTreeSet::new();
        self.services.get(key).map_or(NONE, |share| &share.won)
    }
    /// Returns whether any node may have the Service's traffic.
    pub fn has_pool(&self, key: &ServiceKey) -> bool {
        self.services.get(key).is_some_and(|share| share.has_pool)
    }
    /// Returns which ports the Service doesn't have where, in words.
    pub fn conflict(&self, key: &ServiceKey) -> Option<String> {
        self.services.get(key).and_then(|share| share.conflict.clone())
    }
}

/// Goes through the Services, the oldest first. A Service has a node if all its ports are free there, so
/// that no client meets two Services behind one address by chance.
///
/// A Service that has lost a node holds no port there, and a younger one may have them.
pub(super) fn assign(
    services: &BTreeMap<ServiceKey, ServiceFacts>,
    nodes: &BTreeMap<NodeName, NodeFacts>,
) -> Assignment {
    let has_choice = nodes.values().any(NodeFacts::takes_part_in_choice);
    let wanted = contested(services);
    let mut pools: BTreeMap<&Pool, BTreeSet<NodeName>> = BTreeMap::new();
    let mut taken: BTreeMap<Port, BTreeMap<NodeName, &ServiceKey>> = BTreeMap::new();
    let mut in_order: Vec<_> = services.iter().collect();
    in_order.sort_by_key(|(key, service)| service.precedence(key));
    let mut assignment = Assignment::default();
    for (key, service) in in_order {
        for port in service.node_ports.iter().filter(|port| wanted.contains(port)) {
            let holders = taken.entry(*port).or_default();
            for name in nodes.keys() {
                holders.entry(name.clone()).or_insert(key);
            }
        }
        let Some(request) = &service.request else { continue };
        let members = |pool: &Pool| {
            let members = nodes.iter().filter(|(_, node)| node.serves(pool, has_choice));
            members.map(|(name, _)| name.clone()).collect()
        };
        let pool = pools.entry(&request.pool).or_insert_with_key(|pool| members(pool));
        let mut lost: BTreeMap<(Port, &ServiceKey), BTreeSet<NodeName>> = BTreeMap::new();
        let mut share = Share { has_pool: !pool.is_empty(), won: pool.clone(), conflict: None };
        let competed: Vec<Port> =
            request.ports.iter().filter(|port| wanted.contains(*port)).copied().collect();
        for port in &competed {
            for (name, holder) in taken.get(port).into_iter().flatten() {
                if *holder != key && pool.contains(name) {
                    share.won.remove(name);
                    lost.entry((*port, *holder)).or_default().insert(name.clone());
                }
            }
        }
        for port in competed {
            let holders = taken.entry(port).or_default();
            for name in &share.won {
                holders.entry(name.clone()).or_insert(key);
            }
        }
        share.conflict = (!lost.is_empty()).then(|| describe(&lost, pool.len()));
        assignment.services.insert(key.clone(), share);
    }
    assignment
}

/// Returns the ports that more than one Service requests. Only those are worth a table.
fn contested(services: &BTreeMap<ServiceKey, ServiceFacts>) -> BTreeSet<Port> {
    let mut requests: BTreeMap<Port, usize> = BTreeMap::new();
    for service in services.values() {
        let ports = service.request.iter().flat_map(|request| &request.ports);
        for port in ports.chain(&service.node_ports).collect::<BTreeSet<_>>() {
            *requests.entry(*port).or_default() += 1;
        }
    }
    requests.into_iter().filter(|(_, requests)| *requests > 1).map(|(port, _)| port).collect()
}

/// Writes `port 80 TCP is Service default/web's on all nodes; the older one has it, or the first by name`.
fn describe(lost: &BTreeMap<(Port, &ServiceKey), BTreeSet<NodeName>>, pool: usize) -> String {
    /// Names of nodes that a message lists.
    const NAMED: usize = 3;
    let parts = lost.iter().map(|(((protocol, port), holder), nodes)| {
        let place = if nodes.len() == pool {
            "all nodes".to_owned()
        } else {
            let named: Vec<&str> = nodes.iter().take(NAMED).map(|name| &**name).collect();
            let more = nodes.len().saturating_sub(NAMED);
            let more = if more == 0 { String::new() } else { format!(" and {more} more") };
            format!("{}{more}", named.join(", "))
        };
        format!("port {port} {protocol} is Service {holder}'s on {place}")
    });
    format!("{}; the older one has it, or the first by name", parts.collect::<Vec<_>>().join(", "))
}
