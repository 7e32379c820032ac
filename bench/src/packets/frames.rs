//! The frame that a case sends, and the action and frame that must leave.
//!
//! The frame builder computes every checksum afresh. A figure stands only if the program's frame is
//! the same byte for byte.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail, ensure};
use millrace_lab::frame::{DEVICE_MAC, Frame, Icmp, Layer, Mac, NEIGHBOUR_MAC, difference, flag};
use millrace_lab::program::{Hook, NEXT_HOP_MAC, Verdict, hint_of};
use proxy_common::config::{DEFAULT_MARK, DEFAULT_SNAT_PORTS, HANDOVER_MAGIC};
use proxy_common::way::FOU_PORT;

use super::addresses::{CLIENT, NODE, NODE_PORT, Net, POD, PORT, ROUTER, VIP};
use super::case::Case;
use super::rounds::{FIRST_PORT, FRAME, Round};
use super::walk::{Place, Walk};
use super::wrapper::Outcome;

/// Facts of a prepared case that its frames depend on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Facts {
    /// The hint that names the backend in outer headers.
    pub hint: u16,
    /// The source of the client's translated packets.
    pub snat: Option<SocketAddr>,
    /// The MAC addresses of the device towards the client, and of the client.
    pub link: Option<(Mac, Mac)>,
}

/// The end of a run.
#[derive(Clone, Debug)]
struct Expected {
    verdict: Verdict,
    frame: Frame,
    /// XDP tells TC in metadata that the packet was served.
    is_handed_over: bool,
    /// TC marks the packet.
    is_marked: bool,
}

impl Expected {
    fn passed(frame: Frame) -> Self {
        Self { verdict: Verdict::Pass, frame, is_handed_over: false, is_marked: false }
    }

    fn delivered(frame: Frame) -> Self {
        Self { is_handed_over: true, is_marked: true, ..Self::passed(frame) }
    }
}

impl Case {
    /// Returns the frame of a round.
    pub fn frame(&self, facts: &Facts, round: Round) -> Result<Frame> {
        let client = self.client_frame(round);
        Ok(match self.walk {
            Walk::NotOurs | Walk::NotOursServed => {
                let (client, other) = (self.address(CLIENT, 0), self.address(NODE, 1));
                filled(Frame::ip(client, other).tcp(FIRST_PORT, 22, flag::ACK))
            }
            Walk::Reply => client.with_destination(self.pod(0)).reply(),
            Walk::SnatReply => {
                let source = facts.snat.context("the connection has no port yet")?;
                client.with_source(source).with_destination(self.pod(0)).with_hop_limit(63).reply()
            }
            Walk::DecapIpip | Walk::DecapFou => self.around(&client, (2, 1), facts.hint),
            Walk::Echo => self.echo().0,
            Walk::Error => self.error_about(&client.reply()),
            _ => client,
        })
    }

    /// Returns the client's packet to the frontend.
    pub fn client_frame(&self, round: Round) -> Frame {
        self.client_frame_with(round, if self.walk.is_new() { flag::SYN } else { flag::ACK })
    }

    /// Returns the client's packet to the frontend with other TCP flags.
    pub fn client_frame_with(&self, round: Round, flags: u8) -> Frame {
        let frontend = self.frontend(round.frontend);
        let frame = Frame::ip(self.address(CLIENT, round.address()), frontend.ip());
        let frame = if self.walk.is_udp() {
            frame.udp(round.port(), frontend.port())
        } else {
            frame.tcp(round.port(), frontend.port(), flags)
        };
        if self.walk.is_tunnelled() {
            let overhead = self.around(&frame, (2, 1), 0).build().len() - frame.build().len();
            return padded(frame, FRAME - overhead);
        }
        filled(frame)
    }

    /// Returns a frontend.
    pub fn frontend(&self, number: u32) -> SocketAddr {
        if self.walk.is_node_port() {
            SocketAddr::new(self.address(NODE, 1), NODE_PORT)
        } else {
            SocketAddr::new(self.address(VIP, number), PORT)
        }
    }

    /// Returns the backend of a frontend.
    pub fn pod(&self, number: u32) -> SocketAddr {
        SocketAddr::new(self.address(POD, number), FIRST_PORT)
    }

    /// Returns an address of the case's family.
    pub fn address(&self, net: Net, number: u32) -> std::net::IpAddr {
        net.address(self.is_v6, number)
    }

    /// Returns an error about the difference of an outcome to the expected one.
    pub fn check(&self, facts: &Facts, round: Round, outcome: &Outcome) -> Result<()> {
        let given = self.frame(facts, round)?;
        let expected = self.expected(facts, round, &given, outcome)?;
        check(self.hook, &expected, outcome)
            .with_context(|| format!("{}, {round:?}: the program's result is wrong", self.name()))
    }

    /// Returns an error about the difference of an outcome to that of the empty program.
    pub fn check_empty(&self, facts: &Facts, round: Round, outcome: &Outcome) -> Result<()> {
        let frame = self.frame(facts, round)?;
        check(self.hook, &Expected::passed(frame), outcome)
            .with_context(|| format!("{}, {round:?}: the wrapper's frame is wrong", self.name()))
    }

