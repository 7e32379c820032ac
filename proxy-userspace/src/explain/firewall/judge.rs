//! The judgement of a packet, step by step as the firewall's programs take it.

use proxy_common::Address;
use proxy_common::policy::{
    DATAGRAM_SECONDS, NOT_ISOLATED, OPENED_BY_PEER, OPENED_BY_POD, PEER_CLASS, PEER_NODE, PEER_OWN_NODE,
    PolicyDirection, PolicyFlow, PolicyFlowKey, PolicyPod, PolicyRule, TUNNEL_PORTS, UNKNOWN_PROFILE,
};

use super::judged::{Judged, Ruling};
use crate::dataplane::ebpf::firewall::{PodNames, PolicyTables};
use crate::dataplane::ebpf::read::protocol_text;
use crate::explain::packet::{Packet, has_connections, protocol};
use crate::explain::text::at;
use crate::explain::{Past, Step};

const PODS: &str = "POLICY_PODS, POLICY_NAMES";

/// The place where a packet is judged.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    pub direction: PolicyDirection,
    /// Index of the pod's device.
    pub device: u32,
    /// Its name.
    pub name: &'a str,
    /// Index of the device that the packet came in by; 0 for one of the node itself.
    pub came_in_by: u32,
}

/// Judges a packet by the tables of its family.
pub fn judge<A: Address, T: PolicyTables<A>>(
    tables: &T,
    place: Place<'_>,
    packet: &Packet<A>,
    past: Past,
) -> Judged {
    let pod = tables.pod(place.device);
    let names = pod.and_then(|_| tables.names(place.device));
    let key = key(place, packet);
    let mut judge = Judge { tables, place, packet, past, pod, names, key, steps: Vec::new(), isolated: None };
    let ruling = judge.rule().unwrap_or_else(|end| end);
    let ruling = if pod.is_none() && ruling == Ruling::Denied { Ruling::UnknownPod } else { ruling };
    let why = judge.why(&ruling);
    Judged {
        direction: place.direction,
        device: place.device,
        pod: judge.names.as_ref().map(|names| format!("{}/{}", names.namespace, names.name)),
        isolated_by: judge.isolated.map(|direction| judge.isolating(direction)).unwrap_or_default(),
        steps: judge.steps,
        ruling,
        why,
    }
}

/// Judges a packet that a process of the node makes for a pod. Its source is an address of the node, which always reaches
/// its pods.
pub fn judge_node<A: Address, T: PolicyTables<A>>(tables: &T, place: Place<'_>) -> Judged {
    let names = tables.names(place.device);
    let pod = names.map(|names| format!("{}/{}", names.namespace, names.name));
    let whose = pod.as_ref().map_or_else(|| format!("the pod behind {}", place.name), Clone::clone);
    let found = format!("{whose}: its own node always reaches it");
    let step = Step { step: place.direction.name(), found, maps: PODS.to_owned() };
    Judged {
        direction: place.direction,
        device: place.device,
        pod,
        steps: vec![step],
        ruling: Ruling::OwnNode,
        isolated_by: Vec::new(),
        why: String::new(),
    }
}

/// Ends a packet at a device that rules of nftables close. No program has looked at the pod.
pub fn judge_closed(place: Place<'_>) -> Judged {
    let found = format!("{} is closed by nftables until an agent attaches the programs", place.name);
    Judged {
        direction: place.direction,
        device: place.device,
        pod: None,
        steps: vec![Step { step: place.direction.name(), found: found.clone(), maps: String::new() }],
        ruling: Ruling::ClosedByNftables,
        isolated_by: Vec::new(),
        why: found,
    }
}

/// Returns the key of a packet's connection, as its pod sees it.
pub fn key<A: Address>(place: Place<'_>, packet: &Packet<A>) -> PolicyFlowKey<A> {
    let source = (packet.key.source, packet.key.source_port);
    let destination = (packet.key.destination, packet.key.destination_port);
    let ((pod, pod_port), (peer, peer_port)) = match place.direction {
        PolicyDirection::Ingress => (destination, source),
        PolicyDirection::Egress => (source, destination),
    };
    let (protocol, device) = (packet.key.protocol.into(), place.device);
    PolicyFlowKey { pod, peer, pod_port, peer_port, protocol, device }
}

/// A judgement on its way.
struct Judge<'t, A: Address, T> {
    tables: &'t T,
    place: Place<'t>,
    packet: &'t Packet<A>,
    past: Past,
    pod: Option<PolicyPod>,
    names: Option<PodNames>,
    key: PolicyFlowKey<A>,
    steps: Vec<Step>,
    /// The direction in which a rule was looked for.
    isolated: Option<PolicyDirection>,
}

