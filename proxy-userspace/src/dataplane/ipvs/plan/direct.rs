//! The entries for Direct Server Return.
//!
//! The director gets real servers in tunnel mode. A backend's node decapsulates, and needs a number for each
//! backend.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::{IpAddr, SocketAddr};

use super::delta::{Delta, Difference};
use super::op::{Kernel, Op};
use super::portion::Portion;
use super::{Context, Plan};
use crate::dataplane::ipvs::state::{Element, Member, Set, numbers};
use crate::dataplane::{Encapsulation, SyncReport};
use crate::model::{Desired, Endpoint, Family, Forwarding, Frontend, FrontendKind, Scope, ServicePort};

impl Context<'_> {
    /// Whether backends on other nodes answer clients outside directly.
    ///
    /// At a ClusterIP they never do, because a client there may have no route for replies from another node.
    /// At a NodePort they do for nodes' addresses only, because other nodes decapsulate for no others.
    pub(super) fn is_direct(&self, port: &ServicePort, frontend: &Frontend) -> bool {
        // The UDP encapsulation of IPVS is GUE, a different protocol from FoU.
        let can_encapsulate = self.encapsulation == Encapsulation::Ipip;
        can_encapsulate
            && port.forwarding == Forwarding::Dsr
            && match frontend.kind {
                FrontendKind::ClusterIp => false,
                FrontendKind::NodePort if frontend.scope != Scope::Encapsulated => {
                    self.nodes.contains(&frontend.address.ip())
                }
                _ => true,
            }
    }

    /// Whether the endpoint is on another node, which decapsulates packets for it.
    pub(super) fn is_behind_a_tunnel(&self, address: SocketAddr, endpoint: &Endpoint) -> bool {
        !endpoint.local && endpoint.node.is_some() && self.may_be_encapsulated_for(address.ip())
    }

    /// Whether nodes may encapsulate for a backend's address.
    ///
    /// An overlay sends its tunnel packets to a node's own address. The node could not distinguish them from
    /// ours.
    fn may_be_encapsulated_for(&self, address: IpAddr) -> bool {
        !self.nodes.contains(&address)
    }
}

/// The numbers of this node's backends.
#[derive(Clone, Debug, Default)]
pub struct Numbers {
    by_backend: BTreeMap<IpAddr, u32>,
}

impl Numbers {
    /// Returns the backend's number: its present one, the one in the kernel, or a free one; `None` if none is
    /// free.
    fn give(&mut self, backend: IpAddr, members: &Delta<Member, Option<u32>>) -> Option<u32> {
        if let Some(number) = self.by_backend.get(&backend) {
            return Some(*number);
        }
        let is_number = |number: &u32| (numbers::VALUE + 1..=numbers::LAST).contains(number);
        let mut given: HashSet<u32> = self.by_backend.values().copied().collect();
        let in_kernel = members.actual().get(&(Set::Encapsulated, Element::Address(backend)));
        let found =
            in_kernel.copied().flatten().filter(|number| is_number(number) && !given.contains(number));
        // A number that the kernel still has for another backend would give it that backend's targets.
        let others = members.actual().iter().filter(|((set, _), _)| *set == Set::Encapsulated);
        given.extend(others.filter_map(|(_, number)| *number));
        let number =
            found.or_else(|| (numbers::VALUE + 1..=numbers::LAST).find(|number| !given.contains(number)))?;
        self.by_backend.insert(backend, number);
        Some(number)
    }

    /// Frees the numbers of backends without encapsulated packets.
    fn collect(&mut self, members: &Delta<Member, Option<u32>>) {
        let is_wanted =
            |backend: &IpAddr| members.is_wanted(&(Set::Encapsulated, Element::Address(*backend)));
        self.by_backend.retain(|backend, _| is_wanted(backend));
    }
}

