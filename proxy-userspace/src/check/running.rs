//! The data plane of a running node: the agent, the ways to other nodes, and the fill of the maps.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use super::finding::faults_or;
use super::{Facts, Finding, Known};
use crate::dataplane::Encapsulation;
use crate::dataplane::ebpf::read::{BackendView, PinnedMaps, ReadError, ServiceView, StatusView, WayView};

/// A map is crowded from this use on, in percent.
const CROWDED: u64 = 80;
/// The least MTU of IPv6: RFC 8200, section 5.
const LEAST6: u16 = 1280;

/// The pinned maps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pins {
    /// Heartbeat, attached programs and maps.
    pub status: StatusView,
    /// The ways to other nodes.
    pub ways: Vec<WayView>,
    /// The endpoints.
    pub backends: Vec<BackendView>,
    /// The lists of Service ports.
    pub services: Vec<ServiceView>,
}

/// A running agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agent {
    /// Its process.
    pub process: u32,
    /// The conditions of readiness that fail, each with its reason.
    pub failing: Vec<String>,
}

/// An endpoint on this node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Endpoint {
    /// Its address and port.
    pub address: SocketAddr,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// The Services that have it, as `namespace/name`, sorted.
    pub services: Vec<String>,
    /// A frontend by which its pod answers, if the pod decapsulates itself.
    pub answers_as: Option<SocketAddr>,
}

impl Pins {
    /// Reads the pinned maps below a BPF file system.
    pub fn read(bpffs_path: &Path) -> Known<Self> {
        let read = || -> Result<Self, ReadError> {
            let maps = PinnedMaps::open(bpffs_path)?;
            Ok(Self {
                status: maps.status()?,
                ways: maps.ways()?,
                backends: maps.backends()?,
                services: maps.services()?,
            })
        };
        read().map_err(|error| error.to_string())
    }

    /// Returns the endpoints on this node that a Service has.
    pub fn endpoints(&self) -> Vec<Endpoint> {
        let mut endpoints: BTreeMap<(SocketAddr, &str), Endpoint> = BTreeMap::new();
        // A large cluster has a hundred thousand endpoints, and as many places in lists.
        let here = self.backends.iter().filter(|backend| backend.local && backend.exists);
        let here: HashMap<SocketAddr, &BackendView> = here.map(|one| (one.address, one)).collect();
        let local = |address: &SocketAddr| here.get(address).copied();
        for service in &self.services {
            let Some(frontend) = service.frontends.first() else { continue };
            let direct = service.frontends.iter().find(|one| one.forwarding == "dsr").map(|one| one.address);
            for backend in service.backends.iter().filter_map(local) {
                let endpoint =
                    endpoints.entry((backend.address, &frontend.protocol)).or_insert_with(|| Endpoint {
                        address: backend.address,
                        protocol: frontend.protocol.to_string(),
                        services: Vec::new(),
                        answers_as: None,
                    });
                endpoint.services.push(format!("{}/{}", service.namespace, service.name));
                endpoint.answers_as = endpoint.answers_as.or(direct.filter(|_| backend.pod));
            }
        }
        let mut endpoints: Vec<Endpoint> = endpoints.into_values().collect();
        for endpoint in &mut endpoints {
            endpoint.services.sort_unstable();
            endpoint.services.dedup();
        }
        endpoints
    }
}

pub fn agent(facts: &Facts) -> Vec<Finding> {
    vec![match (&facts.agent, &facts.pins) {
        (Some(agent), _) if agent.failing.is_empty() => {
            Finding::pass(format!("process {} is ready", agent.process))
        }
        (Some(agent), _) => Finding::fail(
            format!("process {} is not ready: {}", agent.process, agent.failing.join("; ")),
            "millrace status shows more, and the agent's log why",
        ),
        (None, Ok(pins)) => {
            let since =
                pins.status.heartbeat_age_seconds.map_or_else(String::new, |age| format!(" since {age} s"));
            Finding::warn(
                format!("no agent answers{since}: the data path goes on, and follows no change"),
                "start the agent, or remove the data plane: millrace cleanup",
            )
        }
        (None, Err(why)) => Finding::skip(format!("none answers here; {why}")),
    }]
}

