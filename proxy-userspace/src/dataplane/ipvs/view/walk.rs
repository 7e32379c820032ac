//! The way of a new packet through our table and IPVS, and why: pure on what was read.
//!
//! The steps are those of the chains in `nft/text.rs`, in their order.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::net::SocketAddr;

use proxy_common::verdict::Reason;
use serde::Serialize;

use super::{FlowView, Seen, flows, look};
use crate::dataplane::ipvs::OpenError;
use crate::dataplane::ipvs::nft::set_name;
use crate::dataplane::ipvs::plan::{PERSISTENT, TUNNEL};
use crate::dataplane::ipvs::state::{Element, Scheduling, Server, Set, Virtual};
use crate::model::{Family, Protocol};

/// The connections that are looked through.
const MOST_FLOWS: usize = 1_000_000;

/// The place where a packet comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A device by which it comes in; none = the first uplink.
    Device(Option<String>),
    /// A process of the node.
    Process,
}

/// A packet that is to open a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The client. Of a process of the node, it has no meaning: the kernel takes the frontend's own address.
    pub from: SocketAddr,
    /// Where it comes from.
    pub entry: Entry,
    /// The destination.
    pub to: SocketAddr,
    /// The number of the protocol: TCP, UDP or SCTP.
    pub protocol: u8,
}

/// A step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct IpvsStep {
    /// The word for it.
    pub step: &'static str,
    /// What was found.
    pub found: String,
    /// The sets of our table that were asked, separated by commas; empty for IPVS itself.
    pub sets: String,
}

/// The answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IpvsAnswer {
    /// The device by which it comes in; none for a process of the node, and on a node without uplinks.
    pub device: Option<String>,
    /// The steps.
    pub steps: Vec<IpvsStep>,
    /// The reasons that eBPF mode would count it under. The scheduler may choose between several.
    pub reasons: BTreeSet<&'static str>,
    /// Whether it is dropped or refused.
    pub is_drop: bool,
    /// The servers that may get it.
    pub servers: Vec<SocketAddr>,
    /// The cause, in a clause.
    pub why: String,
}

/// Explains packets by the state of the kernel, read once; `None` if IPVS does not serve.
pub fn explain(questions: &[Question]) -> Result<Option<Vec<IpvsAnswer>>, OpenError> {
    let Some(seen) = look()? else { return Ok(None) };
    let known = flows(MOST_FLOWS, |_| true)?.map(|found| found.flows).unwrap_or_default();
    Ok(Some(questions.iter().map(|question| walk(&seen, &known, question)).collect()))
}

/// Walks through what was read.
pub(super) fn walk(seen: &Seen, known: &[FlowView], question: &Question) -> IpvsAnswer {
    // The command takes no other protocol.
    let Some(protocol) = Protocol::of_number(question.protocol.into()) else { return IpvsAnswer::default() };
    let answer = IpvsAnswer::default();
    let mut walker = Walker { seen, known, question, protocol, source: question.from, answer };
    if let Err(End { reasons, is_drop, why }) = walker.run() {
        walker.answer = IpvsAnswer { reasons, is_drop, why, ..walker.answer };
    }
    walker.answer
}

/// The end of a walk.
struct End {
    reasons: BTreeSet<&'static str>,
    is_drop: bool,
    why: String,
}

fn drop(reason: Reason, why: impl Into<String>) -> End {
    End { reasons: [reason.name()].into(), is_drop: true, why: why.into() }
}

struct Walker<'a> {
    seen: &'a Seen,
    known: &'a [FlowView],
    question: &'a Question,
    protocol: Protocol,
    /// The source address of the packet.
    source: SocketAddr,
    answer: IpvsAnswer,
}

