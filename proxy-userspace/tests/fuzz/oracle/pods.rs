//! Packets of pods, which reach every backend of a Service at its own address, even the pod itself.

use millrace_lab::program::{Hook, Verdict};
use proxy_common::verdict::Reason;

use super::{Done, Oracle, Reasons, require};
use crate::answers;
use crate::packet::Packet;
use crate::translated::{is_answered, is_given_back, is_translated, turned_macs};
use crate::world::Frontend;

impl Oracle<'_> {
    pub(super) fn is_of_pod(&self) -> bool {
        self.hook == Hook::TcPodIn
    }

    /// Judges a pod's packet to a frontend.
    pub(super) fn judge_pod(
        &self,
        frontend: &Frontend,
        packet: &Packet,
        done: &Done<'_>,
    ) -> Result<Reasons, String> {
        let (own, others): (Vec<_>, Vec<_>) = frontend
            .service
            .cluster_endpoints
            .iter()
            .map(|endpoint| endpoint.at)
            .partition(|at| at.ip() == packet.source.ip());
        if own.is_empty() && others.is_empty() {
            return self.dropped(done, packet, &[Reason::NoEndpoint]);
        }
        match self.verdict(done) {
            Verdict::Pass => {
                self.is_handed_up(done)?;
                is_translated(done, packet, 0, others.into_iter(), true)?;
                Ok(&[Reason::ServedPod])
            }
            Verdict::Drop if own.is_empty() => Ok(&[Reason::ReplyKeyInUse]),
            Verdict::Drop => Ok(&[Reason::ReplyKeyInUse, Reason::SnatPorts]),
            Verdict::Redirect => {
                let is_own = own.into_iter().any(|at| is_given_back(done, packet, at));
                require(is_own, "given back, but not to the pod's own server")?;
                Ok(&[Reason::Hairpin])
            }
            Verdict::Transmit | Verdict::Fault => Err("no program may return this".into()),
        }
    }

    /// Returns whether a pod's answer to itself came back to it from a frontend.
    pub(super) fn is_own_answer(&self, packet: &Packet, done: &Done<'_>) -> bool {
        let of_address = |frontend: &&Frontend| frontend.at.ip() == packet.destination.ip();
        let mut frontends = self.world.frontends.iter().filter(of_address);
        self.is_of_pod()
            && self.verdict(done) == Verdict::Redirect
            && frontends.any(|frontend| is_answered(done, packet, frontend.at))
    }

    /// Judges a pod's ICMP error, which is for the backend of its connection or for the pod itself.
    pub(super) fn judge_error_of_pod(&self, packet: &Packet, done: &Done<'_>) -> Result<Reasons, String> {
        match self.verdict(done) {
            Verdict::Pass => {
                self.is_handed_up(done)?;
                answers::check_relayed(done, packet)?;
            }
            Verdict::Redirect => {
                let mut turned = done.before.to_vec();
                turned[..12].copy_from_slice(turned_macs(done).as_flattened());
                answers::check_relayed(&Done { before: &turned, ..*done }, packet)?;
            }
            Verdict::Drop => return Ok(&[Reason::IcmpUnknown]),
            Verdict::Transmit | Verdict::Fault => return Err("no program may return this".into()),
        }
        Ok(&[Reason::IcmpError])
    }
}
