//! The destinations of an argument.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use super::frame::Protocol;
use crate::cli::error::CliError;
use crate::cli::output::note;
use crate::cli::select::{Selector, not_found};
use crate::cli::service_port::ServicePort;

/// Frontends of one argument that are explained.
const MOST: usize = 16;
/// The rank of ClusterIPs.
const CLUSTER_IP: usize = 3;

/// A destination, and the Service port that has it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    /// The place of the frontend's kind in the order of explanations.
    rank: usize,
    /// The address and port.
    pub at: SocketAddr,
    /// The protocol.
    pub protocol: Protocol,
    /// The Service port, as `namespace/name:port`.
    pub service: Option<String>,
}

/// The choice of a Service's frontends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The scope that the packet reaches: `internal` or `external`.
    pub scope: &'static str,
    /// The protocol, if it was given.
    pub protocol: Option<Protocol>,
    /// Whether the addresses are IPv4, if the client's was given.
    pub is_v4: Option<bool>,
}

/// Returns the address with its port, whether it has a frontend or not; else the frontends that the argument names.
pub fn targets(selector: &Selector, ports: &[ServicePort], wanted: Wanted) -> Result<Vec<Target>, CliError> {
    let mut found = frontends(selector, ports, |scope| scope == wanted.scope);
    if let Selector::Address { ip, port: Some(port), protocol } = selector {
        let protocol = wanted.protocol.or_else(|| Protocol::of(protocol.as_deref()?));
        let known =
            found.into_iter().find(|target| protocol.is_none_or(|protocol| protocol == target.protocol));
        let unknown = || Target {
            rank: 0,
            at: SocketAddr::new(*ip, *port),
            protocol: protocol.unwrap_or(Protocol::Tcp),
            service: None,
        };
        return Ok(vec![known.unwrap_or_else(unknown)]);
    }
    if found.is_empty() && frontends(selector, ports, |_| true).is_empty() {
        return Err(CliError::NotFound(not_found(selector, ports.iter())));
    }
    let lacks = |found: &BTreeSet<Target>, what: &str| {
        if found.is_empty() { Err(CliError::NotFound(format!("{selector} has no {what}"))) } else { Ok(()) }
    };
    let clients = if wanted.scope == "external" { "outside" } else { "inside the cluster" };
    lacks(&found, &format!("frontend for clients {clients}"))?;
    if let Some(protocol) = wanted.protocol {
        found.retain(|target| target.protocol == protocol);
        lacks(&found, &format!("{} port", protocol.name()))?;
    }
    if let Some(is_v4) = wanted.is_v4 {
        found.retain(|target| target.at.is_ipv4() == is_v4);
        lacks(&found, &format!("{} frontend", if is_v4 { "IPv4" } else { "IPv6" }))?;
    }
    // Over an uplink, a client outside does not ask for a ClusterIP if there is anything else.
    if selector.is_name() && wanted.scope == "external" && found.iter().any(|target| target.rank < CLUSTER_IP)
    {
        found.retain(|target| target.rank < CLUSTER_IP);
    }
    if found.len() > MOST {
        note(&format!("{} frontends, of which the first {MOST} are explained: name an address", found.len()));
    }
    Ok(found.into_iter().take(MOST).collect())
}

/// Returns the frontends that the argument names, of the scopes that are taken.
fn frontends(
    selector: &Selector,
    ports: &[ServicePort],
    takes_scope: impl Fn(&str) -> bool,
) -> BTreeSet<Target> {
    let fitting = ports.iter().filter(|port| selector.fits(port));
    let all = fitting.flat_map(|port| port.frontends().map(move |frontend| (port, frontend)));
    all.filter(|(_, one)| takes_scope(&one.scope))
        .filter(|(_, one)| selector.is_name() || selector.is_at(one.address, &one.protocol))
        .filter_map(|(port, one)| {
            let protocol = Protocol::of(&one.protocol)?;
            Some(Target { rank: rank(&one.kind), at: one.address, protocol, service: Some(port.label()) })
        })
        .collect()
}

fn rank(kind: &str) -> usize {
    ["LoadBalancer", "ExternalIP", "NodePort"].iter().position(|one| *one == kind).unwrap_or(CLUSTER_IP)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::service_port::tests::shop;

    fn found(text: &str, protocol: Option<Protocol>, is_v4: Option<bool>) -> Result<Vec<String>, String> {
        let wanted = Wanted { scope: "external", protocol, is_v4 };
        let targets = targets(&Selector::parse(text).unwrap(), &shop(), wanted);
        let text = |target: &Target| format!("{} {}", target.at, target.protocol.name());
        targets.map(|targets| targets.iter().map(text).collect()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_service_means_its_frontends_for_clients_outside_and_an_address_means_itself() {
        let all = ["203.0.113.9:80 TCP", "192.0.2.1:30080 TCP", "[fd00::1]:30080 TCP"];
        assert_eq!(found("web", None, None).unwrap(), all);
        assert_eq!(found("web", None, Some(false)).unwrap(), all[2..]);
        assert_eq!(found("db", None, None).unwrap(), ["10.96.0.10:5432 TCP"], "it has a ClusterIP alone");
        assert_eq!(found("203.0.113.9:81", None, None).unwrap(), ["203.0.113.9:81 TCP"]);
        assert_eq!(found("203.0.113.9:81/udp", None, None).unwrap(), ["203.0.113.9:81 UDP"]);
        assert_eq!(found("203.0.113.9", None, None).unwrap(), all[..1]);
        assert_eq!(found("203.0.113.9:80", Some(Protocol::Sctp), None).unwrap(), ["203.0.113.9:80 SCTP"]);
        assert_eq!(
            found("shop/wep", None, None).unwrap_err(),
            "no Service matches \"shop/wep\"; nearest: shop/web"
        );
    }

    #[test]
    fn a_service_without_a_fitting_frontend_is_not_taken_for_an_unknown_one() {
        assert_eq!(found("shop/db", None, Some(false)).unwrap_err(), "shop/db has no IPv6 frontend");
        assert_eq!(found("shop/web", Some(Protocol::Udp), None).unwrap_err(), "shop/web has no UDP port");
        assert_eq!(found("203.0.113.9", None, Some(false)).unwrap_err(), "203.0.113.9 has no IPv6 frontend");
        let internal = Wanted { scope: "internal", protocol: None, is_v4: None };
        let error = targets(&Selector::parse("shop/db").unwrap(), &shop(), internal).unwrap_err();
        assert_eq!(error.to_string(), "shop/db has no frontend for clients inside the cluster");
    }
}