impl Walker<'_> {
    fn run(&mut self) -> Result<(), End> {
        let is_from_outside = self.enter();
        self.gate()?;
        let outside = if is_from_outside { self.outside()? } else { None };
        let is_marked = match outside {
            Some(_) => false,
            None => self.inside()?,
        };
        let service = outside.unwrap_or_else(|| self.address());
        let Some((scheduling, _)) = self.seen.services.get(&service) else {
            let why = format!("IPVS has no virtual service {service}");
            return Err(End { reasons: [Reason::NotOurs.name()].into(), is_drop: false, why });
        };
        self.serve(&service, scheduling, is_marked)
    }

    fn push(&mut self, step: &'static str, found: impl Display, sets: &[Set]) {
        let family = Family::of(self.question.to.ip());
        let name = |set: &Set| set_name(*set, (*set != Set::Uplinks).then_some(family));
        let sets = sets.iter().map(name).collect::<Vec<_>>().join(", ");
        self.answer.steps.push(IpvsStep { step, found: found.to_string(), sets });
    }

    fn has(&self, set: Set, element: Element) -> bool {
        self.seen.state.members.contains_key(&(set, element))
    }

    /// Whether a range of the set has the source.
    fn has_source(&self, set: Set) -> bool {
        let ip = self.source.ip();
        let mut ranges = self.seen.state.members.keys().filter(|(of, _)| *of == set);
        ranges.any(|(_, element)| matches!(element, Element::Net(range) if range.contains(&ip)))
    }

    fn port(&self) -> Element {
        Element::Port(self.protocol, self.question.to)
    }

    fn address(&self) -> Virtual {
        Virtual::Address { protocol: self.protocol, address: self.question.to }
    }

    /// Returns whether the packet is one of a client outside.
    fn enter(&mut self) -> bool {
        let Entry::Device(device) = &self.question.entry else {
            // The destination is an address of this node, and the kernel takes it as the source, too.
            self.source.set_ip(self.question.to.ip());
            self.push("client", "a process of the node; the kernel gives it the frontend's address", &[]);
            return false;
        };
        let mut uplinks = self.seen.state.members.keys().filter_map(|member| match member {
            (Set::Uplinks, Element::Device(name)) => Some(name.as_str()),
            _ => None,
        });
        let is_uplink = device.as_ref().is_none_or(|device| uplinks.any(|uplink| uplink == device));
        let device = device.clone().or_else(|| uplinks.next().map(str::to_owned));
        let ip = self.source.ip();
        let name = device.as_deref().unwrap_or_default();
        let by = device.as_ref().map(|name| format!("by the uplink {name}, ")).unwrap_or_default();
        let (found, is_outside) = if !is_uplink {
            (format!("{ip}, by {name}, which is no uplink: inside the cluster"), false)
        } else if self.has_source(Set::Near) {
            (format!("{ip}, {by}is inside the cluster"), false)
        } else {
            (format!("{ip}, {by}is outside the cluster"), true)
        };
        self.push("client", found, &[Set::Uplinks, Set::Near]);
        self.answer.device = device;
        is_outside
    }

    /// What all packets go through.
    fn gate(&mut self) -> Result<(), End> {
        let (to, protocol) = (self.question.to, self.protocol);
        // The rules that name the state `new` let a known connection go on.
        if self.is_new() && self.has(Set::Refused, self.port()) {
            self.push("frontend", format!("{to}/{protocol} has no endpoint"), &[Set::Refused]);
            return Err(drop(
                Reason::NoEndpoint,
                format!("{to}/{protocol} has no usable endpoint; ICMP refuses"),
            ));
        }
        if self.has(Set::Restricted, self.port()) {
            self.check_source()?;
        }
        if self.has(Set::Services, self.port()) {
            self.push("frontend", format!("{to}/{protocol} is a Service's"), &[Set::Services]);
            return Ok(());
        }
        let there: Vec<String> = self
            .seen
            .state
            .members
            .keys()
            .filter_map(|member| match member {
                (Set::Services, Element::Port(protocol, at)) if at.ip() == to.ip() => {
                    Some(format!("{}/{protocol}", at.port()))
                }
                _ => None,
            })
            .collect();
        let there = if there.is_empty() { "no port".to_owned() } else { there.join(", ") };
        self.push(
            "frontend",
            format!("none for {}/{protocol}: {} has {there}", to.port(), to.ip()),
            &[Set::Vips, Set::Services],
        );
        if !self.has(Set::Vips, Element::Address(to.ip())) {
            let why = format!("{} is no Service's address, or a node's; it has {there}", to.ip());
            return Err(End { reasons: [Reason::NotOurs.name()].into(), is_drop: false, why });
        }
        let refuses = self.has(Set::Refusing, Element::Address(to.ip()));
        let how = if refuses { "ICMP refuses" } else { "dropped without an answer" };
        Err(drop(Reason::UnknownPort, format!("{} has {there}; {how}", to.ip())))
    }

    fn check_source(&mut self) -> Result<(), End> {
        let (to, protocol) = (self.question.to, self.protocol);
        let ranges: Vec<_> = self
            .seen
            .state
            .members
            .keys()
            .filter_map(|member| match member {
                (Set::Allowed(of), Element::Range(at, range)) if (*of, *at) == (protocol, to) => Some(*range),
                _ => None,
            })
            .collect();
        let ip = self.source.ip();
        let shown = ranges.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let found = ranges.iter().find(|range| range.contains(&ip));
        let sets = [Set::Restricted, Set::Allowed(protocol)];
        if let Some(range) = found {
            self.push("source", format!("{ip} is in {range}"), &sets);
            return Ok(());
        }
        self.push("source", format!("{ip} is in none of {shown}"), &sets);
        Err(drop(Reason::SourceRefused, format!("{ip} is in none of loadBalancerSourceRanges ({shown})")))
    }

    /// What clients outside go through. Returns the virtual service of a mark.
    fn outside(&mut self) -> Result<Option<Virtual>, End> {
        if self.is_new() && self.has(Set::DroppedOutside, self.port()) {
            let found = "externalTrafficPolicy Local: no endpoint here, some elsewhere";
            self.push("list", found, &[Set::DroppedOutside]);
            let why = "externalTrafficPolicy is Local, and all endpoints are on other nodes";
            return Err(drop(Reason::NoLocalEndpoint, why));
        }
        if self.has_source(Set::Cluster) && self.has(Set::Direct, self.port()) {
            self.push(
                "list",
                "a client in the cluster gets no Direct Server Return",
                &[Set::Cluster, Set::Direct],
            );
            return Ok(None);
        }
        let Some(mark) = self.seen.mark_at(&self.address()) else { return Ok(None) };
        self.push("list", format!("that of clients outside: {mark}"), &[Set::Marks]);
        Ok(Some(mark))
    }

    /// What the others go through. Returns whether the source is to be translated.
    fn inside(&mut self) -> Result<bool, End> {
        if self.is_new() && self.has(Set::DroppedInside, self.port()) {
            let found = "the policy is Local: no endpoint here, some elsewhere";
            self.push("list", found, &[Set::DroppedInside]);
            let why = "the traffic policy is Local, and all endpoints are on other nodes";
            return Err(drop(Reason::NoLocalEndpoint, why));
        }
        let is_process = self.question.entry == Entry::Process;
        Ok(is_process || self.is_by_uplink() || !self.has_source(Set::Inside))
    }

    fn is_by_uplink(&self) -> bool {
        let is_uplink = |name: &String| self.has(Set::Uplinks, Element::Device(name.clone()));
        self.answer.device.as_ref().is_some_and(is_uplink)
    }

    /// What IPVS does.
    fn serve(&mut self, service: &Virtual, scheduling: &Scheduling, is_marked: bool) -> Result<(), End> {
        let servers = self.seen.servers.get(service).map(Vec::as_slice).unwrap_or_default();
        let find = |at: SocketAddr| servers.iter().find(|(address, ..)| *address == at);
        let is_persistent = scheduling.flags & PERSISTENT != 0;
        let remembered = self.remembered(service, is_persistent);
        let usable: Vec<(SocketAddr, Server)> = match remembered.and_then(find) {
            Some((address, server, _)) => vec![(*address, *server)],
            None => servers
                .iter()
                .filter(|(_, server, _)| server.weight > 0)
                .map(|(address, server, _)| (*address, *server))
                .collect(),
        };
        let Scheduling { scheduler, timeout, .. } = scheduling;
        let shown: Vec<String> = usable.iter().map(|(address, _)| address.to_string()).collect();
        if remembered.is_none() {
            let affinity = if is_persistent {
                format!(", and the client keeps it for {timeout} s")
            } else {
                String::new()
            };
            let found = format!("{scheduler} chooses among {}: {}{affinity}", shown.len(), shown.join(", "));
            self.push("schedule", found, &[]);
        }
        if usable.is_empty() {
            return Err(drop(Reason::NoEndpoint, format!("{service} has no server for new connections")));
        }
        for (address, server) in &usable {
            let (reason, found) = self.way(*address, *server, is_marked);
            self.push("path", format!("{address}: {found}"), &[Set::Local]);
            self.answer.reasons.insert(reason.name());
        }
        self.answer.why = match shown.as_slice() {
            [one] => one.clone(),
            _ => format!("{scheduler} chooses one of {}", shown.join(", ")),
        };
        self.answer.servers = usable.into_iter().map(|(address, _)| address).collect();
        Ok(())
    }

    /// Returns the entry of the packet's own connection.
    fn connection(&self) -> Option<&FlowView> {
        let (to, protocol) = (self.question.to, self.protocol.to_string());
        let is_own = |flow: &&FlowView| {
            flow.kind == "connection"
                && flow.protocol == protocol
                && flow.source == self.source
                && flow.destination == Some(to)
        };
        self.known.iter().find(is_own)
    }

    fn is_new(&self) -> bool {
        self.connection().is_none()
    }

    /// Returns the server of a connection that IPVS knows, or which it keeps for the client.
    fn remembered(&mut self, service: &Virtual, is_persistent: bool) -> Option<SocketAddr> {
        let servers = self.seen.servers.get(service).map(Vec::as_slice).unwrap_or_default();
        if let Some(FlowView { backend, state, remaining_seconds, .. }) = self.connection() {
            let (backend, found) =
                (*backend, format!("{state}, to {backend}; forgotten in {remaining_seconds} s"));
            self.push("flow", found, &[]);
            return servers.iter().any(|(address, ..)| *address == backend).then_some(backend);
        }
        if !is_persistent {
            return None;
        }
        let protocol = self.protocol.to_string();
        let is_of_client = |flow: &&FlowView| {
            let is_of_service = match service {
                Virtual::Mark { mark, .. } => flow.mark == Some(*mark),
                Virtual::Address { address, .. } => flow.destination == Some(*address),
            };
            let is_client = flow.source.ip() == self.source.ip() && flow.protocol == protocol;
            flow.kind == "template" && is_client && is_of_service
        };
        let FlowView { backend, remaining_seconds, .. } = self.known.iter().find(is_of_client)?;
        // The agent sets expire_quiescent_template: a server that drains keeps no client.
        servers.iter().find(|(address, server, _)| address == backend && server.weight > 0)?;
        let (backend, left) = (*backend, *remaining_seconds);
        self.push("affinity", format!("the client keeps {backend} for {left} s"), &[]);
        Some(backend)
    }

    /// Returns how a server gets the packet.
    fn way(&self, server: SocketAddr, Server { method, .. }: Server, is_marked: bool) -> (Reason, String) {
        let is_here = self.has(Set::Local, Element::Port(self.protocol, server));
        let is_process = self.question.entry == Entry::Process;
        if method == TUNNEL {
            return (Reason::SentDsr, "encapsulated; the server answers the client itself".to_owned());
        }
        if self.source.ip() == server.ip() {
            return (Reason::Hairpin, "the client itself; an address of this node is the source".to_owned());
        }
        match (is_here, is_marked && (is_process || !is_here)) {
            (true, false) => (Reason::ServedLocal, "on this node; the client's address stays".to_owned()),
            (true, true) => {
                (Reason::ServedLocal, "on this node; an address of this node is the source".to_owned())
            }
            (false, true) => {
                (Reason::SentSnat, "on another node; an address of this node is the source".to_owned())
            }
            (false, false) => (Reason::ServedPod, "on another node; the client's address stays".to_owned()),
        }
    }
}

#[cfg(test)]
#[path = "walk_tests.rs"]
mod tests;
