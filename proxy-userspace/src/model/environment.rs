//! The holders of addresses: this node, the cluster's other nodes, the API server.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::listener::{Listener, takes};
use super::node::NodeSpec;
use super::problem::Topic;
use super::{Family, NodePortAddresses, Protocol};

/// The addresses that have a holder already.
#[derive(Debug, Default)]
pub(super) struct Environment {
    /// This node's own Node object, or the last one after its deletion.
    own: Option<NodeSpec>,
    /// Addresses on devices of this node.
    devices: BTreeSet<IpAddr>,
    /// The addresses of all Node objects, each with the names of the Nodes that have it.
    nodes: BTreeMap<IpAddr, BTreeSet<Arc<str>>>,
    api_servers: BTreeSet<SocketAddr>,
    listeners: BTreeSet<Listener>,
}

/// The holder of an address that a Service may not have.
///
/// Otherwise a user who may create Services could take over the traffic of that host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    /// The Node with this name.
    Node(Arc<str>),
    /// A device of this node. Neither a Node nor the API server has the address.
    Device,
    ApiServer,
}

impl Environment {
    /// Returns this node's Node object, or the last one after its deletion. `None` if it never
    /// existed.
    pub fn own(&self) -> Option<&NodeSpec> {
        self.own.as_ref()
    }
    /// Returns the addresses of this node's own Node object.
    pub fn own_addresses(&self) -> BTreeSet<IpAddr> {
        self.own.as_ref().map(NodeSpec::addresses).unwrap_or_default()
    }
    pub fn set_own(&mut self, own: Option<NodeSpec>) {
        self.own = own;
    }
    /// Sets the addresses on devices. Returns those that came or went.
    pub fn set_devices(&mut self, addresses: BTreeSet<IpAddr>) -> BTreeSet<IpAddr> {
        let changed = &self.devices ^ &addresses;
        self.devices = addresses;
        changed
    }
    /// Sets the API server's addresses and ports. Returns the addresses that came or went.
    pub fn set_api_servers(&mut self, servers: BTreeSet<SocketAddr>) -> BTreeSet<IpAddr> {
        let changed = self.api_servers.symmetric_difference(&servers).map(SocketAddr::ip).collect();
        self.api_servers = servers;
        changed
    }
    /// Sets the sockets of this node that take packets from anybody. Returns those that came or went.
    pub fn set_listeners(&mut self, listeners: BTreeSet<Listener>) -> BTreeSet<Listener> {
        let changed = &self.listeners ^ &listeners;
        self.listeners = listeners;
        changed
    }
    /// Returns whether the address is this node's, and a socket of this node gets packets for it.
    ///
    /// An address on a device that the Node object does not have was put there for a load balancer, by
    /// kube-vip or a person. A socket that is bound to all addresses has no claim to it.
    pub fn has_listener(&self, protocol: Protocol, address: SocketAddr) -> bool {
        if self.own_addresses().contains(&address.ip()) {
            takes(&self.listeners, protocol, address)
        } else {
            self.devices.contains(&address.ip()) && self.listeners.contains(&Listener { protocol, address })
        }
    }
    /// Returns whether an API server listens there. No Service may take its traffic, on any node.
    pub fn is_api_server(&self, server: SocketAddr) -> bool {
        self.api_servers.contains(&server)
    }
    /// Replaces the addresses of one Node object. Returns those that came or went.
    pub fn replace_node(
        &mut self,
        name: &str,
        old: &BTreeSet<IpAddr>,
        new: &BTreeSet<IpAddr>,
    ) -> BTreeSet<IpAddr> {
        for gone in old - new {
            let Some(names) = self.nodes.get_mut(&gone) else { continue };
            names.remove(name);
            if names.is_empty() {
                self.nodes.remove(&gone);
            }
        }
        let name: Arc<str> = name.into();
        for come in new - old {
            self.nodes.entry(come).or_default().insert(Arc::clone(&name));
        }
        old ^ new
    }