    fn expected(&self, facts: &Facts, round: Round, given: &Frame, outcome: &Outcome) -> Result<Expected> {
        let sent = |frame: Frame| Expected { verdict: self.way_out(), ..Expected::passed(frame) };
        let client = self.client_frame(round);
        Ok(match self.walk {
            Walk::NotOurs | Walk::NotOursServed => Expected::passed(given.clone()),
            Walk::Dropped => Expected { verdict: Verdict::Drop, ..Expected::passed(given.clone()) },
            Walk::Reply => Expected::passed(client.reply()),
            Walk::SnatReply => {
                let (own, neighbour) = facts.link.context("there is no network")?;
                let reply = client.reply().with_hop_limit(62).with_macs(own, neighbour);
                sent(reply)
            }
            Walk::Echo => sent(self.echo().1),
            Walk::Error => {
                Expected::delivered(self.error_about(&client.with_destination(self.pod(0)).reply()))
            }
            _ => match self.walk.place() {
                Place::Here => Expected::delivered(client.with_destination(self.pod(round.frontend))),
                Place::Dsr => {
                    let outer = self.around(&client.with_hop_limit(63), (1, 2), facts.hint_of(self, round));
                    let frame = outer.with_macs(DEVICE_MAC, NEXT_HOP_MAC);
                    // No program of this node may serve the tunnel's packet once more.
                    Expected { is_marked: true, ..sent(frame) }
                }
                Place::Snat => {
                    let source = self.snat_source(outcome)?;
                    let translated = client.with_source(source).with_destination(self.pod(round.frontend));
                    sent(translated.with_hop_limit(63).with_macs(DEVICE_MAC, NEXT_HOP_MAC))
                }
            },
        })
    }

    /// Returns the source of a translated packet: any port of the range, at this node's address.
    pub fn snat_source(&self, outcome: &Outcome) -> Result<SocketAddr> {
        let frame = Frame::parse(&outcome.frame).context("the program's frame can't be parsed")?;
        let source = frame.source();
        let is_right = source.ip() == self.address(NODE, 1) && DEFAULT_SNAT_PORTS.contains(&source.port());
        ensure!(is_right, "the source {source} is none of this node's SNAT ports");
        Ok(source)
    }

    /// Returns the action for frames that leave by the device that they came in by.
    const fn way_out(&self) -> Verdict {
        if self.hook.is_xdp() { Verdict::Transmit } else { Verdict::Redirect }
    }

    /// Returns a packet as one node sends it to another.
    fn around(&self, inner: &Frame, (from, to): (u32, u32), hint: u16) -> Frame {
        let mut outer = Layer::ip(self.address(NODE, from), self.address(NODE, to));
        match &mut outer {
            Layer::Ipv4(ip) => (ip.id, ip.dont_fragment) = (hint, true),
            Layer::Ipv6(ip) => ip.flow_label = hint.into(),
            _ => {}
        }
        let frame = inner.clone().encapsulated(outer);
        match self.walk {
            // A director's port follows from the connection. A node accepts any.
            Walk::DecapFou => frame.in_udp(0xc001, FOU_PORT),
            _ => frame,
        }
    }

    /// Returns an echo request to the frontend's address, and its echo.
    fn echo(&self) -> (Frame, Frame) {
        let (request, reply) = if self.is_v6 { (128, 129) } else { (8, 0) };
        let ip = Frame::ip(self.address(CLIENT, 0), self.address(VIP, 0)).with_hop_limit(57);
        let message = |kind| Icmp { kind, code: 0, rest: [0x12, 0x34, 0, 7] };
        let answered = filled(ip.clone().layer(message(reply))).reply().with_hop_limit(64);
        (filled(ip.layer(message(request))), answered)
    }

    /// Returns a router's error about a packet, as it arrives here.
    fn error_about(&self, packet: &Frame) -> Frame {
        let ((kind, code), header) = if self.is_v6 { ((2, 0), 40) } else { ((3, 4), 20) };
        let icmp = Icmp { kind, code, rest: 1400_u32.to_be_bytes() };
        let quoted = FRAME - (14 + header + 8 + header);
        let error = packet.icmp_error_quoting(self.address(ROUTER, 1), icmp, quoted);
        error.with_macs(NEIGHBOUR_MAC, DEVICE_MAC)
    }
}

impl Facts {
    /// Returns the hint of a round's backend. It is a function of the backend alone.
    fn hint_of(&self, case: &Case, round: Round) -> u16 {
        if round.frontend == 0 { self.hint } else { hint_of(case.pod(round.frontend)) }
    }
}

fn check(hook: Hook, expected: &Expected, outcome: &Outcome) -> Result<()> {
    let verdict = Verdict::new(hook, outcome.action);
    ensure!(
        verdict == expected.verdict,
        "the action is {} ({verdict:?}) instead of {:?}",
        outcome.action,
        expected.verdict
    );
    let metadata: &[u8] =
        if hook.is_xdp() && expected.is_handed_over { &HANDOVER_MAGIC.to_ne_bytes() } else { &[] };
    ensure!(outcome.metadata == metadata, "the metadata is {:02x?}", outcome.metadata);
    let mark = if !hook.is_xdp() && expected.is_marked { DEFAULT_MARK } else { 0 };
    ensure!(outcome.mark == mark, "the mark is {:#x} instead of {mark:#x}", outcome.mark);
    match difference(&expected.frame.build(), &outcome.frame) {
        Some(difference) => bail!("{difference}"),
        None => Ok(()),
    }
}

/// Returns the frame with a payload up to the measured size.
pub fn filled(frame: Frame) -> Frame {
    padded(frame, FRAME)
}

fn padded(frame: Frame, size: usize) -> Frame {
    let headers = frame.build().len();
    frame.payload(vec![0x5a; size - headers])
}
