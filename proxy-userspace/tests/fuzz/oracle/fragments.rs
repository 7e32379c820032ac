//! Fragments.

use std::net::SocketAddr;

use millrace_lab::program::{Hook, Verdict};
use proxy_common::verdict::Reason;

use super::{Done, Oracle, Reasons, local_backends, require, rooms};
use crate::cut;
use crate::fragment::{DROPS, Fragment, XDP_DROPS, is_later_forwarded, is_later_translated, is_later_turned};
use crate::packet::Packet;
use crate::tunnel::is_encapsulated;
use crate::world::{Connection, NODES, address, vip};

impl Oracle<'_> {
    /// The first fragment is judged as a packet, or as one of the others.
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

    /// A fragment without ports, for a service's address, that was not left alone.
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
}