    /// Returns the addresses of all Node objects.
    pub fn node_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.nodes.keys().copied()
    }
    /// Returns whether a Node object has the address.
    pub fn is_of_node(&self, address: IpAddr) -> bool {
        self.nodes.contains_key(&address)
    }
    /// Returns the addresses that serve NodePorts.
    pub fn node_port_addresses(&self, setting: &NodePortAddresses) -> impl Iterator<Item = IpAddr> {
        let (primary, ranges) = match setting {
            NodePortAddresses::Primary => (self.own.as_ref(), [].as_slice()),
            NodePortAddresses::Within(ranges) => (None, ranges.as_slice()),
        };
        let primary = [Family::V4, Family::V6].into_iter().filter_map(move |family| primary?.primary(family));
        let inside = |address: &IpAddr| ranges.iter().any(|range| range.contains(address));
        primary.chain(self.devices.iter().copied().filter(inside))
    }
    /// Returns the holder that keeps an address from being an external IP.
    pub fn refuse_external_ip(&self, address: IpAddr) -> Option<Holder> {
        let of_node = self.nodes.get(&address).and_then(BTreeSet::first).cloned().map(Holder::Node);
        let of_server = || self.has_api_server(address).then_some(Holder::ApiServer);
        let on_device = || self.is_own(address).then_some(Holder::Device);
        of_node.or_else(of_server).or_else(on_device)
    }
    /// Returns the holder that keeps an address from being a load balancer's.
    ///
    /// Node addresses are allowed: k3s and kube-vip write them there. Only the Service's own ports
    /// are served on them.
    pub fn refuse_ingress(&self, address: IpAddr) -> Option<Holder> {
        let of_node = self.is_own(address) || self.nodes.contains_key(&address);
        (!of_node && self.has_api_server(address)).then_some(Holder::ApiServer)
    }
    /// Returns the address at which packets for an ExternalIP of this node arrive that is on none
    /// of its devices.
    ///
    /// The cloud maps it to the InternalIP one to one.
    pub fn mapped(&self, address: IpAddr) -> Option<IpAddr> {
        let own = self.own.as_ref().filter(|own| own.external.contains(&address))?;
        let elsewhere = !self.devices.contains(&address) && !own.internal.contains(&address);
        let internal = own.internal.iter().copied();
        internal.filter(|_| elsewhere).find(|internal| Family::of(*internal) == Family::of(address))
    }

    fn has_api_server(&self, address: IpAddr) -> bool {
        let mut ports =
            self.api_servers.range(SocketAddr::new(address, 0)..=SocketAddr::new(address, u16::MAX));
        ports.next().is_some()
    }
    /// Returns all addresses of this node, some twice.
    pub fn all_own(&self) -> impl Iterator<Item = IpAddr> {
        let of_node = self.own.iter().flat_map(|own| own.internal.iter().chain(&own.external));
        self.devices.iter().chain(of_node).copied()
    }
    /// Returns whether this node has the address.
    pub fn is_own(&self, address: IpAddr) -> bool {
        self.devices.contains(&address)
            || self.own.as_ref().is_some_and(|own| own.addresses().contains(&address))
    }
}

impl Holder {
    /// Returns the topic of a refusal. Only this node knows the addresses on its devices.
    pub const fn topic(&self) -> Topic {
        match self {
            Self::Node(_) | Self::ApiServer => Topic::RefusedAddress,
            Self::Device => Topic::RefusedHere,
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const INGRESS_ONLY: &str =
            "only status.loadBalancer.ingress may name it, whatever --service-external-ip-range says";
        match self {
            Self::Node(name) => write!(f, "is an address of Node {name}; {INGRESS_ONLY}"),
            Self::Device => write!(f, "is on a device of this node; {INGRESS_ONLY}"),
            Self::ApiServer => {
                f.write_str("is an address of the API server; no setting gives it to a Service")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_no_other_node_can_know_is_refused_here_alone() {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let mut environment = Environment::default();
        environment.set_devices(["10.0.0.1", "10.0.0.2", "10.0.0.9"].map(address).into());
        let shared = BTreeSet::from([address("10.0.0.1")]);
        for name in ["b", "a"] {
            environment.replace_node(name, &BTreeSet::new(), &shared);
        }
        environment.set_api_servers([SocketAddr::new(address("10.0.0.9"), 6443)].into());
        for (text, owned) in [
            ("10.0.0.2", Some(Holder::Device)),
            ("10.0.0.1", Some(Holder::Node("a".into()))),
            ("10.0.0.9", Some(Holder::ApiServer)),
            ("192.0.2.1", None),
        ] {
            assert_eq!(environment.refuse_external_ip(address(text)), owned, "{text}");
        }
        assert_eq!(Holder::Device.topic(), Topic::RefusedHere);
        assert_eq!(Holder::Node("a".into()).topic(), Topic::RefusedAddress);
        environment.replace_node("a", &shared, &BTreeSet::new());
        assert_eq!(environment.refuse_external_ip(address("10.0.0.1")), Some(Holder::Node("b".into())));
        environment.replace_node("b", &shared, &BTreeSet::new());
        assert_eq!(environment.refuse_external_ip(address("10.0.0.1")), Some(Holder::Device));
    }
}
