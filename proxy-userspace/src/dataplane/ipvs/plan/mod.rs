//! The plan, a pure function. Its input is the desired state and the kernel's state, its output a list of
//! operations in a safe order.

mod delta;
mod direct;
mod forged;
mod mark;
mod op;
mod order;
mod portion;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use tracing::warn;

pub use op::{Entry, Kernel, Op};
pub use portion::{PERSISTENT, TUNNEL};

use self::delta::{Delta, Owner};
use self::direct::Numbers;
use self::mark::Marks;
use self::portion::{Portion, marked};
use super::state::{Element, Member, Scheduling, Server, Set, State, Virtual};
use crate::dataplane::{Encapsulation, RejectUnknown, SyncReport};
use crate::model::{Desired, Dirty, Family, PortKey, Scheduler, ServicePort};
use crate::node::Topology;

/// The settings of the plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// The scheduler of Services without their own.
    pub scheduler: Scheduler,
    /// Addresses with virtual services that belong to other software.
    pub excluded: Vec<IpNet>,
    /// The addresses whose unknown ports are refused.
    pub reject_unknown: RejectUnknown,
    /// The packets from inside the node that are masqueraded.
    pub masquerade: Masquerade,
    /// The encapsulation for Direct Server Return. IPVS can only use IPIP.
    pub encapsulation: Encapsulation,
    /// The other encapsulation that nodes in eBPF mode accept.
    pub also_taken: Option<Encapsulation>,
}

/// The masqueraded packets among those that did not come in over an uplink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Masquerade {
    /// Packets from sources outside these ranges. In a family without a range, none.
    Outside(Vec<IpNet>),
    /// All packets.
    All,
}

impl Default for Masquerade {
    fn default() -> Self {
        Self::Outside(Vec::new())
    }
}

/// The inputs of the computation of a port.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    scheduler: Scheduler,
    excluded: &'a [IpNet],
    reject_unknown: RejectUnknown,
    encapsulation: Encapsulation,
    /// Addresses on devices of this node.
    addresses: &'a BTreeSet<IpAddr>,
    /// Addresses of all nodes.
    nodes: &'a BTreeSet<IpAddr>,
}

/// The wanted and the actual state of the kernel.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    rules: Rules,
    portions: BTreeMap<PortKey, (Owner, Portion)>,
    node_members: BTreeMap<Member, Option<u32>>,
    uplinks: BTreeSet<String>,
    /// The largest IP packet between nodes, in bytes.
    mtu: Option<u32>,
    addresses: BTreeSet<IpAddr>,
    /// Addresses of all nodes.
    nodes: BTreeSet<IpAddr>,
    /// Whether an input of all ports has changed.
    everything: bool,
    incomplete: bool,
    marks: Marks,
    numbers: Numbers,
    services: Delta<Virtual, Scheduling>,
    servers: Delta<(Virtual, SocketAddr), Server>,
    bound: Delta<IpAddr, ()>,
    members: Delta<Member, Option<u32>>,
    tunnels: Delta<Family, ()>,
    /// Families in which a Service with Direct Server Return has NodePorts. The kernel has no such entries.
    node_ports: Delta<Family, ()>,
    /// Servers that get no new connections and keep their existing ones.
    draining: BTreeSet<(Virtual, SocketAddr)>,
    /// Draining servers without connections.
    drained: BTreeSet<(Virtual, SocketAddr)>,
}

impl Plan {
    /// Returns a plan that wants nothing yet. `state` is the state of an earlier agent.
    #[must_use]
    pub fn new(rules: Rules, state: State) -> Self {
        let mut plan = Self { rules, ..Self::default() };
        plan.adopt(state);
        plan
    }

    /// Takes `state` as the state of the kernel.
    pub fn adopt(&mut self, state: State) {
        self.services.adopt(state.services);
        self.servers.adopt(state.servers);
        self.bound.adopt(state.addresses.into_iter().map(|address| (address, ())).collect());
        self.members.adopt(state.members);
        self.tunnels.adopt(state.tunnels.into_iter().map(|family| (family, ())).collect());
        self.draining.clear();
        self.drained.clear();
    }

    /// Returns the state of the kernel, as far as the plan knows it.
    #[must_use]
    pub fn actual(&self) -> State {
        State {
            services: self.services.actual().clone(),
            servers: self.servers.actual().clone(),
            addresses: self.bound.actual().keys().copied().collect(),
            tunnels: self.tunnels.actual().keys().copied().collect(),
            members: self.members.actual().clone(),
        }
    }

