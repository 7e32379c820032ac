//! The entries against forged tunnels. SECURITY.md has the trust model.
//!
//! This node must not forward packets that pods have encapsulated for Services with Direct Server Return.

use super::Plan;
use super::portion::Portion;
use crate::dataplane::Encapsulation;
use crate::dataplane::ipvs::state::{Element, Member, Set};
use crate::model::{Family, Forwarding, FrontendKind, Scope, ServicePort};

impl Portion {
    /// Adds the addresses for which a node decapsulates.
    ///
    /// Addresses in `--ipvs-exclude-cidrs` count as well, because other nodes may serve them. The
    /// `--dsr-encap` of this node makes no difference, because other nodes may decapsulate something else.
    pub(super) fn add_inner_destinations(&mut self, port: &ServicePort) {
        if port.forwarding != Forwarding::Dsr {
            return;
        }
        for frontend in &port.frontends {
            let address = frontend.address.ip();
            match frontend.kind {
                FrontendKind::NodePort if frontend.scope == Scope::Encapsulated => {
                    self.node_ports.insert(Family::of(address));
                }
                // `nodes_and_tunnels` adds the addresses of all nodes, including those of this NodePort.
                FrontendKind::ClusterIp | FrontendKind::NodePort => {}
                FrontendKind::ExternalIp | FrontendKind::LoadBalancer => {
                    self.members.insert((Set::InnerDestinations, Element::Address(address)), None);
                }
            }
        }
    }
}

impl Plan {
    /// Returns the nodes' addresses as sources of tunnels, as inner destinations, and as receivers of FoU.
    ///
    /// A tunnel for a NodePort has a node's address as its inner destination. Nodes that accept FoU get no
    /// FoU from other sources at all. One UDP header may cover many segments, and only the first is readable.
    pub(super) fn nodes_and_tunnels(&self) -> impl Iterator<Item = (Member, Option<u32>)> {
        let Self { rules, nodes, node_ports, .. } = self;
        let takes_fou = [Some(rules.encapsulation), rules.also_taken].contains(&Some(Encapsulation::Fou));
        nodes.iter().flat_map(move |node| {
            let has_node_ports = node_ports.is_wanted(&Family::of(*node));
            let sets = [
                Some(Set::Nodes),
                has_node_ports.then_some(Set::InnerDestinations),
                takes_fou.then_some(Set::FouNodes),
            ];
            sets.into_iter().flatten().map(move |set| ((set, Element::Address(*node)), None))
        })
    }
}
