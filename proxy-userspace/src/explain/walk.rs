//! The walk of a frame through the tables, step by step as the programs take it.
//!
//! Its truth is the programs' source: `hooks`, `parse`, `select`, `flow` and `forward` of `proxy-ebpf`.

use proxy_common::Address;
use proxy_common::config::global;
use proxy_common::verdict::{Program, Reason};
use proxy_common::vip::{
    FILTER_SERVED, FILTER_VIP, VIP_CLUSTER_IP, VIP_EXTERNAL, VIP_INSIDE_ONLY, VIP_ON_NODE, VipKey,
};
use proxy_common::way::FOU_PORT;

use super::access::not_ours;
use super::packet::{Family, Packet, Parsed, Peek, family, has_ports, parse, peek, protocol};
use super::step::{End, Verdict, Walk};
use super::text::{at, socket};
use super::walker::{Part, Past, Walker};
use crate::dataplane::ebpf::dry_run::{Concern, Keys};
use crate::dataplane::ebpf::read::{Lookups, Tables};

/// Walks a frame with an Ethernet header, which comes in by a device, through the pinned tables.
#[must_use]
pub fn walk(lookups: &Lookups<'_>, program: Program, device: u32, frame: &[u8], past: Past) -> Walk {
    match family(frame) {
        Some(Family::V4) => walk_family(&lookups.v4(), program, device, frame, past),
        Some(Family::V6) => walk_family(&lookups.v6(), program, device, frame, past),
        None => Walk { steps: Vec::new(), end: not_ours("it is no IP packet"), concern: Concern::default() },
    }
}

/// Walks a frame of the tables' family.
pub fn walk_family<A: Address, T: Tables<A>>(
    tables: &T,
    program: Program,
    device: u32,
    frame: &[u8],
    past: Past,
) -> Walk
where
    Concern: From<Keys<A>>,
{
    let mut walker = Walker::new(tables, program, device, past);
    let end = walker.frame(frame).unwrap_or_else(|end| end);
    Walk { steps: walker.steps, end, concern: walker.keys.into() }
}

