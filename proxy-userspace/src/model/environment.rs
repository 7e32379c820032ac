//! What this node and the cluster's other nodes mean for the Services: which addresses are whose.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use super::node::NodeSpec;
use super::problem::Topic;
use super::{Family, NodePortAddresses};

/// Addresses that are somebody's already.
#[derive(Debug, Default)]
pub(super) struct Environment {
    /// This node's own Node object, or what the last one said.
    own: Option<NodeSpec>,
    /// Addresses on devices of this node.
    devices: BTreeSet<IpAddr>,
    /// Addresses of all Node objects, each with the number of Nodes that have it.
    nodes: BTreeMap<IpAddr, usize>,
    api_servers: BTreeSet<SocketAddr>,
}

impl Environment {
    /// This node's name may stand for nothing yet. What it once stood for stays.
    pub fn own(&self) -> Option<&NodeSpec> {
        self.own.as_ref()
    }
    /// The addresses of this node's own Node object.
    pub fn own_addresses(&self) -> BTreeSet<IpAddr> {
        self.own.as_ref().map(NodeSpec::addresses).unwrap_or_default()
    }
    pub fn set_own(&mut self, own: Option<NodeSpec>) {
        self.own = own;
    }
    /// Returns the addresses that came or went.
    pub fn set_devices(&mut self, addresses: BTreeSet<IpAddr>) -> BTreeSet<IpAddr> {
        let changed = &self.devices ^ &addresses;
        self.devices = addresses;
        changed
    }
    /// Returns the addresses with a port that came or went.
    pub fn set_api_servers(&mut self, servers: BTreeSet<SocketAddr>) -> BTreeSet<IpAddr> {
        let changed = self.api_servers.symmetric_difference(&servers).map(SocketAddr::ip).collect();
        self.api_servers = servers;
        changed
    }
    /// Whether nothing may come between this and its clients, on whatever node it is.
    pub fn is_api_server(&self, server: SocketAddr) -> bool {
        self.api_servers.contains(&server)
    }
    /// Replaces the addresses of one Node object; returns those that came or went.
    pub fn replace_node(&mut self, old: &BTreeSet<IpAddr>, new: &BTreeSet<IpAddr>) -> BTreeSet<IpAddr> {
        for gone in old - new {
            match self.nodes.get_mut(&gone) {
                Some(count) if *count > 1 => *count -= 1,
                _ => drop(self.nodes.remove(&gone)),
            }
        }
        for come in new - old {
            *self.nodes.entry(come).or_default() += 1;
        }
        old ^ new
    }

    /// The addresses of all Node objects.
    pub fn node_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.nodes.keys().copied()
    }
    /// The addresses NodePorts are served on.
    pub fn node_port_addresses(&self, setting: &NodePortAddresses) -> impl Iterator<Item = IpAddr> {
        let (primary, ranges) = match setting {
            NodePortAddresses::Primary => (self.own.as_ref(), [].as_slice()),
            NodePortAddresses::Within(ranges) => (None, ranges.as_slice()),
        };
        let primary = [Family::V4, Family::V6].into_iter().filter_map(move |family| primary?.primary(family));
        let inside = |address: &IpAddr| ranges.iter().any(|range| range.contains(address));
        primary.chain(self.devices.iter().copied().filter(inside))
    }
    /// Why an address can't be an external IP: whoever may create Services could take over what lives there.
    pub fn refuse_external_ip(&self, address: IpAddr) -> Option<&'static str> {
        if self.is_own(address) {
            Some("is an address of this node")
        } else if self.nodes.contains_key(&address) {
            Some("is an address of another node")
        } else if self.has_api_server(address) {
            Some("is an address of the API server")
        } else {
            None
        }
    }
    /// What the refusal of an external IP is about: only this node knows what is on its devices.
    pub fn refusal_topic(&self, address: IpAddr) -> Topic {
        let elsewhere = self.nodes.contains_key(&address) || self.has_api_server(address);
        if self.is_own(address) && !elsewhere { Topic::RefusedHere } else { Topic::RefusedAddress }
    }
    /// Why an address can't be a load balancer's. Those of nodes can: k3s and kube-vip write them there, and
    /// nothing but the Service's own ports is served on them.
    pub fn refuse_ingress(&self, address: IpAddr) -> Option<&'static str> {
        let of_node = self.is_own(address) || self.nodes.contains_key(&address);
        (!of_node && self.has_api_server(address)).then_some("is an address of the API server")
    }
    /// Where packets for an ExternalIP of this node arrive that is on none of its devices: the cloud maps it
    /// to the InternalIP one to one.
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
    /// Whether it is an address of this node.
    pub fn is_own(&self, address: IpAddr) -> bool {
        self.devices.contains(&address)
            || self.own.as_ref().is_some_and(|own| own.addresses().contains(&address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_no_other_node_can_know_is_refused_here_alone() {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let mut environment = Environment::default();
        environment.set_devices(["10.0.0.1", "10.0.0.2"].map(address).into());
        environment.replace_node(&BTreeSet::new(), &BTreeSet::from([address("10.0.0.1")]));
        environment.set_api_servers([SocketAddr::new(address("10.0.0.9"), 6443)].into());
        for (text, topic) in [
            ("10.0.0.2", Topic::RefusedHere),
            ("10.0.0.1", Topic::RefusedAddress),
            ("10.0.0.9", Topic::RefusedAddress),
            ("192.0.2.1", Topic::RefusedAddress),
        ] {
            assert_eq!(environment.refusal_topic(address(text)), topic, "{text}");
        }
    }
}
