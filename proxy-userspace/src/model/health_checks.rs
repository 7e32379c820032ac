//! The health check node ports, and the Services that get them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::claims::{Claims, Rank};
use super::{HealthCheck, Model, Owner, PortKey, ServiceKey, ServicePort, Topic};

/// The requested health check node ports. Only one Service can have each.
#[derive(Debug, Default)]
pub(super) struct HealthChecks {
    wanted: BTreeMap<ServiceKey, HealthCheck>,
    claims: Claims<u16, ServiceKey>,
}

impl HealthChecks {
    /// Replaces the request of a Service. Returns the Services that may change by this.
    pub fn replace(
        &mut self,
        key: &ServiceKey,
        rank: Rank,
        wanted: Option<HealthCheck>,
    ) -> BTreeSet<ServiceKey> {
        let targets = wanted.iter().map(|check| check.port).collect();
        let mut affected = self.claims.replace(key, rank, &targets);
        let before = match wanted {
            Some(wanted) => self.wanted.insert(key.clone(), wanted),
            None => self.wanted.remove(key),
        };
        if before != wanted {
            affected.insert(key.clone());
        }
        affected
    }
}

/// Returns the health check of a Service with these service ports.
pub(super) fn health_check(port: u16, ports: &BTreeMap<PortKey, ServicePort>) -> HealthCheck {
    let endpoints = ports.values().flat_map(|port| &port.endpoints);
    let ready = endpoints.filter(|(_, endpoint)| endpoint.local && endpoint.ready);
    let addresses: BTreeSet<IpAddr> = ready.map(|(address, _)| address.ip()).collect();
    HealthCheck { port, local_endpoints: addresses.len() }
}

impl Model {
    /// Gives each Service its port unless an older one has it. Returns whether the desired state
    /// changed.
    pub(super) fn assign_health_checks(&mut self, affected: BTreeSet<ServiceKey>) -> bool {
        let mut changed = false;
        for key in affected {
            let wanted = self.health_checks.wanted.get(&key).copied();
            let winner = wanted.and_then(|wanted| self.health_checks.claims.winner(&wanted.port));
            let won = wanted.filter(|_| winner == Some(&key));
            let mut problems = Vec::new();
            if let (Some(wanted), None) = (wanted, won)
                && let (Some(winner), Some(stored)) = (winner, self.index.service(&key))
            {
                let mut notes = stored.notes.emptied();
                let rule = "the older one has it, or the first by name";
                let message = format!(
                    "{} is Service {winner}'s too; {rule}; this node does not answer it",
                    wanted.port
                );
                notes.warn_about(Topic::Conflict, "spec.healthCheckNodePort", message);
                problems = notes.problems;
            }
            self.problems.set(Owner::HealthCheck(key.clone()), problems);
            let before = match won {
                Some(won) => self.desired.health_checks.insert(key, won),
                None => self.desired.health_checks.remove(&key),
            };
            changed |= before != won;
        }
        changed
    }

    /// Updates the addresses of health checks. Returns whether they changed.
    pub(super) fn refresh_health_check_addresses(&mut self) -> bool {
        let addresses = self.environment.node_port_addresses(&self.settings.node_ports).collect();
        let changed = self.desired.health_check_addresses != addresses;
        self.desired.health_check_addresses = addresses;
        changed
    }
}

#[cfg(test)]
#[path = "health_checks_tests.rs"]
mod tests;