impl<A: Address, T: Tables<A>> Walker<'_, A, T> {
    fn frame(&mut self, frame: &[u8]) -> Part<End> {
        if !matches!(self.program, Program::XdpIngress | Program::TcIngress | Program::TcPodIn) {
            return Err(End::NotWalked("a packet that leaves"));
        }
        let Some(peek) = peek::<A>(frame) else { return Err(not_ours("it has no whole IP header")) };
        self.first_look(&peek)?;
        let is_v4 = A::WORDS == 1;
        let icmp = if is_v4 { protocol::ICMP } else { protocol::ICMP6 };
        let is_tunnel = matches!(peek.protocol, protocol::IPV4 | protocol::IPV6);
        if is_tunnel && !self.is_of_pod() && self.tables.constants().takes_ipip() {
            return Err(End::NotWalked("a tunnel packet"));
        }
        if peek.protocol == icmp {
            return Err(End::NotWalked("ICMP"));
        }
        match parse::<A>(frame, self.program) {
            Parsed::Packet(packet) if self.is_of_pod() => self.pods(&packet),
            Parsed::Packet(packet) => self.uplinks(&packet),
            Parsed::Untouched(why) => Err(not_ours(why)),
            Parsed::Fragment => Err(End::NotWalked("a fragment")),
        }
    }

    /// Ends the walk if the programs have nothing to do with the destination.
    fn first_look(&mut self, peek: &Peek<A>) -> Part<()> {
        let answer = self.filter(&peek.destination) & (FILTER_SERVED | FILTER_VIP);
        let is_for_us = if self.is_of_pod() {
            self.may_be_request(peek, answer)
        } else {
            self.may_be_for_us(peek, answer)
        };
        let address = peek.destination.to_ip();
        if !is_for_us {
            let why = if answer & FILTER_SERVED != 0 {
                format!("{address} is this node's, and no Service has the port there")
            } else {
                format!("{address} is neither a Service's address nor this node's")
            };
            self.note("vip", why.clone(), "ADDRESS_FILTER, NODE_PORTS");
            return Err(not_ours(why));
        }
        let vip = self.tables.vip(&VipKey { address: proxy_common::addr::mapped(address) });
        let is_own = self.is_own(&peek.destination);
        let text = match vip {
            Some(bits) if bits & VIP_ON_NODE != 0 => "is a Service's address and a node's",
            Some(bits) if bits & VIP_EXTERNAL != 0 => "is a Service's external or load balancer address",
            Some(bits) if bits & VIP_INSIDE_ONLY != 0 => "is a ClusterIP, for clients inside the cluster",
            Some(bits) if bits & VIP_CLUSTER_IP != 0 => "is a ClusterIP",
            _ if is_own => "is an address of this node",
            _ => "may be a Service's address",
        };
        self.note("vip", format!("{address} {text}"), "VIPS, PEERS, ADDRESS_FILTER");
        Ok(())
    }

    fn may_be_for_us(&self, peek: &Peek<A>, answer: u64) -> bool {
        let constants = self.tables.constants();
        let encapsulated = if A::WORDS == 1 { protocol::IPV4 } else { protocol::IPV6 };
        let is_tunnel = constants.takes_ipip() && peek.protocol == encapsulated;
        let is_for_us = match answer {
            FILTER_SERVED if !is_tunnel => peek.port.is_none_or(|port| {
                self.may_be_frontend_of_node(port)
                    || constants.takes_fou() && peek.protocol == protocol::UDP && port == FOU_PORT.to_be()
            }),
            answer => answer != 0 || is_tunnel,
        };
        is_for_us || self.is_for_outer_source(&peek.destination)
    }

    fn may_be_request(&mut self, peek: &Peek<A>, answer: u64) -> bool {
        let Some(port) = peek.port else { return true };
        let is_request = match answer {
            0 => false,
            FILTER_SERVED => self.may_be_frontend_of_node(port),
            _ => true,
        };
        self.keys.ports.push(port);
        is_request || peek.protocol == protocol::UDP && self.tables.has_served(port)
    }

    fn may_be_frontend_of_node(&self, port: u16) -> bool {
        self.may_be_node_port(port) || self.tables.constants().is_snat_port(port)
    }

    /// Whether an address is in the prefix of outer sources that all nodes share.
    fn is_for_outer_source(&self, address: &A) -> bool {
        let constants = self.tables.constants();
        let has_any = [global::OUTER_MASK4, global::OUTER_MASK6].iter().any(|name| constants.word(name) != 0);
        let (prefix, mask) = if A::WORDS == 1 {
            (global::OUTER_PREFIX4, global::OUTER_MASK4)
        } else {
            (global::OUTER_PREFIX6, global::OUTER_MASK6)
        };
        let (prefix, mask) = (constants.words(prefix), constants.words(mask));
        let is_set = mask.iter().any(|word| *word != 0);
        let words = address.words().iter().zip(prefix.iter().zip(mask));
        has_any && is_set && words.into_iter().all(|(word, (prefix, mask))| word & mask == *prefix)
    }

    /// A packet that came in over an uplink.
    fn uplinks(&mut self, packet: &Packet<A>) -> Part<End> {
        let key = &packet.key;
        if !has_ports(key.protocol) {
            return Err(self.no_protocol(packet));
        }
        let is_fou = self.tables.constants().takes_fou()
            && key.destination_port == FOU_PORT.to_be()
            && key.protocol == protocol::UDP
            && self.is_own(&key.destination);
        if is_fou {
            return Err(End::NotWalked("a tunnel packet"));
        }
        if self.tables.constants().is_snat_port(key.destination_port) {
            self.snat_reply(packet)?;
        }
        let frontend = self.admitted(packet)?;
        let choice = self.choose(packet, &frontend)?;
        Ok(self.send(packet, &frontend, &choice))
    }

    /// Ends the walk of a reply to a client whose address is translated.
    fn snat_reply(&mut self, packet: &Packet<A>) -> Part<()> {
        let Some(found) = self.lookup_translated(&packet.key) else { return Ok(()) };
        self.note_flow(Some(&found));
        let flow = &found.flow;
        let (frontend, client) =
            (at(flow.source, flow.source_port), at(flow.destination, flow.destination_port));
        if self.is_of_pod() {
            if flow.destination != packet.key.source {
                return Err(not_ours("another client has this address and port"));
            }
            self.note(
                "path",
                format!("the pod's answer to itself: returned to it from {frontend}"),
                "FLOWS*",
            );
            return Err(Verdict::new(Reason::Reply, "").into());
        }
        if packet.hop_limit <= 1 {
            return Err(Verdict::new(Reason::HopLimit, "the packet's hop limit is used up").into());
        }
        let text = format!(
            "a backend's reply: goes to the client {client} as {frontend}; the kernel is asked for the route"
        );
        self.note("path", text, "FLOWS*");
        let mut or = vec![if self.is_xdp() { Reason::HandedToTc } else { Reason::NoWay }, Reason::TooBig];
        or.extend((packet.may_be_cut && !self.is_xdp()).then_some(Reason::Fragmented));
        let backend = Some(socket(packet.key.source, packet.key.source_port));
        Err(Verdict { or, backend, ..Verdict::new(Reason::ReplySnat, "") }.into())
    }

    /// A packet that a pod of this node sends.
    fn pods(&mut self, packet: &Packet<A>) -> Part<End> {
        if !has_ports(packet.key.protocol) {
            return Err(self.no_protocol(packet));
        }
        if self.tables.constants().is_snat_port(packet.key.destination_port) {
            self.snat_reply(packet)?;
        }
        let frontend = self.admitted(packet)?;
        let found = self.lookup(packet, &frontend);
        self.note_flow(found.as_ref());
        let kept = found.and_then(|found| {
            let backend = self.backend(found.backend())?;
            packet.role().keeps(backend.flags).then_some((found, backend))
        });
        let Some((found, backend)) = kept else {
            let (backend, _) = self.choose_anew(packet, &frontend)?;
            if backend.address == packet.key.source {
                return Ok(self.hairpin(packet, &backend, None));
            }
            self.create(packet, (backend.address, backend.port))?;
            return Ok(self.local(packet, &backend, Reason::ServedPod));
        };
        if found.flow.is_translated() {
            if backend.address != packet.key.source {
                let why = "a connection of a client outside has the same address and port";
                return Err(Verdict::new(Reason::ReplyKeyInUse, why).into());
            }
            return Ok(self.hairpin(packet, &backend, Some(&found.flow)));
        }
        Ok(self.local(packet, &backend, Reason::ServedPod))
    }
}