impl<A: Address, T: PolicyTables<A>> Judge<'_, A, T> {
    fn rule(&mut self) -> Result<Ruling, Ruling> {
        if !self.is_from_pod() && self.place.came_in_by == self.place.device {
            self.note(self.place.direction.name(), "the pod's own packet comes back to it", "");
            return Ok(Ruling::Itself);
        }
        self.note_pod();
        let is_isolated = self.profile(PolicyDirection::Ingress) | self.profile(PolicyDirection::Egress) != 0;
        match self.pod {
            None if self.tables.is_open_to_unknown() => return Ok(Ruling::NoPolicies),
            Some(pod) if self.is_from_pod() => self.check_source(&pod)?,
            _ => {}
        }
        if !is_isolated {
            return Ok(Ruling::NotIsolated);
        }
        let own = self.pod.map(|pod| address_of::<A>(&pod));
        let is_own = |address: &A| own.is_some_and(|own| is_set(&own) && own == *address);
        if self.is_from_pod() && is_own(&self.key.pod) && is_own(&self.key.peer) {
            self.note("peer", "the pod itself", "");
            return Ok(Ruling::Itself);
        }
        let has_connections = has_connections(self.key.protocol as u8);
        // Only what the pod has sent comes from itself.
        let opens = has_connections && self.packet.is_syn() && self.key.pod != self.key.peer;
        // Packets for another address than the pod's have no entries.
        let is_passing = !self.is_from_pod() && own.is_some_and(|own| own != self.key.pod);
        if !opens
            && !is_passing
            && let Some(ruling) = self.by_entry()
        {
            return Ok(ruling);
        }
        let is_connected = has_connections && !opens && !is_passing;
        Ok(self.judge_new(is_connected))
    }

    /// Ends the judgement of a packet that is in the name of others.
    fn check_source(&mut self, pod: &PolicyPod) -> Result<(), Ruling> {
        let (source, own) = (self.key.pod, address_of::<A>(pod));
        let is_of_link = is_link_local(&source) && self.tables.peer(&source) & PEER_NODE == 0;
        let is_own = is_set(&own) && source == own || is_of_link;
        let is_tunnel = self.key.protocol == u32::from(protocol::UDP)
            && TUNNEL_PORTS.contains(&self.key.peer_port)
            && self.tables.peer(&self.key.peer) & PEER_NODE != 0;
        let source = source.to_ip();
        match (is_own, is_tunnel) {
            (false, _) => self.note("source", format!("{source} is not the pod's address"), "POLICY_PODS"),
            (true, true) => self.note("source", "a tunnel without keys, to a node", "POLICY_PEERS*"),
            (true, false) => return Ok(()),
        }
        Err(Ruling::ForeignSource)
    }

    /// Returns the ruling of the connection's entry, if there is a live one.
    fn by_entry(&mut self) -> Option<Ruling> {
        if self.past == Past::Ignored {
            return None;
        }
        let epoch = self.pod.map_or(0, |pod| pod.epoch);
        let now = self.tables.now();
        let is_recent = |seen: u32| now.wrapping_sub(seen).wrapping_add(1) <= DATAGRAM_SECONDS + 1;
        let is_live = |flow: &PolicyFlow| {
            flow.epoch == epoch && (has_connections(self.key.protocol as u8) || is_recent(flow.seen))
        };
        let Some(flow) = self.tables.flow(&self.key).filter(is_live) else {
            self.note("flow", "none: the firewall does not know the connection", "POLICY_FLOWS*");
            return None;
        };
        let opener = if flow.opened == OPENED_BY_PEER { "the peer" } else { "the pod" };
        self.note("flow", format!("the connection is known: {opener} opened it"), "POLICY_FLOWS*");
        // The first packet showed whether the node opened it.
        let ruling = self.allows(flow.opened, true);
        let is_of_these_tables = flow.generation == self.tables.generation();
        Some(match (is_of_these_tables, flow.is_allowed != 0) {
            (true, true) if ruling.dropped().is_some() => Ruling::Connection,
            (true, false) => Ruling::Denied,
            _ => ruling,
        })
    }

    /// Judges a packet without an entry, or one that opens a connection.
    fn judge_new(&mut self, is_connected: bool) -> Ruling {
        let (own, other) = if self.is_from_pod() {
            (OPENED_BY_POD, OPENED_BY_PEER)
        } else {
            (OPENED_BY_PEER, OPENED_BY_POD)
        };
        let ruling = self.allows(own, self.place.came_in_by == 0);
        let lenient_until = self.pod.map_or(0, |pod| pod.lenient_until);
        let is_lenient =
            lenient_until != 0 && self.tables.now().wrapping_sub(lenient_until).cast_signed() < 0;
        if ruling.dropped().is_some() && is_connected && is_lenient {
            self.note("flow", "the isolation is new: the packet may be a reply", "POLICY_PODS");
            return self.allows(other, self.is_from_pod());
        }
        ruling
    }

    /// Judges the connection that an end has opened. `may_be_node`: whether its first packet may be the node's own.
    fn allows(&mut self, opened: u16, may_be_node: bool) -> Ruling {
        let (direction, port) = if opened == OPENED_BY_PEER {
            (PolicyDirection::Ingress, self.key.pod_port)
        } else {
            (PolicyDirection::Egress, self.key.peer_port)
        };
        let profile = self.profile(direction);
        if profile == NOT_ISOLATED {
            return Ruling::NotIsolated;
        }
        let value = self.tables.peer(&self.key.peer);
        let is_own_node = opened == OPENED_BY_PEER && may_be_node && value & PEER_OWN_NODE != 0;
        if profile == UNKNOWN_PROFILE && !is_own_node {
            return Ruling::UnknownPod;
        }
        self.isolated = Some(direction);
        self.note_peer(value);
        if is_own_node {
            return Ruling::OwnNode;
        }
        let rule = |profile: u32| PolicyRule {
            profile: profile.to_be(),
            class: (value & PEER_CLASS).to_be(),
            protocol: self.key.protocol as u8,
            reserved: 0,
            port,
        };
        let ruling = if self.tables.has_rule(&rule(profile)) {
            let policies = self.names.iter().flat_map(|names| names.policies.iter());
            let allows = |profile: u32| self.tables.has_rule(&rule(profile));
            let allowing = policies.filter(|policy| policy.profile(direction).is_some_and(allows));
            Ruling::Allowed(allowing.map(|policy| self.named(&policy.name)).collect())
        } else {
            Ruling::Denied
        };
        self.note_rule(&ruling, direction, port);
        ruling
    }

    fn is_from_pod(&self) -> bool {
        self.place.direction == PolicyDirection::Egress
    }

    fn profile(&self, direction: PolicyDirection) -> u32 {
        self.pod.map_or(UNKNOWN_PROFILE, |pod| match direction {
            PolicyDirection::Ingress => pod.ingress,
            PolicyDirection::Egress => pod.egress,
        })
    }

    /// Returns the policies that isolate the pod in a direction.
    fn isolating(&self, direction: PolicyDirection) -> Vec<String> {
        let policies = self.names.iter().flat_map(|names| names.policies.iter());
        let isolating = policies.filter(|policy| policy.isolates(direction));
        isolating.map(|policy| self.named(&policy.name)).collect()
    }

    fn named(&self, policy: &str) -> String {
        let namespace = self.names.as_ref().map_or("", |names| names.namespace.as_str());
        format!("{namespace}/{policy}")
    }

    /// Returns the pod's name; that of its device if it is not known.
    fn pod_name(&self) -> String {
        match &self.names {
            Some(names) => format!("{}/{}", names.namespace, names.name),
            None => format!("the pod behind {}", self.place.name),
        }
    }

    /// Returns the policies of a direction as people say it.
    fn isolation(&self, direction: PolicyDirection) -> String {
        let policies = self.isolating(direction);
        let left_out = self.names.as_ref().map_or(0, |names| names.left_out);
        match (policies.as_slice(), left_out) {
            ([], _) => "policies isolate".to_owned(),
            ([one], 0) => format!("{one} isolates"),
            (several, 0) => format!("{} isolate", several.join(", ")),
            (several, count) => format!("{} and up to {count} more isolate", several.join(", ")),
        }
    }

    fn note_pod(&mut self) {
        let (direction, device) = (self.place.direction, self.place.name);
        let text = match (&self.pod, self.profile(direction)) {
            (None, _) if self.tables.is_open_to_unknown() => {
                format!("the pod behind {device} is not known; the cluster has no policy")
            }
            (None, _) => {
                format!(
                    "the pod behind {device} is not known (yet), so the device is closed but for its node"
                )
            }
            (Some(_), NOT_ISOLATED) => {
                format!("{} behind {device}: no policy isolates it in this direction", self.pod_name())
            }
            (Some(_), _) => format!("{} behind {device}: {} it", self.pod_name(), self.isolation(direction)),
        };
        self.note(direction.name(), text, PODS);
    }

    fn note_peer(&mut self, value: u32) {
        let address = self.key.peer.to_ip();
        let pod = self.peer_pod();
        let maps =
            if matches!(pod, Some((_, false))) { "POLICY_PEERS*, POLICY_OWNERS" } else { "POLICY_PEERS*" };
        let text = match pod {
            Some((name, true)) => format!(" is {name} of this node"),
            Some((name, false)) => format!(" is {name}"),
            None if value & PEER_OWN_NODE != 0 => " is an address of this node".to_owned(),
            None if value & PEER_NODE != 0 => " is an address of a node".to_owned(),
            None => String::new(),
        };
        let class = match value & PEER_CLASS {
            0 => "no rule for a pod of this node names it".to_owned(),
            class => format!("rules name it, as class {class}"),
        };
        self.note("peer", format!("{address}{text}: {class}"), maps);
    }

    /// Returns the pod at the other end, and whether it is known to be on this node.
    fn peer_pod(&self) -> Option<(String, bool)> {
        let address = self.key.peer.to_ip();
        let here = self.tables.device_of(address).and_then(|device| self.tables.names(device));
        match here {
            Some(names) => Some((format!("{}/{}", names.namespace, names.name), true)),
            None => self.tables.owner(address).map(|name| (name, false)),
        }
    }

    fn note_rule(&mut self, ruling: &Ruling, direction: PolicyDirection, port: u16) {
        let traffic = traffic(self.key.protocol as u8, port);
        let text = match ruling {
            Ruling::Allowed(policies) => match policies.as_slice() {
                [] => format!("a rule of a policy allows {traffic}; {} the pod", self.isolation(direction)),
                [one] => format!("{one} allows {traffic}"),
                several => format!("{} allow {traffic}", several.join(", ")),
            },
            _ => format!("none allows {traffic}"),
        };
        self.note("rule", text, "POLICY_RULES, POLICY_NAMES");
    }

    /// Adds a step. A `*` in the names of maps stands for the family.
    fn note(&mut self, step: &'static str, found: impl Into<String>, maps: &str) {
        let family = if A::WORDS == 1 { "4" } else { "6" };
        self.steps.push(Step { step, found: found.into(), maps: maps.replace('*', family) });
    }

    /// Returns the cause of a drop.
    fn why(&self, ruling: &Ruling) -> String {
        let pod = self.pod_name();
        let direction = self.place.direction;
        match ruling {
            Ruling::Denied => {
                let of = self.isolated.unwrap_or(direction);
                let (word, port) = match of {
                    PolicyDirection::Ingress => ("from", self.key.pod_port),
                    PolicyDirection::Egress => ("to", self.key.peer_port),
                };
                let peer = self.key.peer.to_ip();
                let whose = self.peer_pod().map(|(name, _)| format!(" ({name})")).unwrap_or_default();
                let traffic = traffic(self.key.protocol as u8, port);
                format!(
                    "{} {pod} for {}, without a rule for {traffic} {word} {peer}{whose}",
                    self.isolation(of),
                    of.name()
                )
            }
            Ruling::UnknownPod => {
                format!("{pod} is not known (yet), and the cluster has policies ({})", direction.name())
            }
            Ruling::ForeignSource => {
                let source = at(self.packet.key.source, self.packet.key.source_port);
                format!("{pod} may not send this from {source}: it is not its own, or a tunnel to a node")
            }
            _ => String::new(),
        }
    }
}

fn traffic(number: u8, port: u16) -> String {
    format!("{} port {}", protocol_text(number), u16::from_be(port))
}

/// Returns a pod's address of a family; zeros if it has none.
fn address_of<A: Address>(pod: &PolicyPod) -> A {
    let words: &[u32] = if A::WORDS == 1 { &pod.address4 } else { &pod.address6 };
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let address = match <[u8; 4]>::try_from(bytes.as_slice()) {
        Ok(bytes) => A::from_ip(bytes.into()),
        Err(_) => <[u8; 16]>::try_from(bytes.as_slice()).ok().and_then(|bytes| A::from_ip(bytes.into())),
    };
    address.unwrap_or_default()
}

fn is_set<A: Address>(address: &A) -> bool {
    *address != A::default()
}

/// `fe80::/10`; IPv4 has none that a pod would use.
fn is_link_local<A: Address>(address: &A) -> bool {
    matches!(address.to_ip(), std::net::IpAddr::V6(address) if address.is_unicast_link_local())
}