impl Portion {
    /// Adds the targets for packets that other nodes encapsulate for a backend of the port on this node.
    ///
    /// Backends in any condition count, because connections go on until the endpoint is gone.
    fn receive(&mut self, port: &ServicePort, backend: SocketAddr, number: u32, context: &Context<'_>) {
        self.tunnels.insert(Family::of(backend.ip()));
        self.members.insert((Set::Encapsulated, Element::Address(backend.ip())), Some(number));
        for frontend in port.frontends.iter().filter(|frontend| context.is_direct(port, frontend)) {
            let Frontend { address, scope, .. } = *frontend;
            let set = match scope {
                Scope::Encapsulated => Set::NodeTargets,
                Scope::External if !context.is_excluded(address.ip()) => Set::Targets,
                Scope::External | Scope::Internal | Scope::ExternalInside => continue,
            };
            let (protocol, to) = (port.protocol, Some(backend.port().into()));
            let element = Element::Target { number, protocol, frontend: address, backend: backend.ip() };
            // The outer header has only the pod's address, so the first of its endpoints gets all packets.
            self.members.entry((set, element)).or_insert(to);
        }
    }
}

impl Plan {
    /// Adds the entries that a port needs on a backend's node.
    pub(super) fn receive(&mut self, portion: &mut Portion, port: &ServicePort) {
        if !port.frontends.iter().any(|frontend| self.context().is_direct(port, frontend)) {
            return;
        }
        for (address, _) in port.endpoints.iter().filter(|(_, endpoint)| endpoint.local) {
            if !self.context().may_be_encapsulated_for(address.ip()) {
                continue;
            }
            if let Some(number) = self.numbers.give(address.ip(), &self.members) {
                portion.receive(port, *address, number, &self.context());
            }
        }
    }

    /// Takes the addresses of all nodes.
    pub(super) fn set_nodes(&mut self, desired: &Desired) {
        let nodes: BTreeSet<IpAddr> = desired.nodes.values().flatten().copied().collect();
        if nodes != self.nodes {
            self.everything |= desired.ports.values().any(|port| port.forwarding == Forwarding::Dsr);
            self.nodes = nodes;
        }
    }

    /// Frees the numbers that no port needs.
    pub(super) fn collect_numbers(&mut self) {
        self.numbers.collect(&self.members);
    }

    /// Returns the largest segment sizes of clients with encapsulated packets, by uplink.
    ///
    /// Such a packet must fit the smallest MTU between nodes together with the outer header. Replies have no
    /// outer header.
    pub(super) fn segments(&self) -> impl Iterator<Item = (Member, Option<u32>)> {
        let families = [Family::V4, Family::V6].into_iter().filter(|family| self.tunnels.is_wanted(family));
        let sizes = families.filter_map(|family| Some((family, self.mtu?.checked_sub(headers(family))?)));
        sizes.flat_map(|(family, size)| {
            let member = move |name: &String| (Set::Segments, Element::FamilyDevice(family, name.clone()));
            self.uplinks.iter().map(move |name| (member(name), Some(size)))
        })
    }

    /// Makes the missing devices. A family without its device gets no packets.
    pub(super) fn raise_tunnels(&mut self, kernel: &mut impl Kernel, report: &mut SyncReport) {
        for (family, difference) in self.tunnels.differences() {
            if let Difference::Missing(()) = difference {
                self.change_tunnel(&Op::AddTunnel(family), kernel, report);
            }
        }
    }

    /// Removes the devices without packets.
    pub(super) fn lower_tunnels(&mut self, kernel: &mut impl Kernel, report: &mut SyncReport) {
        for (family, difference) in self.tunnels.differences() {
            let is_held = self.incomplete && self.tunnels.is_unclaimed(&family);
            let mut members = self.members.actual().keys();
            let is_used =
                members.any(|(set, element)| *set == Set::Encapsulated && element.family() == Some(family));
            if difference == Difference::Extra(()) && !is_held && !is_used {
                self.change_tunnel(&Op::DeleteTunnel(family), kernel, report);
            }
        }
    }

    fn change_tunnel(&mut self, op: &Op, kernel: &mut impl Kernel, report: &mut SyncReport) {
        match kernel.apply(op) {
            Ok(()) => {
                report.writes += op.writes();
                self.done(op);
            }
            Err(why) => report.fail(self.owner(op).as_deref(), why),
        }
    }

    /// Whether a member must wait, because its packets would go to a missing device.
    pub(super) fn must_wait(&self, (set, element): &Member) -> bool {
        let has_tunnel = |family| self.tunnels.actual().contains_key(&family);
        *set == Set::Encapsulated && !element.family().is_some_and(has_tunnel)
    }
}

/// Returns the bytes of the outer IP header, the inner IP header and the TCP header.
const fn headers(family: Family) -> u32 {
    match family {
        Family::V4 => 20 + 20 + 20,
        Family::V6 => 40 + 40 + 20,
    }
}
