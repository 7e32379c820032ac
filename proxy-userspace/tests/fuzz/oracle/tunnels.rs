//! Packets in tunnels to this node or, with IPVS, to a pod.

use std::net::SocketAddr;

use millrace_lab::program::Verdict;
use proxy_common::verdict::Reason;

use super::{Done, Oracle, Reasons, local_backends, require};
use crate::packet::Packet;
use crate::translated::is_translated;
use crate::tunnel::is_sent_on;
use crate::world::{Frontend, MTU, NODES, address};

impl Oracle<'_> {
    pub(super) fn judge_tunnel(
        &self,
        outer: &Packet,
        inner: &Packet,
        done: &Done<'_>,
    ) -> Result<Reasons, String> {
        let header = inner.network - outer.network;
        let frontend =
            self.world.frontend(inner.destination, inner.protocol).filter(|frontend| frontend.is_dsr);
        if let Some(pod) = frontend.and_then(|frontend| addressee(frontend, outer, inner)) {
            return self.judge_addressed(pod, (inner, header), done);
        }
        let here = outer.destination.ip() == address(outer.is_v6(), NODES, 1);
        let Some(frontend) =
            frontend.filter(|_| inner.has_ports() && here && inner.length + header <= outer.length)
        else {
            return self.untouched(done);
        };
        self.or_untouched(inner, done, || {
            if !is_from_peer(outer) {
                return self.dropped(done, outer, &[Reason::NotPeer]);
            }
            match self.verdict(done) {
                Verdict::Pass => {
                    self.is_handed_up(done)?;
                    is_translated(done, inner, header, local_backends(frontend), true)?;
                    Ok(&[Reason::ServedDsr])
                }
                Verdict::Drop if inner.length + header > MTU => {
                    Ok(&[Reason::NoBackendHere, Reason::ReplyKeyInUse, Reason::TooBig])
                }
                Verdict::Drop => Ok(&[Reason::NoBackendHere, Reason::ReplyKeyInUse]),
                Verdict::Transmit | Verdict::Redirect => {
                    let sent = frontend.service.endpoints.iter().any(|to| is_sent_on(done, outer, inner, to));
                    require(sent, "sent on, but not once, or not to a backend of the service")?;
                    Ok(&[Reason::SentOnward])
                }
                Verdict::Fault => Err("no program may return this".into()),
            }
        })
    }

    /// Judges a packet that IPVS on another node addressed to a pod. It is for that pod, unless its
    /// connection is not this node's.
    fn judge_addressed(
        &self,
        pod: SocketAddr,
        (inner, header): (&Packet, usize),
        done: &Done<'_>,
    ) -> Result<Reasons, String> {
        match self.verdict(done) {
            Verdict::Pass if self.untouched(done).is_ok() => Ok(&[Reason::NotOurs]),
            Verdict::Pass => {
                self.is_handed_up(done)?;
                is_translated(done, inner, header, std::iter::once(pod), true)?;
                Ok(&[Reason::ServedDsr])
            }
            Verdict::Drop => Ok(&[Reason::ReplyKeyInUse]),
            Verdict::Transmit | Verdict::Redirect | Verdict::Fault => {
                Err("addressed to a pod, and sent on".into())
            }
        }
    }
}

/// Returns the backend of this node that a peer's outer header names instead of the node. The
/// encapsulation is IP, in the packet's own family.
fn addressee(frontend: &Frontend, outer: &Packet, inner: &Packet) -> Option<SocketAddr> {
    let is_possible = !outer.is_tunnel() && outer.is_v6() == inner.is_v6() && is_from_peer(outer);
    let fits = inner.has_ports() && inner.length + (inner.network - outer.network) <= outer.length;
    local_backends(frontend).find(|pod| is_possible && fits && pod.ip() == outer.destination.ip())
}

fn is_from_peer(outer: &Packet) -> bool {
    (2..=4).any(|node| outer.source.ip() == address(outer.is_v6(), NODES, node))
}
