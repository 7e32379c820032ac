//! The path of a packet to its backend.

use proxy_common::Address;
use proxy_common::addr::unmapped;
use proxy_common::backend::Backend;
use proxy_common::config::global;
use proxy_common::flow::{FLOW_ENCAPSULATE, Flow};
use proxy_common::frontend::Frontend;
use proxy_common::hop::{HOP_NEIGHBOUR, HOP_SECONDS, HOP_XDP, Hop};
use proxy_common::selection::BackendRef;
use proxy_common::verdict::Reason;
use proxy_common::way::{Narrowing, WAY_IPV4, WAY_RESOLVED, WAY_VALID, WAY_XDP, Way};

use super::choose::{Choice, Connection};
use super::packet::Packet;
use super::step::{End, Verdict};
use super::text::{at, socket};
use super::walker::{Part, Walker};
use crate::dataplane::ebpf::read::Tables;

const UDP_HEADER: u32 = 8;
/// The least MTU of a device that carries IPv4. A packet of this size is cut nowhere.
const LEAST_MTU: u32 = 68;

impl<A: Address, T: Tables<A>> Walker<'_, A, T> {
    /// Ends the walk of a packet with its backend.
    pub fn send(&mut self, packet: &Packet<A>, frontend: &Frontend, choice: &Choice<A>) -> End {
        self.sent(packet, frontend, choice).unwrap_or_else(|end| end)
    }

    fn sent(&mut self, packet: &Packet<A>, frontend: &Frontend, choice: &Choice<A>) -> Part<End> {
        let backend = &choice.backend;
        if let Connection::Known(found) = &choice.connection
            && found.flow.is_translated()
        {
            let source = (found.flow.source, found.flow.source_port);
            let to = (found.flow.destination, found.flow.destination_port);
            return Ok(self.by_snat(packet, choice.reference, to, Some(source)));
        }
        let is_dsr = frontend.returns_directly(packet.role());
        let may_go_to_pod = match &choice.connection {
            Connection::Known(found) => found.flow.flags & FLOW_ENCAPSULATE != 0,
            Connection::BySlot => true,
            Connection::New => is_dsr,
        };
        if may_go_to_pod && self.pod_takes(backend, packet) {
            return Ok(self.by_pod(packet, choice.reference, backend));
        }
        if backend.is_local() {
            if !matches!(choice.connection, Connection::Known(_)) {
                self.create(packet, (backend.address, backend.port))?;
            }
            return Ok(self.local(packet, backend, Reason::ServedLocal));
        }
        if matches!(choice.connection, Connection::New) && !is_dsr {
            return Ok(self.by_snat(packet, choice.reference, (backend.address, backend.port), None));
        }
        self.by_dsr(packet, backend)
    }

    /// Ends the walk at a backend that the stack of this node reaches.
    pub fn local(&mut self, packet: &Packet<A>, backend: &Backend<A>, reason: Reason) -> End {
        let mark = self.constant(global::MARK_VALUE) & self.constant(global::MARK_MASK);
        let text = match reason {
            Reason::ServedPod => "destination translated, passed to the stack, which routes it",
            _ => "local: destination translated, passed up; the client's address stays",
        };
        self.note("path", format!("{text}; mark {mark:#x}"), "");
        let from = if reason == Reason::ServedPod { "the pod's device" } else { "this node" };
        self.note_reply(packet, backend, from);
        served(reason, backend)
    }

    fn note_reply(&mut self, packet: &Packet<A>, backend: &Backend<A>, from: &str) {
        let (key, pod) = (&packet.key, at(backend.address, backend.port));
        let frontend = at(key.destination, key.destination_port);
        self.note("reply", format!("{pod} answers; it leaves {from} as {frontend}"), "");
    }

    /// Ends the walk of a packet to a backend on another node, from an address of this one.
    fn by_snat(
        &mut self,
        packet: &Packet<A>,
        reference: BackendRef,
        to: (A, u16),
        source: Option<(A, u16)>,
    ) -> End {
        self.translated(packet, reference, to, source).map_or_else(|end| end, End::from)
    }

    fn translated(
        &mut self,
        packet: &Packet<A>,
        reference: BackendRef,
        to: (A, u16),
        source: Option<(A, u16)>,
    ) -> Part<Verdict> {
        let (hop, is_fresh) = self.hop(reference);
        let mut verdict = Verdict { backend: Some(socket(to.0, to.1)), ..Verdict::new(Reason::SentSnat, "") };
        let mut by = "the kernel is asked for the route".to_owned();
        if let Some(hop) = hop.filter(|_| is_fresh) {
            self.check_hop(packet, &hop)?;
            by = format!("device {}, MTU {}", hop.device, hop.mtu);
        } else {
            verdict.or = vec![self.no_way(), Reason::TooBig, Reason::SnatPorts];
            verdict.or.extend((packet.hop_limit <= 1).then_some(Reason::HopLimit));
            verdict.or.extend(self.may_be_cut(packet).then_some(Reason::Fragmented));
        }
        let own = hop.map(|hop| hop.source);
        let from = match (source, own) {
            (Some((address, port)), _) => at(address, port),
            (None, Some(own)) => {
                let port = self.snat_port(packet, to, own).map_err(|end| match end {
                    // The route may be gone, or have another source, whose ports are free.
                    End::Verdict(end) if !is_fresh => {
                        let or = verdict.or.iter().copied().chain([verdict.reason]).collect();
                        End::Verdict(Verdict { or, ..end })
                    }
                    end => end,
                });
                port?.map_or_else(|| own.to_ip().to_string(), |port| at(own, port))
            }
            (None, None) => "an address that the route prefers".to_owned(),
        };
        self.note("path", format!("snat: from {from} to {}; {by}", at(to.0, to.1)), "HOPS*, FLOWS*");
        let frontend = at(packet.key.destination, packet.key.destination_port);
        self.note("reply", format!("comes back to this node, and leaves it as {frontend}"), "");
        Ok(verdict)
    }

    /// Whether TC may cut a packet if a route says so.
    fn may_be_cut(&self, packet: &Packet<A>) -> bool {
        packet.may_be_cut && !self.is_xdp() && packet.length > LEAST_MTU
    }

    /// Returns the hop to a backend, and whether the programs still believe it.
    fn hop(&mut self, reference: BackendRef) -> (Option<Hop<A>>, bool) {
        self.keys.hops.push(reference.id());
        let hop = self.tables.hop(reference.id()).filter(|hop| hop.backend == reference.0);
        let is_fresh = hop.is_some_and(|hop| self.now.saturating_sub(hop.asked) < HOP_SECONDS);
        (hop, is_fresh)
    }

    fn check_hop(&mut self, packet: &Packet<A>, hop: &Hop<A>) -> Part<()> {
        let usable = HOP_NEIGHBOUR | if hop.device == self.device { 0 } else { HOP_XDP };
        if self.is_xdp() && hop.flags & usable != usable {
            return Err(handed_to_tc("the next hop is not resolved, or its device has no XDP"));
        }
        check_hops(packet)?;
        self.check_size(packet, packet.length, 0, hop.mtu.into())
    }

    /// Ends the walk of a packet to a pod that takes the outer header off itself.
    fn by_pod(&mut self, packet: &Packet<A>, reference: BackendRef, backend: &Backend<A>) -> End {
        if let Err(end) = check_hops(packet) {
            return end;
        }
        let outer = super::packet::header_bytes::<A>() as u32 + self.between();
        let text = format!("dsr: encapsulated for the pod {}", backend.address.to_ip());
        self.note("path", text, "HOPS*");
        let (hop, is_fresh) = self.hop(reference);
        let mut verdict = served_by(Reason::SentDsr, backend);
        match hop.filter(|_| is_fresh && !backend.is_local()) {
            Some(hop) => {
                let usable = HOP_NEIGHBOUR | if hop.device == self.device { 0 } else { HOP_XDP };
                if self.is_xdp() && hop.flags & usable != usable {
                    return handed_to_tc("the next hop is not resolved, or its device has no XDP");
                }
                if let Err(end) = self.check_size(packet, packet.length + outer, outer, hop.mtu.into()) {
                    return end;
                }
            }
            None if backend.is_local() && self.is_xdp() => return handed_to_tc("no device of pods has XDP"),
            None => {
                verdict.or = vec![self.no_way(), Reason::TooBig];
                // The outer headers take more room than the least MTU leaves to some packets.
                verdict.or.extend((packet.may_be_cut && !self.is_xdp()).then_some(Reason::Fragmented));
            }
        }
        self.note("reply", "the pod answers the client itself", "");
        verdict.into()
    }

    /// Ends the walk of a packet that goes encapsulated to its backend's node.
    fn by_dsr(&mut self, packet: &Packet<A>, backend: &Backend<A>) -> Part<End> {
        self.keys.ways.push(backend.way);
        let way = self.tables.way(backend.way).filter(|way| way.flags & WAY_VALID != 0 && way.mtu != 0);
        let Some(way) = way else {
            let why = format!("there is no route to the node of {}", at(backend.address, backend.port));
            return Err(Verdict::new(Reason::NoWay, why).into());
        };
        check_hops(packet)?;
        let outer = if way.flags & WAY_IPV4 != 0 { 20 } else { 40 } + self.between();
        self.check_size(packet, packet.length + outer, outer, self.mtu(backend.way, &way).into())?;
        let encapsulation = if self.between() == 0 { "IPIP" } else { "FoU" };
        let node = unmapped(way.target);
        let text = format!("dsr: encapsulated ({encapsulation}) for node {node}, {outer} bytes more");
        self.note("path", text, "WAYS");
        let mut verdict = served_by(Reason::SentDsr, backend);
        let usable = WAY_RESOLVED | if self.is_xdp() { WAY_XDP } else { 0 };
        if way.flags & usable != usable || !self.is_agent_alive() {
            verdict.or = vec![self.no_way()];
        }
        self.note_reply(packet, backend, "the backend's node, straight to the client,");
        Ok(verdict.into())
    }

    /// Returns the MTU of a way after a router's message about it has ended.
    fn mtu(&self, id: u32, way: &Way) -> u16 {
        let narrowing = Narrowing(self.tables.narrowed(id));
        let has_ended = !narrowing.is_none() && narrowing.until() <= self.now;
        if has_ended && way.mtu == narrowing.mtu() { narrowing.former() } else { way.mtu }
    }

    /// Ends the walk of a packet that does not fit: TC cuts it, or its sender is told.
    fn check_size(&self, packet: &Packet<A>, size: u32, outer: u32, mtu: u32) -> Part<()> {
        if size <= mtu {
            return Ok(());
        }
        let why = if outer == 0 {
            format!("{size} bytes do not fit the MTU of {mtu}")
        } else {
            format!("{size} bytes with the outer header do not fit the MTU of {mtu}")
        };
        if !packet.may_be_cut {
            return Err(Verdict::new(Reason::TooBig, why).into());
        }
        if self.is_xdp() {
            return Err(handed_to_tc(&format!("{why}; XDP can't cut it")));
        }
        Err(if packet.is_plain && can_be_cut(packet, mtu.saturating_sub(outer)) {
            Verdict::new(Reason::Fragmented, why).into()
        } else {
            Verdict::new(Reason::TooBig, format!("{why}; it can't be cut")).into()
        })
    }

    /// Bytes between the outer IP header and the inner one.
    fn between(&self) -> u32 {
        if self.constant(global::DSR_FOU) != 0 { UDP_HEADER } else { 0 }
    }

    /// The reason without a route. TC asks again for XDP.
    fn no_way(&self) -> Reason {
        if self.is_xdp() { Reason::HandedToTc } else { Reason::NoWay }
    }

    /// Ends the walk of a pod's packet to itself.
    pub fn hairpin(&mut self, packet: &Packet<A>, backend: &Backend<A>, known: Option<&Flow<A>>) -> End {
        let frontend = packet.key.destination;
        let to = (backend.address, backend.port);
        let port = match known {
            Some(flow) => Ok(Some(flow.source_port)),
            None => self.snat_port(packet, to, frontend),
        };
        match port {
            Ok(port) => {
                let from = port.map_or_else(|| frontend.to_ip().to_string(), |port| at(frontend, port));
                let text =
                    format!("the pod reaches itself: returned to it from {from} to {}", at(to.0, to.1));
                self.note("path", text, "FLOWS*");
                served(Reason::Hairpin, backend)
            }
            Err(end) => end,
        }
    }
}

fn check_hops<A>(packet: &Packet<A>) -> Part<()> {
    if packet.hop_limit > 1 {
        return Ok(());
    }
    Err(Verdict::new(Reason::HopLimit, "the packet's hop limit is used up").into())
}

/// Whether TC can cut a packet so that a part fits: in units of eight bytes, behind a header of 20.
fn can_be_cut<A>(packet: &Packet<A>, fits: u32) -> bool {
    /// The most bytes that the second part takes over.
    const MOST_TAKEN: u32 = 8192;
    let payload = packet.length.saturating_sub(20);
    let fitting = fits.saturating_sub(20) & !7;
    let left_over = payload.saturating_sub(MOST_TAKEN).next_multiple_of(8);
    fitting != 0 && fitting.max(left_over) < payload
}

fn served<A: Address>(reason: Reason, backend: &Backend<A>) -> End {
    served_by(reason, backend).into()
}

fn served_by<A: Address>(reason: Reason, backend: &Backend<A>) -> Verdict {
    Verdict { backend: Some(socket(backend.address, backend.port)), ..Verdict::new(reason, "") }
}

fn handed_to_tc(why: &str) -> End {
    Verdict::new(Reason::HandedToTc, why).into()
}
