//! Fragments.

use std::net::SocketAddr;

use millrace_lab::program::{Hook, Verdict};
use proxy_common::verdict::Reason;

use super::{Done, Oracle, Reasons, local_backends, require, rooms};
use crate::cut;
use crate::fragment::{DROPS, Fragment, XDP_DROPS, is_later_forwarded, is_later_translated, is_later_turned};
use crate::packet::Packet;
use crate::translated::is_translated;
use crate::tunnel::{is_encapsulated, is_sent_on};
use crate::world::{Connection, Frontend, NODES, address, vip};

impl Oracle<'_> {
    /// Judges a fragment. The first one is judged as a packet, or as one of the others.
    pub(super) fn judge_fragment(&self, fragment: &Fragment, done: &Done<'_>) -> Result<Reasons, String> {
        let packet = &fragment.packet;
        if self.untouched(done).is_ok() {
            let is_own = packet.destination.ip() == address(packet.is_v6(), NODES, 1);
            let may_be_held = self.hook == Hook::XdpIngress || is_own && !fragment.has_header;
            return Ok(if may_be_held { self.left_alone() } else { &[Reason::NotOurs] });
        }
        if self.is_way_out() {
            return if fragment.has_header {
                self.judge_reply(packet, done)
            } else {
                let of_it = |one: &&Connection| {
                    (one.pod.ip(), one.client.ip()) == (packet.source.ip(), packet.destination.ip())
                };
                let vips = self.world.connections.iter().filter(of_it).map(|one| one.vip);
                require(is_later_translated(done, packet, vips, false), "no fragment of a reply")?;
                Ok(&[Reason::Reply])
            };
        }
        require(vip(packet.destination.ip()) != 0, "a fragment of others was not left alone")?;
        if !fragment.has_header {
            return self.judge_later(packet, done);
        }
        match self.world.frontend(packet.destination, packet.protocol) {
            Some(frontend) => self.judge_client(frontend, packet, done),
            None if self.is_own_answer(packet, done) => Ok(&[Reason::Reply]),
            None => self.dropped(done, packet, &[Reason::UnknownPort]),
        }
    }

    /// Judges a changed fragment without ports, for a Service's address.
    fn judge_later(&self, packet: &Packet, done: &Done<'_>) -> Result<Reasons, String> {
        let frontends =
            || self.world.frontends.iter().filter(|frontend| frontend.at.ip() == packet.destination.ip());
        let remote = |is_dsr: bool| {
            let frontends = frontends().filter(move |frontend| frontend.is_dsr == is_dsr);
            frontends.flat_map(|frontend| &frontend.service.endpoints).filter(|endpoint| endpoint.way != 0)
        };
        match self.verdict(done) {
            Verdict::Pass => {
                self.is_handed_up(done)?;
                let (backends, reasons): (Vec<SocketAddr>, Reasons) = if self.is_of_pod() {
                    let all = frontends().flat_map(|frontend| &frontend.service.cluster_endpoints);
                    (all.map(|endpoint| endpoint.at).collect(), &[Reason::ServedPod])
                } else {
                    (frontends().flat_map(local_backends).collect(), &[Reason::ServedLocal])
                };
                let is_translated = is_later_translated(done, packet, backends.into_iter(), true);
                require(is_translated, "more was changed than an address")?;
                Ok(reasons)
            }
            Verdict::Drop if self.hook == Hook::XdpIngress => Ok(XDP_DROPS),
            Verdict::Drop => Ok(DROPS),
            Verdict::Redirect if self.is_of_pod() => {
                require(is_later_turned(done, packet), "a pod's fragment was sent, but not back to it")?;
                Ok(&[Reason::Hairpin, Reason::Reply])
            }
            Verdict::Redirect
                if frontends()
                    .any(|frontend| rooms(frontend).any(|room| cut::is_rest(done, packet, room))) =>
            {
                Ok(&[Reason::Fragmented])
            }
            Verdict::Transmit | Verdict::Redirect => {
                if remote(true).any(|endpoint| is_encapsulated(done, packet, endpoint)) {
                    return Ok(&[Reason::SentDsr]);
                }
                let is_sent = remote(false).any(|endpoint| is_later_forwarded(done, packet, endpoint.at));
                require(is_sent, "a fragment was sent, but to no backend")?;
                Ok(&[Reason::SentSnat])
            }
            Verdict::Fault => Err("no program may return this".into()),
        }
    }

    /// Judges a fragment inside a tunnel to this node, or returns `None` for other frames. Any such
    /// fragment may be left alone, because its first one may not have come.
    pub(super) fn judge_tunnelled(&self, done: &Done<'_>) -> Option<Result<Reasons, String>> {
        let here = |outer: &Packet| outer.destination.ip() == address(outer.is_v6(), NODES, 1);
        let outer = Packet::outermost(done.before).filter(here)?;
        let inside = outer.payload + if outer.is_tunnel() { 8 } else { 0 };
        let ether_type = match done.before.get(inside)? >> 4 {
            4 => [0x08, 0x00],
            6 => [0x86, 0xdd],
            _ => return None,
        };
        let stripped = [&done.before[..12], &ether_type, &done.before[inside..]].concat();
        let fragment = Fragment::read(&stripped)?;
        Some(self.judge_inside(&outer, &fragment, inside, &Done { before: &stripped, ..*done }, done))
    }

    /// Judges a fragment without `stripped` bytes of outer headers.
    fn judge_inside(
        &self,
        outer: &Packet,
        fragment: &Fragment,
        inside: usize,
        stripped: &Done<'_>,
        done: &Done<'_>,
    ) -> Result<Reasons, String> {
        if self.untouched(done).is_ok() {
            return Ok(self.left_alone());
        }
        let packet = &fragment.packet;
        require(!self.is_way_out() && !self.is_of_pod(), "others' tunnels are their own")?;
        require(outer.is_plain, "no node sends such a tunnel, but not left alone")?;
        let is_whose = |frontend: &&Frontend| {
            let of_port = (frontend.at, frontend.protocol) == (packet.destination, packet.protocol);
            frontend.is_dsr
                && if fragment.has_header { of_port } else { frontend.at.ip() == packet.destination.ip() }
        };
        let frontends: Vec<&Frontend> = self.world.frontends.iter().filter(is_whose).collect();
        require(!frontends.is_empty(), "for no service with Direct Server Return, but not left alone")?;
        let is_of_node = (2..=4).any(|node| outer.source.ip() == address(outer.is_v6(), NODES, node));
        if !is_of_node {
            require(self.verdict(done) == Verdict::Drop, "from no node, but not dropped")?;
            return Ok(&[Reason::NotPeer]);
        }
        match self.verdict(done) {
            Verdict::Pass => {
                self.is_handed_up(done)?;
                let backends = frontends.into_iter().flat_map(local_backends);
                if fragment.has_header {
                    is_translated(stripped, packet, 0, backends, true)?;
                } else {
                    let is_right = is_later_translated(stripped, packet, backends, true);
                    require(is_right, "more was changed than an address")?;
                }
                Ok(&[Reason::ServedDsr])
            }
            Verdict::Drop => Ok(&[Reason::NoBackendHere, Reason::ReplyKeyInUse, Reason::TooBig]),
            Verdict::Transmit | Verdict::Redirect => {
                let mut backends = frontends.into_iter().flat_map(|frontend| &frontend.service.endpoints);
                let inner = Packet { network: inside, ..*packet };
                let is_sent = backends.any(|to| is_sent_on(done, outer, &inner, to));
                require(is_sent, "sent on, but not once, or not to a backend of the service")?;
                Ok(&[Reason::SentOnward])
            }
            Verdict::Fault => Err("no program may return this".into()),
        }
    }
}