    /// Takes the uplinks and the addresses of the node. The next sync uses them.
    pub fn set_topology(&mut self, topology: &Topology) {
        if self.addresses != topology.addresses {
            self.addresses.clone_from(&topology.addresses);
            self.everything = true;
        }
        self.uplinks.clone_from(&topology.uplinks);
        self.mtu = topology.mtu;
    }

    /// Brings the kernel to `desired` for all entries in `dirty` and all pending ones.
    pub fn sync(&mut self, desired: &Desired, dirty: &Dirty, kernel: &mut impl Kernel) -> SyncReport {
        // All objects are readable now, so held entries are judged anew.
        self.everything |= self.incomplete && !dirty.incomplete;
        self.incomplete = dirty.incomplete;
        self.set_nodes(desired);
        let due: BTreeSet<PortKey> = if std::mem::take(&mut self.everything) {
            self.portions.keys().chain(desired.ports.keys()).cloned().collect()
        } else {
            dirty.ports.clone()
        };
        for key in &due {
            self.want(key, desired.ports.get(key));
        }
        self.collect_numbers();
        self.want_for_node(desired);
        self.execute(kernel)
    }

    /// Returns the draining servers.
    pub fn draining(&self) -> impl Iterator<Item = &(Virtual, SocketAddr)> {
        self.draining.difference(&self.drained)
    }

    /// Records that a draining server has no connections. The next [`execute`](Self::execute) removes it.
    pub fn has_drained(&mut self, service: Virtual, server: SocketAddr) {
        self.drained.insert((service, server));
        self.servers.touch((service, server));
    }

    /// Carries out the pending operations.
    pub fn execute(&mut self, kernel: &mut impl Kernel) -> SyncReport {
        let mut report = SyncReport::default();
        self.raise_tunnels(kernel, &mut report);
        let mut failed = BTreeSet::new();
        for run in self.operations().chunk_by(Op::goes_with) {
            let has_service = |op: &&Op| !matches!(op, Op::PutServer(of, ..) if failed.contains(of));
            let run: Vec<&Op> = run.iter().filter(has_service).collect();
            let mut is_gate_shut = false;
            for (op, outcome) in run.iter().zip(kernel.apply_all(&run)) {
                let Err(why) = outcome else {
                    report.writes += op.writes();
                    self.done(op);
                    continue;
                };
                is_gate_shut |= matches!(op, Op::ChangeMembers { add, .. } if !add.is_empty());
                if let Op::PutService(service, _) = op {
                    failed.insert(*service);
                }
                report.fail(self.owner(op).as_deref(), why);
            }
            // A failed refusal must stop the admissions after it.
            if is_gate_shut {
                break;
            }
        }
        self.lower_tunnels(kernel, &mut report);
        report.pending.sort();
        report.pending.dedup();
        report
    }

    fn owner(&self, op: &Op) -> Owner {
        match op {
            Op::PutService(service, _)
            | Op::DeleteService(service)
            | Op::PutServer(service, ..)
            | Op::DeleteServer(service, _) => self.services.owner(service),
            Op::AddAddress(address) | Op::DeleteAddress(address) => self.bound.owner(address),
            Op::AddTunnel(family) | Op::DeleteTunnel(family) => self.tunnels.owner(family),
            Op::ChangeMembers { .. } => None,
        }
    }

    fn want(&mut self, key: &PortKey, port: Option<&ServicePort>) {
        let old = self.portions.remove(key);
        let owner = old.as_ref().map_or_else(|| Some(Arc::new(key.clone())), |(owner, _)| owner.clone());
        let old = old.map(|(_, portion)| portion).unwrap_or_default();
        let new = port.map(|port| self.portion(key, port)).unwrap_or_default();
        if port.is_none() {
            self.marks.release(key);
        }
        for address in new.excluded.difference(&old.excluded) {
            warn!(port = %key, %address, "the address is in --ipvs-exclude-cidrs; not served");
        }
        exchange(&mut self.services, &owner, &old.services, &new.services);
        exchange(&mut self.servers, &owner, &old.servers, &new.servers);
        exchange(&mut self.members, &owner, &old.members, &new.members);
        exchange_keys(&mut self.tunnels, &owner, &old.tunnels, &new.tunnels);
        exchange_keys(&mut self.node_ports, &owner, &old.node_ports, &new.node_ports);
        exchange_keys(&mut self.bound, &owner, &old.addresses, &new.addresses);
        if port.is_some() {
            self.portions.insert(key.clone(), (owner, new));
        }
    }

