//! The frontend of a packet, and the client's right to use it.

use proxy_common::Address;
use proxy_common::config::global;
use proxy_common::frontend::{
    FRONTEND_DSR, FRONTEND_DSR_ENDS, FRONTEND_INSIDE_ONLY, FRONTEND_KIND_CLUSTER_IP,
    FRONTEND_KIND_EXTERNAL_IP, FRONTEND_KIND_LOAD_BALANCER, FRONTEND_KIND_NODE_PORT, FRONTEND_LISTENER,
    FRONTEND_LOCAL, FRONTEND_SOURCE_RANGES, Frontend, FrontendKey, SCOPE_EXTERNAL, SCOPE_INTERNAL,
};
use proxy_common::rules::Role;
use proxy_common::source_range::NEAR;
use proxy_common::verdict::Reason;
use proxy_common::vip::VIP_INSIDE_ONLY;
use proxy_common::way::PEER_NODE;

use super::packet::{Packet, has_connections};
use super::step::{End, Verdict};
use super::text::some_of;
use super::walker::{Part, Walker};
use crate::dataplane::ebpf::read::{Tables, protocol_text};

/// Ports that a miss names.
const NEAREST: usize = 6;

impl<A: Address, T: Tables<A>> Walker<'_, A, T> {
    /// Returns the frontend as the client sees it. `Err` is the end of the walk.
    pub fn admitted(&mut self, packet: &Packet<A>) -> Part<Frontend> {
        let scope = if self.is_of_pod() { SCOPE_INTERNAL } else { SCOPE_EXTERNAL };
        let key = frontend_key(packet, scope);
        let Some(frontend) = self.tables.frontend(&key) else {
            return Err(self.no_frontend(packet, scope));
        };
        self.note_frontend(&frontend, scope);
        if self.is_of_pod() && frontend.flags & proxy_common::frontend::FRONTEND_NODE_ONLY != 0 {
            return Err(not_ours("the frontend is for processes of the node alone"));
        }
        if self.is_other_modes(packet, frontend.may_lack_flow_entry()) {
            return Err(not_ours("the connection belongs to the other mode of the mode change"));
        }
        let admitted =
            if self.is_of_pod() { self.check_ranges(packet, frontend) } else { self.admit(packet, frontend) };
        let admitted = match admitted {
            Err(_) if self.is_older() => Err(not_ours("the other mode decides after the mode change")),
            admitted => admitted,
        }?;
        if self.is_older() {
            self.check_owner(packet, &admitted)?;
        }
        Ok(admitted)
    }

    /// Adds the step of a frontend.
    pub fn note_frontend(&mut self, frontend: &Frontend, scope: u8) {
        let has = |flag: u32| frontend.flags & flag != 0;
        let words = [
            kind(frontend),
            if scope == SCOPE_INTERNAL { "internal" } else { "external" },
            match (has(FRONTEND_DSR), has(FRONTEND_DSR_ENDS)) {
                (true, _) => "dsr",
                (false, true) => "snat (dsr for older connections)",
                (false, false) => "snat",
            },
        ];
        let text = format!("{} {}", self.label(frontend.service), words.join(", "));
        self.note("frontend", text, "FRONTENDS*");
    }

    /// Ends the walk of a packet to a port without a frontend, with the nearest ones.
    fn no_frontend(&mut self, packet: &Packet<A>, scope: u8) -> End {
        let nearest = self.nearest(&packet.key.destination, scope);
        let protocol = protocol_text(packet.key.protocol);
        let port = u16::from_be(packet.key.destination_port);
        self.note("frontend", format!("none for {port}/{protocol}: {nearest}"), "FRONTENDS*");
        self.refuse_unknown(packet, Reason::UnknownPort, nearest)
    }

    /// Ends the walk of a packet whose protocol has no frontends.
    pub fn no_protocol(&mut self, packet: &Packet<A>) -> End {
        let number = packet.key.protocol;
        let is_v4 = A::WORDS == 1;
        // Excludes extension headers, and the number for "no next header".
        let is_transport = is_v4 || !matches!(number, 0 | 43 | 44 | 50 | 51 | 59 | 60 | 135 | 139 | 140);
        if !is_transport || !is_v4 && !packet.is_plain {
            return not_ours(format!("protocol {number} has no ports"));
        }
        self.refuse_unknown(packet, Reason::UnknownProtocol, format!("protocol {number} has no frontends"))
    }

    /// Ends the walk of a packet for a Service's address that no Service serves.
    fn refuse_unknown(&mut self, packet: &Packet<A>, reason: Reason, why: String) -> End {
        let rejected = self.constant(global::REJECT_UNKNOWN);
        let destination = &packet.key.destination;
        let kinds = self.vip_kinds(destination);
        if rejected == 0 || !self.may_be_vip(destination) || kinds & rejected == 0 {
            return not_ours(why);
        }
        let is_closed = kinds & VIP_INSIDE_ONLY != 0 && !self.is_inside_cluster(&packet.key.source);
        if !self.is_of_pod() && is_closed {
            let client = packet.key.source.to_ip();
            return Verdict::new(
                Reason::SourceRefused,
                format!("{client} is outside the cluster, and the address is for clients inside"),
            )
            .into();
        }
        Verdict::new(reason, why).into()
    }

    /// Returns the other ports of an address.
    pub fn nearest(&self, destination: &A, scope: u8) -> String {
        let address = destination.to_ip();
        let mut found = self.tables.frontends_at(destination);
        found.sort_unstable_by_key(|(key, _)| (key.protocol, u16::from_be(key.port)));
        let ports = |of: u8| -> Vec<String> {
            let of_scope = found.iter().filter(|(key, _)| key.scope == of);
            of_scope
                .map(|(key, frontend)| {
                    let (port, protocol) = (u16::from_be(key.port), protocol_text(key.protocol));
                    format!("{port}/{protocol} ({})", self.label(frontend.service))
                })
                .collect()
        };
        let here = ports(scope);
        if !here.is_empty() {
            return format!("{address} has {}", some_of(&here, NEAREST));
        }
        let (other, whose) = match scope {
            SCOPE_INTERNAL => (ports(SCOPE_EXTERNAL), "for clients outside"),
            _ => (ports(SCOPE_INTERNAL), "for pods and processes of this node"),
        };
        if other.is_empty() {
            return format!("{address} has no ports of Services");
        }
        format!("{address} has {} {whose} alone", some_of(&other, NEAREST))
    }

    /// The frontend as a client over an uplink sees it.
    fn admit(&mut self, packet: &Packet<A>, frontend: Frontend) -> Part<Frontend> {
        let client = packet.key.source;
        let (is_near, is_inside) = (self.tables.is_inside(NEAR, &client), self.is_inside_cluster(&client));
        let place = match (is_near, is_inside) {
            (true, _) => "is near: an address of this node",
            (_, true) => "is inside the cluster",
            _ => "is outside the cluster",
        };
        self.note("client", format!("{} {place}", client.to_ip()), "SOURCE_RANGES*");
        if frontend.flags & FRONTEND_INSIDE_ONLY != 0 {
            if !is_inside && !self.is_judged(frontend, &client) {
                let why = format!(
                    "{} is outside the cluster, and a ClusterIP is for clients inside (--cluster-ip-clients)",
                    client.to_ip()
                );
                return Err(Verdict::new(Reason::SourceRefused, why).into());
            }
        } else {
            self.check_source(packet, frontend)?;
        }
        if frontend.flags & FRONTEND_LISTENER != 0 {
            return Err(not_ours(
                "a backend on this node listens at the frontend itself: the stack has the packet",
            ));
        }
        let mut frontend = frontend;
        let is_direct = || self.peer(&packet.key.destination) & PEER_NODE != 0 && !is_inside;
        if frontend.may_have_dsr() && frontend.kind() == FRONTEND_KIND_NODE_PORT && !is_direct() {
            frontend = frontend.without_dsr();
        }
        let has_other_list =
            frontend.flags & FRONTEND_LOCAL != 0 && frontend.cluster_service != frontend.service;
        if has_other_list && frontend.kind() != FRONTEND_KIND_CLUSTER_IP && is_near {
            let flags = frontend.flags & !FRONTEND_LOCAL;
            return Ok(Frontend { service: frontend.cluster_service, flags, ..frontend });
        }
        Ok(frontend)
    }

    /// The frontend as a pod sees it.
    fn check_ranges(&mut self, packet: &Packet<A>, frontend: Frontend) -> Part<Frontend> {
        self.note("client", format!("{} is a pod of this node", packet.key.source.to_ip()), "");
        self.check_source(packet, frontend)?;
        Ok(frontend)
    }

    fn check_source(&mut self, packet: &Packet<A>, frontend: Frontend) -> Part<()> {
        if frontend.flags & FRONTEND_SOURCE_RANGES == 0 {
            self.note("source", "all clients are admitted", "");
            return Ok(());
        }
        let client = packet.key.source;
        let ranges: Vec<String> =
            self.tables.ranges(frontend.service).iter().map(ToString::to_string).collect();
        let ranges = if ranges.is_empty() { "none".to_owned() } else { some_of(&ranges, NEAREST) };
        if self.tables.is_inside(frontend.service, &client) {
            self.note("source", format!("loadBalancerSourceRanges admit it ({ranges})"), "SOURCE_RANGES*");
            return Ok(());
        }
        if self.is_judged(frontend, &client) && !self.is_of_pod() {
            self.note("source", "another node has judged its client", "PEERS");
            return Ok(());
        }
        let why = format!("{} is in none of loadBalancerSourceRanges ({ranges})", client.to_ip());
        self.note("source", why.clone(), "SOURCE_RANGES*");
        Err(Verdict::new(Reason::SourceRefused, why).into())
    }

    /// Whether another node has judged a client, and sends to a listener from its own address.
    fn is_judged(&self, frontend: Frontend, client: &A) -> bool {
        frontend.flags & FRONTEND_LISTENER != 0 && self.is_other_node(client)
    }

    /// Whether a packet for a frontend is the other mode's, whichever side sent it.
    fn is_other_modes(&mut self, packet: &Packet<A>, may_lack_entry: bool) -> bool {
        match packet.role() {
            Role::Opening => false,
            Role::Datagram => self.is_older(),
            Role::Midstream if !self.is_newer() => false,
            Role::Midstream => match self.find(&packet.key) {
                Some(found) if found.flow.is_clients(&packet.key) => found.backend().is_none(),
                _ => !(may_lack_entry && self.owns_unknown(packet.key.protocol)),
            },
        }
    }

    /// Ends the walk if the other mode has the connection, or gets it because it begins now.
    fn check_owner(&mut self, packet: &Packet<A>, frontend: &Frontend) -> Part<()> {
        let is_owned = match self.lookup(packet, frontend) {
            Some(found) => !found.backend().is_none(),
            None if packet.is_syn() => false,
            None => {
                frontend.may_lack_flow_entry()
                    && has_connections(packet.key.protocol)
                    && self.owns_unknown(packet.key.protocol)
            }
        };
        if is_owned {
            Ok(())
        } else {
            Err(not_ours("the connection belongs to the newer mode of the mode change"))
        }
    }
}

/// Returns the key of a packet's frontend.
fn frontend_key<A: Address>(packet: &Packet<A>, scope: u8) -> FrontendKey<A> {
    FrontendKey {
        address: packet.key.destination,
        port: packet.key.destination_port,
        protocol: packet.key.protocol,
        scope,
    }
}

/// Ends a walk: the stack gets the packet as it is.
pub fn not_ours(why: impl Into<String>) -> End {
    Verdict::new(Reason::NotOurs, why).into()
}

/// Returns the kind of a frontend in one word.
pub const fn kind(frontend: &Frontend) -> &'static str {
    match frontend.kind() {
        FRONTEND_KIND_CLUSTER_IP => "ClusterIP",
        FRONTEND_KIND_NODE_PORT => "NodePort",
        FRONTEND_KIND_EXTERNAL_IP => "ExternalIP",
        FRONTEND_KIND_LOAD_BALANCER => "LoadBalancer",
        _ => "frontend",
    }
}
