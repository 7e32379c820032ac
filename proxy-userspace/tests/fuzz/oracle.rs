//! The allowed results of a frame, and the check of the actual one.

mod fragments;
mod pods;
mod tunnels;

use std::collections::HashMap;
use std::net::SocketAddr;

use millrace_lab::program::{Endpoint, Hook, RawRun, Verdict};
use proxy_common::config::{DEFAULT_MARK, HANDOVER_MAGIC};
use proxy_common::verdict::Reason;
use proxy_common::vip::VIP_CLUSTER_IP;

use crate::answers;
use crate::cut;
use crate::fragment::Fragment;
use crate::packet::{ETHERNET, Packet, needs_more_than_itself};
use crate::translated::{is_forwarded, is_translated};
use crate::tunnel::{is_encapsulated, is_outer_v6, outer_header};
use crate::world::{Frontend, MTU, NODES, World, address, vip};

/// The reasons of which one counts a frame.
pub type Reasons = &'static [Reason];

/// The frontend of each reply tuple.
type Replies = HashMap<(SocketAddr, SocketAddr, u8), SocketAddr>;

/// The judge of a program's effect on a frame.
pub struct Oracle<'a> {
    world: &'a World,
    hook: Hook,
    replies: Replies,
}

/// The effect of the program, besides the action itself.
#[derive(Clone, Copy)]
pub struct Done<'a> {
    /// The frame before the run.
    pub before: &'a [u8],
    /// The frame after the run.
    pub after: &'a [u8],
    run: &'a RawRun,
}

impl<'a> Oracle<'a> {
    /// Returns the oracle of a program in a world.
    pub fn new(world: &'a World, hook: Hook) -> Self {
        let replies =
            world.connections.iter().map(|one| ((one.pod, one.client, one.protocol), one.vip)).collect();
        Self { world, hook, replies }
    }

    /// Returns the reasons that may count the run, or an error.
    pub fn judge(&self, frame: &[u8], run: &RawRun) -> Result<Reasons, String> {
        let done = Done { before: frame, after: &run.frame, run };
        if let Some(fragment) = Fragment::read(frame) {
            return self.judge_fragment(&fragment, &done);
        }
        if needs_more_than_itself(frame) {
            return self.judge_tunnelled(&done).unwrap_or_else(|| self.judge_unknown(&done));
        }
        let Some(packet) = Packet::outermost(frame) else { return self.untouched(&done) };
        if answers::is_foreign_error(&done, &packet) {
            return self.judge_error(&packet, &done);
        }
        if self.is_way_out() {
            return self.judge_reply(&packet, &done);
        }
        let node = address(packet.is_v6(), NODES, 1);
        if !self.is_of_pod() && packet.is_tunnel() && packet.is_plain && packet.destination.ip() == node {
            return match packet.inside(frame) {
                Some(inner) => self.judge_tunnel(&packet, &inner, &done),
                None => self.untouched(&done),
            };
        }
        if packet.has_ports() {
            return match self.world.frontend(packet.destination, packet.protocol) {
                Some(frontend) if self.is_left_to_tc(frontend, &packet, &done) => Ok(if packet.is_plain {
                    &[Reason::HandedToTc]
                } else {
                    &[Reason::HandedToTc, Reason::NotOurs]
                }),
                Some(frontend) => {
                    self.or_untouched(&packet, &done, || self.judge_client(frontend, &packet, &done))
                }
                None if self.is_own_answer(&packet, &done) => Ok(&[Reason::Reply]),
                None if vip(packet.destination.ip()) == VIP_CLUSTER_IP => {
                    self.or_untouched(&packet, &done, || self.dropped(&done, &packet, &[Reason::UnknownPort]))
                }
                None => self.untouched(&done),
            };
        }
        if self.is_unknown_protocol(&packet) && vip(packet.destination.ip()) == VIP_CLUSTER_IP {
            let refused = || self.dropped(&done, &packet, &[Reason::UnknownProtocol]);
            return self.or_untouched(&packet, &done, refused);
        }
        if !packet.is_plain {
            return self.untouched(&done);
        }
        if answers::is_echo_request(&done, &packet) && vip(packet.destination.ip()) != 0 {
            require(self.verdict(&done).is_sent(), "an echo request without an echo")?;
            answers::check_echo(&done, &packet)?;
            return Ok(&[Reason::Echo]);
        }
        match packet.inside(frame) {
            Some(inner) if !self.is_of_pod() => self.judge_tunnel(&packet, &inner, &done),
            // Tunnels of pods do not concern the programs.
            Some(_) | None => self.untouched(&done),
        }
    }

    /// Returns the reasons for frames that are left alone. XDP passes early fragments, and the
    /// first fragment behind them, to TC. TC holds early fragments, and also passes those for this
    /// node's own address.
    fn left_alone(&self) -> Reasons {
        match self.hook {
            Hook::XdpIngress => &[Reason::NotOurs, Reason::HandedToTc],
            Hook::TcIngress | Hook::TcPodIn => &[Reason::NotOurs, Reason::FragmentHeld],
            Hook::TcEgress | Hook::TcPodOut => &[Reason::NotOurs],
        }
    }