pub fn ways(facts: &Facts) -> Vec<Finding> {
    let pins = match &facts.pins {
        Ok(pins) => pins,
        Err(why) => return vec![Finding::skip(why)],
    };
    if pins.ways.is_empty() {
        return vec![Finding::skip("no other node is known")];
    }
    let mut faults = Vec::new();
    for way in &pins.ways {
        if !way.resolved {
            faults.push(Finding::warn(
                format!(
                    "the next hop to {} is not resolved: the node is down, or the link to it",
                    way.target
                ),
                format!("ping {}; ip neigh", way.target),
            ));
        }
        let room = way.mtu.saturating_sub(overhead(way.target, facts.settings.dsr.encapsulation));
        if way.target.is_ipv6() && room < LEAST6 {
            faults.push(Finding::warn(
                format!(
                    "the way to {} takes packets of {} bytes, and an encapsulated one leaves {room}: IPv6 needs {LEAST6}",
                    way.target, way.mtu
                ),
                "raise the MTU of the device or the route",
            ));
        }
    }
    faults_or(faults, || {
        let least = |is_it: fn(&IpAddr) -> bool| {
            pins.ways.iter().filter(|way| is_it(&way.target)).map(|way| way.mtu).min()
        };
        let [v4, v6] = [least(IpAddr::is_ipv4), least(IpAddr::is_ipv6)];
        let mtus = [("IPv4", v4), ("IPv6", v6)]
            .into_iter()
            .filter_map(|(name, mtu)| Some(format!("{name} {}", mtu?)));
        format!("{} resolved, MTU at least {}", pins.ways.len(), mtus.collect::<Vec<_>>().join(", "))
    })
}

/// Returns the length of the headers around an encapsulated packet, in bytes.
pub const fn overhead(target: IpAddr, encapsulation: Encapsulation) -> u16 {
    let outer = match target {
        IpAddr::V4(_) => 20,
        IpAddr::V6(_) => 40,
    };
    match encapsulation {
        Encapsulation::Ipip => outer,
        Encapsulation::Fou => outer + 8,
    }
}

pub fn capacity(facts: &Facts) -> Vec<Finding> {
    let pins = match &facts.pins {
        Ok(pins) => pins,
        Err(why) => return vec![Finding::skip(why)],
    };
    let used = pins.status.maps.iter().filter_map(|map| {
        let percent = u64::from(map.used?) * 100 / u64::from(map.entries.max(1));
        Some((percent, map))
    });
    let crowded = used.clone().filter(|(percent, _)| *percent >= CROWDED).map(|(percent, map)| {
        Finding::warn(
            format!("map {} is {percent}% full ({} entries)", map.name, map.entries),
            "docs/operations.md, Capacity: maps for Services grow by themselves; --flow-table-size sets flows",
        )
    });
    faults_or(crowded.collect(), || {
        let fullest = used.map(|(percent, map)| (percent, map.name.as_str())).max();
        fullest.map_or_else(
            || "no map is counted".to_owned(),
            |(percent, name)| format!("fullest {name}, {percent}%"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::example::judged;
    use super::super::finding::Outcome;
    use super::*;

    #[test]
    fn an_agent_that_is_gone_or_not_ready_is_told_apart() {
        assert_eq!(judged(|_| {}, agent), Finding::pass("process 714 is ready"));
        let failing =
            judged(|facts| facts.agent.as_mut().unwrap().failing = vec!["node-found: no".to_owned()], agent);
        assert_eq!(failing.found, "process 714 is not ready: node-found: no");
        assert_eq!(judged(|facts| facts.agent = None, agent).outcome, Outcome::Warn);
        let before = judged(
            |facts| {
                facts.agent = None;
                facts.pins = Err("no data plane".to_owned());
            },
            agent,
        );
        assert_eq!(before.outcome, Outcome::Skip);
    }

    #[test]
    fn a_way_without_next_hop_or_room_is_a_warning() {
        assert_eq!(judged(|_| {}, ways), Finding::pass("2 resolved, MTU at least IPv4 1500, IPv6 1500"));
        let change = |change: fn(&mut WayView)| {
            move |facts: &mut Facts| change(&mut facts.pins.as_mut().unwrap().ways[1])
        };
        assert!(
            judged(change(|way| way.resolved = false), ways).found.starts_with("the next hop to fd00::2")
        );
        let narrow = judged(change(|way| way.mtu = 1300), ways);
        assert!(narrow.found.contains("leaves 1260: IPv6 needs 1280"), "{narrow:?}");
        assert_eq!(judged(|facts| facts.pins.as_mut().unwrap().ways.clear(), ways).outcome, Outcome::Skip);
        assert_eq!(overhead("10.0.0.1".parse().unwrap(), Encapsulation::Fou), 28);
    }

    #[test]
    fn a_map_that_is_nearly_full_is_a_warning() {
        assert_eq!(judged(|_| {}, capacity), Finding::pass("fullest SERVICES, 10%"));
        let full = judged(|facts| facts.pins.as_mut().unwrap().status.maps[0].used = Some(80), capacity);
        assert_eq!(full.found, "map SERVICES is 80% full (100 entries)");
    }

    #[test]
    fn endpoints_here_have_their_services_once() {
        let facts = Facts::example();
        let endpoints = facts.pins.unwrap().endpoints();
        assert_eq!(endpoints.len(), 1);
        assert_eq!(endpoints[0].services, ["shop/web"]);
        assert_eq!((&*endpoints[0].protocol, endpoints[0].answers_as), ("TCP", None));
    }
}
