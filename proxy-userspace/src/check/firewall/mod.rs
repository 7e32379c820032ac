//! Firewalls: rules of nftables that drop packets of Services, behind our programs.
//!
//! The programs translate the destination before the kernel's hooks see a packet. So a rule meets the endpoint's
//! address and port, and our mark. Packets of the endpoints on this node are walked through the rules. Facts that a
//! rule asks for and nobody knows here, such as the client's address, leave it in doubt.

mod packet;
mod rule;
mod walk;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;

use self::packet::{Packet, State};
use self::walk::{Fate, Place, walk};
use super::finding::{Outcome, faults_or};
use super::running::Endpoint;
use super::{Facts, Finding, Known};
use crate::dataplane::netlink::nftables::{self, Ruleset};

/// `NF_INET_*`
const PRE_ROUTING: u32 = 0;
const LOCAL_IN: u32 = 1;
const FORWARD: u32 = 2;
const LOCAL_OUT: u32 = 3;
const POST_ROUTING: u32 = 4;
/// Endpoints that are named.
const SHOWN: usize = 3;

/// The rules of this network namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Firewall {
    /// The rules of nftables, those of iptables-nft included.
    pub rules: Ruleset,
    /// The tables of legacy iptables, whose rules only its program can list.
    pub legacy: Vec<String>,
}

impl Firewall {
    /// Reads the rules.
    pub fn read() -> Known<Self> {
        let rules = match nftables::ruleset() {
            Ok(rules) => rules,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Err("reading the rules takes CAP_NET_ADMIN".to_owned());
            }
            // The kernel has no nftables, so it has no rule of it.
            Err(error) if is_absent(&error) => Ruleset::default(),
            Err(error) => return Err(format!("reading the rules of nftables failed: {error}")),
        };
        let names = ["ip_tables_names", "ip6_tables_names"];
        let lists = names.map(|name| fs::read_to_string(format!("/proc/thread-self/net/{name}")));
        let legacy: BTreeSet<String> = lists
            .into_iter()
            .flatten()
            .flat_map(|list| list.lines().map(str::to_owned).collect::<Vec<_>>())
            .collect();
        Ok(Self { rules, legacy: legacy.into_iter().collect() })
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL | libc::EPROTONOSUPPORT))
}

/// A direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    To,
    From,
}

/// What the walks of all packets found.
#[derive(Clone, Debug, Default)]
struct Found<'a> {
    dropped: BTreeMap<(Place, Way), Vec<&'a Endpoint>>,
    doubtful: BTreeSet<Place>,
    /// The endpoints whose packets no rule drops in any case.
    free: usize,
}

pub fn rules(facts: &Facts) -> Vec<Finding> {
    let firewall = match &facts.firewall {
        Ok(firewall) => firewall,
        Err(why) => return vec![Finding::skip(why)],
    };
    let endpoints = facts.pins.as_ref().map(super::running::Pins::endpoints).unwrap_or_default();
    let found = look(facts, &firewall.rules, &endpoints);
    let outcome = if found.free == 0 { Outcome::Fail } else { Outcome::Warn };
    let mut faults: Vec<Finding> =
        found.dropped.iter().map(|((place, way), of)| dropping(facts, place, *way, of, outcome)).collect();
    let policies = found.doubtful.iter().filter(|place| place.rule.is_none());
    faults.extend(policies.map(|place| by_policy(facts, place)));
    if !firewall.legacy.is_empty() {
        let tables = firewall.legacy.join(", ");
        faults.push(Finding::warn(
            format!("legacy iptables has rules (tables {tables}), which are not read here"),
            "iptables-legacy-save: look for DROP and REJECT in FORWARD",
        ));
    }
    faults_or(faults, || {
        let rules: usize = firewall.rules.chains.iter().map(|chain| chain.rules.len()).sum();
        let doubtful = found.doubtful.len();
        let may = if doubtful > 0 {
            format!(", {doubtful} may drop packets of some clients")
        } else {
            String::new()
        };
        format!(
            "no rule of nftables drops packets of {} endpoints here ({rules} rules{may})",
            endpoints.len()
        )
    })
}

/// Walks packets of these endpoints through the rules, or packets of any without endpoints.
fn look<'a>(facts: &Facts, rules: &Ruleset, endpoints: &'a [Endpoint]) -> Found<'a> {
    let mut found = Found::default();
    for endpoint in endpoints {
        let mut is_free = true;
        for way in [Way::To, Way::From] {
            let fate = fate(facts, rules, endpoint, way);
            is_free &= fate.dropped.is_none();
            if let Some(place) = fate.dropped {
                found.dropped.entry((place, way)).or_default().push(endpoint);
            }
            found.doubtful.extend(fate.doubtful);
        }
        found.free += usize::from(is_free);
    }
    if endpoints.is_empty() {
        for is_v6 in [false, true] {
            let packet = Packet { is_v6, ..request(facts, None) };
            let fate = walk(rules, &packet, &[PRE_ROUTING, FORWARD]);
            found.doubtful.extend(fate.doubtful.into_iter().chain(fate.dropped));
        }
        found.free = 1;
    }
    found
}