    fn context(&self) -> Context<'_> {
        Context {
            scheduler: self.rules.scheduler,
            excluded: &self.rules.excluded,
            reject_unknown: self.rules.reject_unknown,
            encapsulation: self.rules.encapsulation,
            addresses: &self.addresses,
            nodes: &self.nodes,
        }
    }

    fn portion(&mut self, key: &PortKey, port: &ServicePort) -> Portion {
        let marked = marked(port, &self.context());
        let mark = if marked.is_empty() {
            self.marks.release(key);
            None
        } else {
            let actual = self.members.actual();
            let members = marked.iter().map(|address| (Set::Marks, Element::Port(port.protocol, *address)));
            let found = members.filter_map(|member| actual.get(&member).copied().flatten());
            let services = self.services.actual();
            let is_in_use = |mark| {
                [Family::V4, Family::V6]
                    .iter()
                    .any(|family| services.contains_key(&Virtual::Mark { family: *family, mark }))
            };
            self.marks.give(key, port.protocol, found, is_in_use)
        };
        let mut portion = Portion::new(port, mark, &self.context());
        self.receive(&mut portion, port);
        portion.add_inner_destinations(port);
        if self.incomplete && port.endpoints.is_empty() {
            self.hold(&mut portion);
        }
        portion
    }

    /// Removes the refusals at virtual services with servers in the kernel.
    ///
    /// Unreadable endpoints may be the ones that an earlier agent served. Their clients must not be refused.
    fn hold(&self, portion: &mut Portion) {
        let is_held = |element: &Element| match element {
            Element::Port(protocol, address) => {
                let service = Virtual::Address { protocol: *protocol, address: *address };
                order::servers_of(self.servers.actual(), &service).next().is_some()
            }
            _ => false,
        };
        let refusals = [Set::Refused, Set::DroppedInside, Set::DroppedOutside];
        portion.members.retain(|(set, element), _| !(refusals.contains(set) && is_held(element)));
    }

    fn want_for_node(&mut self, desired: &Desired) {
        let nets = |set, nets: Vec<IpNet>| {
            IpNet::aggregate(&nets).into_iter().map(move |net| (set, Element::Net(net)))
        };
        let cluster = nets(Set::Cluster, desired.cluster_sources.iter().copied().collect());
        // A pod of this node is known by its address alone.
        let near = desired.pod_sources.union(&desired.own_sources);
        let near = nets(Set::Near, near.copied().collect());
        let inside = nets(Set::Inside, self.rules.masquerade.inside());
        let uplinks = self.uplinks.iter().map(|name| (Set::Uplinks, Element::Device(name.clone())));
        let plain = cluster.chain(near).chain(inside).chain(uplinks).map(|member| (member, None));
        let new: BTreeMap<Member, Option<u32>> =
            plain.chain(self.segments()).chain(self.nodes_and_tunnels()).collect();
        for gone in self.node_members.keys().filter(|member| !new.contains_key(member)) {
            self.members.release(&None, gone);
        }
        for (member, number) in &new {
            if self.node_members.get(member) != Some(number) {
                self.members.want(&None, member.clone(), *number);
            }
        }
        self.node_members = new;
    }
}

impl Masquerade {
    /// Returns the sources that are not masqueraded.
    fn inside(&self) -> Vec<IpNet> {
        let Self::Outside(ranges) = self else { return Vec::new() };
        let everybody = [
            IpNet::from(Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 0)),
            IpNet::from(Ipv6Net::new_assert(Ipv6Addr::UNSPECIFIED, 0)),
        ];
        let family = |net: &IpNet| Family::of(net.addr());
        let without =
            everybody.into_iter().filter(|all| !ranges.iter().any(|net| family(net) == family(all)));
        ranges.iter().map(IpNet::trunc).chain(without).collect()
    }
}

fn exchange<K: Ord + Clone, V: PartialEq + Clone>(
    delta: &mut Delta<K, V>,
    owner: &Owner,
    old: &BTreeMap<K, V>,
    new: &BTreeMap<K, V>,
) {
    for gone in old.keys().filter(|key| !new.contains_key(key)) {
        delta.release(owner, gone);
    }
    for (key, value) in new {
        delta.want(owner, key.clone(), value.clone());
    }
}

fn exchange_keys<K: Ord + Clone>(
    delta: &mut Delta<K, ()>,
    owner: &Owner,
    old: &BTreeSet<K>,
    new: &BTreeSet<K>,
) {
    for gone in old.difference(new) {
        delta.release(owner, gone);
    }
    for key in new {
        delta.want(owner, key.clone(), ());
    }
}

#[cfg(test)]
mod tests;