    /// Judges a packet of unknown result. It is counted once, and a passed packet has at least a
    /// header.
    fn judge_unknown(&self, done: &Done<'_>) -> Result<Reasons, String> {
        if self.untouched(done).is_ok() {
            return Ok(self.left_alone());
        }
        let verdict = self.verdict(done);
        require(verdict != Verdict::Fault && done.after.len() > ETHERNET, "no program may return this")?;
        Ok(Reason::ALL)
    }

    fn verdict(&self, done: &Done<'_>) -> Verdict {
        Verdict::new(self.hook, done.run.action)
    }

    /// Returns whether replies pass this hook.
    fn is_way_out(&self) -> bool {
        matches!(self.hook, Hook::TcEgress | Hook::TcPodOut)
    }

    fn untouched(&self, done: &Done<'_>) -> Result<Reasons, String> {
        let same = done.before == done.after && done.run.metadata.is_empty() && done.run.mark == 0;
        require(same && self.verdict(done) == Verdict::Pass, "not ours, but not left alone")?;
        Ok(&[Reason::NotOurs])
    }

    /// Accepts also an unchanged packet, if it has options or extension headers.
    fn or_untouched(
        &self,
        packet: &Packet,
        done: &Done<'_>,
        judge: impl Fn() -> Result<Reasons, String>,
    ) -> Result<Reasons, String> {
        let left_alone = if packet.is_plain { None } else { self.untouched(done).ok() };
        left_alone.map_or_else(judge, Ok)
    }

    /// Returns whether XDP passes the packet to TC to be cut, because XDP can't make two of a
    /// packet.
    fn is_left_to_tc(&self, frontend: &Frontend, packet: &Packet, done: &Done<'_>) -> bool {
        self.hook == Hook::XdpIngress
            && cut::may_be_cut(done, packet)
            && rooms(frontend).any(|room| packet.length > room)
            && self.untouched(done).is_ok()
    }

    fn judge_client(&self, frontend: &Frontend, packet: &Packet, done: &Done<'_>) -> Result<Reasons, String> {
        if self.is_of_pod() {
            return self.judge_pod(frontend, packet, done);
        }
        if let Some(reason) = frontend.drops {
            return self.dropped(done, packet, only(reason));
        }
        let remote = || frontend.service.endpoints.iter().filter(|endpoint| endpoint.way != 0);
        match self.verdict(done) {
            Verdict::Pass => {
                self.is_handed_up(done)?;
                is_translated(done, packet, 0, local_backends(frontend), true)?;
                Ok(&[Reason::ServedLocal])
            }
            Verdict::Drop if packet.hop_limit <= 1 && remote().next().is_some() => {
                Ok(&[Reason::HopLimit, Reason::ReplyKeyInUse])
            }
            Verdict::Drop
                if rooms(frontend).any(|room| packet.length > room) && !cut::is_divisible(done, packet) =>
            {
                Ok(&[Reason::TooBig, Reason::ReplyKeyInUse])
            }
            Verdict::Redirect
                if self.hook == Hook::TcIngress
                    && rooms(frontend).any(|room| cut::is_rest(done, packet, room)) =>
            {
                Ok(&[Reason::Fragmented])
            }
            Verdict::Drop => Ok(&[Reason::ReplyKeyInUse, Reason::SnatPorts]),
            Verdict::Transmit | Verdict::Redirect if answers::is_error(done, packet) => {
                answered(done, packet, frontend)
            }
            Verdict::Transmit | Verdict::Redirect => {
                let (sent, reasons): (bool, Reasons) = if frontend.is_dsr {
                    let sent = remote().any(|endpoint| is_encapsulated(done, packet, endpoint));
                    (sent, &[Reason::SentDsr])
                } else {
                    let sent = remote().any(|endpoint| is_forwarded(done, packet, endpoint.at));
                    (sent, &[Reason::SentSnat])
                };
                require(sent, "sent, but not to a backend of the service")?;
                Ok(reasons)
            }
            Verdict::Fault => Err("no program may return this".into()),
        }
    }

    /// Judges an ICMP error. It is left alone, or goes to the owner of the connection with
    /// checksums as right or wrong as before.
    fn judge_error(&self, packet: &Packet, done: &Done<'_>) -> Result<Reasons, String> {
        if let Ok(reasons) = self.untouched(done) {
            return Ok(reasons);
        }
        if self.is_of_pod() {
            return self.judge_error_of_pod(packet, done);
        }
        let endpoints = || self.world.frontends.iter().flat_map(|frontend| &frontend.service.endpoints);
        match self.verdict(done) {
            Verdict::Pass => {
                if !self.is_way_out() {
                    self.is_handed_up(done)?;
                }
                answers::check_relayed(done, packet)?;
                Ok(&[Reason::IcmpError])
            }
            Verdict::Drop => Ok(&[Reason::IcmpUnknown, Reason::HopLimit, Reason::TooBig]),
            Verdict::Transmit | Verdict::Redirect => {
                let mut remote = endpoints().filter(|endpoint| endpoint.way != 0);
                let is_sent = remote.any(|endpoint| is_encapsulated(done, packet, endpoint));
                require(is_sent, "an error was sent, but to no backend")?;
                Ok(&[Reason::IcmpError])
            }
            Verdict::Fault => Err("no program may return this".into()),
        }
    }