fn fate(facts: &Facts, rules: &Ruleset, endpoint: &Endpoint, way: Way) -> Fate {
    let is_own = facts
        .network
        .as_ref()
        .is_ok_and(|network| network.topology.addresses.contains(&endpoint.address.ip()));
    match way {
        Way::To => {
            let hooks = if is_own {
                [PRE_ROUTING, LOCAL_IN].as_slice()
            } else {
                &[PRE_ROUTING, FORWARD, POST_ROUTING]
            };
            walk(rules, &request(facts, Some(endpoint)), hooks)
        }
        Way::From => {
            let hooks = if is_own {
                [LOCAL_OUT, POST_ROUTING].as_slice()
            } else {
                &[PRE_ROUTING, FORWARD, POST_ROUTING]
            };
            walk(rules, &reply(facts, endpoint), hooks)
        }
    }
}

/// Returns a client's first packet, as it is behind our programs.
fn request(facts: &Facts, endpoint: Option<&Endpoint>) -> Packet {
    let mark = facts.settings.mark;
    Packet {
        source: None,
        destination: endpoint.map(|endpoint| endpoint.address),
        protocol: endpoint.map_or(TCP, |endpoint| number(&endpoint.protocol)),
        is_v6: endpoint.is_some_and(|endpoint| endpoint.address.is_ipv6()),
        input: uplink(facts),
        output: None,
        mark: Some(mark.value & mark.mask),
        state: State::New,
    }
}

/// Returns the endpoint's answer. A pod that decapsulates itself answers with the Service's address, and the node
/// has seen no request to that.
fn reply(facts: &Facts, endpoint: &Endpoint) -> Packet {
    let (source, state) = match endpoint.answers_as {
        Some(frontend) => (frontend, State::Invalid),
        None => (endpoint.address, State::Established),
    };
    Packet {
        source: Some(source),
        destination: None,
        protocol: number(&endpoint.protocol),
        is_v6: endpoint.address.is_ipv6(),
        input: None,
        output: uplink(facts),
        mark: None,
        state,
    }
}

/// Returns the uplink, if there is only one.
fn uplink(facts: &Facts) -> Option<String> {
    let uplinks = &facts.network.as_ref().ok()?.topology.uplinks;
    uplinks.first().filter(|_| uplinks.len() == 1).cloned()
}

const TCP: u8 = 6;

fn number(protocol: &str) -> u8 {
    match protocol {
        "UDP" => 17,
        "SCTP" => 132,
        _ => TCP,
    }
}

fn dropping(facts: &Facts, place: &Place, way: Way, endpoints: &[&Endpoint], outcome: Outcome) -> Finding {
    let shown = endpoints.iter().take(SHOWN).map(|one| format!("{}/{}", one.address, one.protocol));
    let shown = shown.collect::<Vec<_>>().join(", ");
    let more = endpoints.len().saturating_sub(SHOWN);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let services: BTreeSet<&str> =
        endpoints.iter().flat_map(|endpoint| &endpoint.services).map(String::as_str).collect();
    let services = services.into_iter().collect::<Vec<_>>().join(", ");
    let (what, invalid) = match way {
        Way::To => ("packets to", ""),
        Way::From if endpoints.iter().any(|one| one.answers_as.is_some()) => {
            ("replies of", ", which conntrack calls invalid with --dsr-dispatch pod")
        }
        Way::From => ("replies of", ""),
    };
    let (many, an) = if endpoints.len() > 1 { ("endpoints", "") } else { ("endpoint", "an ") };
    let Place { table, chain, rule } = place;
    let at = rule.map_or_else(|| "by its policy".to_owned(), |rule| format!("by rule {rule}"));
    let found = format!("{table}/{chain} drops {at} {what} {shown}{more}{invalid}: {an}{many} of {services}");
    let remedy = match rule {
        Some(rule) => {
            format!("nft -a list chain {table} {chain}; nft delete rule {table} {chain} handle {rule}")
        }
        None => accept(facts, place),
    };
    Finding { outcome, ..Finding::warn(found, remedy) }
}

fn by_policy(facts: &Facts, place: &Place) -> Finding {
    Finding::warn(
        format!(
            "{}/{} drops by its policy what no rule accepts; whether one accepts packets of Services depends on the client",
            place.table, place.chain
        ),
        accept(facts, place),
    )
}

/// Returns the command that lets our packets through a chain, and the replies to them.
fn accept(facts: &Facts, place: &Place) -> String {
    let Place { table, chain, .. } = place;
    let mark = facts.settings.mark;
    format!(
        "nft insert rule {table} {chain} meta mark and {:#x} == {:#x} accept; nft insert rule {table} {chain} ct state \
         established,related accept",
        mark.mask, mark.value
    )
}

#[cfg(test)]
mod tests;