    fn judge_reply(&self, packet: &Packet, done: &Done<'_>) -> Result<Reasons, String> {
        let Some(vip) = self.replies.get(&(packet.source, packet.destination, packet.protocol)) else {
            return self.untouched(done);
        };
        self.or_untouched(packet, done, || {
            require(self.verdict(done) == Verdict::Pass, "a reply goes on its way")?;
            is_translated(done, packet, 0, std::iter::once(*vip), false)?;
            Ok(&[Reason::Reply])
        })
    }

    /// Accepts a drop, or an answer if the reason allows it.
    fn dropped(&self, done: &Done<'_>, packet: &Packet, reasons: Reasons) -> Result<Reasons, String> {
        let told = match reasons[0] {
            Reason::NoEndpoint | Reason::UnknownPort => Some(answers::unreachable(packet)),
            Reason::UnknownProtocol => Some(answers::unknown_protocol(packet)),
            _ => None,
        };
        if let Some(error) = told.filter(|_| self.verdict(done).is_sent()) {
            answers::check(done, packet, &error)?;
        } else {
            require(self.verdict(done) == Verdict::Drop, "ours and not to be served, but not dropped")?;
        }
        Ok(reasons)
    }

    /// Returns whether no Service has its protocol, and the network has no use for it. A tunnel may
    /// end at a Service's address, but not one from a pod.
    fn is_unknown_protocol(&self, packet: &Packet) -> bool {
        let known: &[u8] =
            if packet.is_v6() { &[0, 43, 44, 50, 51, 58, 59, 60, 135, 139, 140] } else { &[1] };
        let is_tunnel = [4, 41].contains(&packet.protocol) && !self.is_of_pod();
        !is_tunnel && !packet.has_ports() && !known.contains(&packet.protocol)
    }

    /// Checks the sign of a handled packet: XDP's metadata for TC, or TC's mark for the stack.
    fn is_handed_up(&self, done: &Done<'_>) -> Result<(), String> {
        match self.hook {
            Hook::XdpIngress => require(
                done.run.metadata[..] == HANDOVER_MAGIC.to_ne_bytes(),
                "passed up without its metadata",
            ),
            _ => require(done.run.mark == DEFAULT_MARK, "passed up without our mark"),
        }
    }
}

/// Judges the answer to a packet that only a backend on another node could serve.
fn answered(done: &Done<'_>, packet: &Packet, frontend: &Frontend) -> Result<Reasons, String> {
    let remote = || frontend.service.endpoints.iter().filter(|endpoint| endpoint.way != 0);
    if packet.hop_limit <= 1 {
        let way = |endpoint: &Endpoint| if frontend.is_dsr { is_outer_v6(endpoint) } else { packet.is_v6() };
        let expected = |endpoint: &Endpoint| answers::time_exceeded(packet, way(endpoint));
        require(
            remote().any(|endpoint| answers::check(done, packet, &expected(endpoint)).is_ok()),
            "time exceeded from nowhere",
        )?;
        return Ok(&[Reason::HopLimit]);
    }
    let expected = remote().find_map(|endpoint| {
        let room = MTU - outer_header(frontend, endpoint);
        let told = answers::check(done, packet, &answers::too_big(packet, room));
        (packet.length > room && told.is_ok()).then_some(())
    });
    require(expected.is_some(), "told a size that it is not too big for")?;
    Ok(&[Reason::TooBig])
}

fn local_backends(frontend: &Frontend) -> impl Iterator<Item = SocketAddr> {
    frontend.service.endpoints.iter().filter(|endpoint| endpoint.way == 0).map(|endpoint| endpoint.at)
}

/// Returns the sizes of the largest packets to the backends on other nodes.
fn rooms(frontend: &Frontend) -> impl Iterator<Item = usize> {
    let remote = frontend.service.endpoints.iter().filter(|endpoint| endpoint.way != 0);
    remote.map(|endpoint| MTU - outer_header(frontend, endpoint))
}

fn only(reason: Reason) -> Reasons {
    match reason {
        Reason::NoLocalEndpoint => &[Reason::NoLocalEndpoint],
        _ => &[Reason::NoEndpoint],
    }
}

/// Returns an error with `what` unless the condition holds.
pub fn require(condition: bool, what: &str) -> Result<(), String> {
    if condition { Ok(()) } else { Err(what.into()) }
}
