//! The cost of the pod firewall, by the method of the other cases.

use std::fmt;
use std::net::IpAddr;

use anyhow::{Result, ensure};
use aya::programs::ProgramFd;
use millrace_lab::frame::{Frame, flag, protocol};
use millrace_lab::program::{DEVICE, Hook, PolicyBed};
use proxy_common::policy::{NOT_ISOLATED, PolicyDirection, PolicyPod};
use proxy_common::{Addr4, Addr6};

use super::frames::filled;
use super::measure::Samples;
use super::rounds::{FIRST_PORT, Rounds};
use super::wrapper::{Repetition, Wrapper};
use crate::report::{Figure, Group, MILLRACE, Section, Spread, Unit};

/// The most that a packet of an established connection may cost.
const ESTABLISHED_NS: f64 = 30.0;
/// Ports of the pod's server and of the peer's.
const SERVED: u16 = 80;
/// The profile of the pod and the class of the peer.
const PROFILE: u32 = 7;
const CLASS: u32 = 9;
/// Rules and peers beside those that the packets meet.
const OTHERS: u32 = 10_000;

/// What becomes of the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// No policy selects the pod.
    Open,
    /// Their connection is known and allowed.
    Established,
    /// Each opens a connection that no rule allows.
    Denied,
}

/// A measured case.
#[derive(Clone, Copy, Debug)]
struct Case {
    fate: Fate,
    direction: PolicyDirection,
    is_v6: bool,
    flows: u32,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fate = match self.fate {
            Fate::Open => "no policy",
            Fate::Established => "established",
            Fate::Denied => "denied",
        };
        let direction = match self.direction {
            PolicyDirection::Ingress => "to the pod",
            PolicyDirection::Egress => "from the pod",
        };
        let family = if self.is_v6 { "IPv6" } else { "IPv4" };
        write!(f, "firewall, {direction}, {fate}, {family}, flows: {}", self.flows)
    }
}

/// Measures the cases whose name contains a text.
pub fn measure(section: &mut Section, filter: &str, rounds: u32, samples: usize) -> Result<()> {
    for case in cases().into_iter().filter(|case| case.to_string().contains(filter)) {
        eprintln!("{case} ...");
        let taken = case.measure(rounds, samples)?;
        let figure = Figure::new(case.to_string(), MILLRACE, &taken.costs())?
            .resolution(1.0)
            .detail("empty ns", Spread::of(&taken.empty)?.median)
            .detail("with ns", Spread::of(&taken.program)?.median);
        let is_bound = case.fate == Fate::Established;
        let figure = if is_bound { figure.target(ESTABLISHED_NS) } else { figure };
        let mut group = Group::new("The pod firewall", Unit::Nanoseconds);
        group.add(figure);
        section.add(group);
    }
    Ok(())
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for direction in PolicyDirection::ALL {
        for is_v6 in [false, true] {
            for (fate, flows) in
                [(Fate::Open, 1), (Fate::Established, 1), (Fate::Established, 1000), (Fate::Denied, 1)]
            {
                cases.push(Case { fate, direction, is_v6, flows });
            }
        }
    }
    cases
}

impl Case {
    fn pick(self, v4: &str, v6: &str) -> Result<IpAddr> {
        Ok(if self.is_v6 { v6 } else { v4 }.parse()?)
    }

    /// Returns the frame of the first round. The others differ in the source port.
    fn frame(self) -> Result<Frame> {
        let pod = self.pick("10.1.0.7", "fd00:10:1::7")?;
        let peer = self.pick("10.2.0.1", "fd00:10:2::1")?;
        let flags = if self.fate == Fate::Denied { flag::SYN } else { flag::ACK };
        let (source, destination) = match self.direction {
            PolicyDirection::Ingress => (peer, pod),
            PolicyDirection::Egress => (pod, peer),
        };
        Ok(filled(Frame::ip(source, destination).tcp(FIRST_PORT, SERVED, flags)))
    }

    /// Loads the programs and fills their maps.
    fn install(self) -> Result<PolicyBed> {
        let mut bed = PolicyBed::new();
        bed.set_generation(1);
        let profile = if self.fate == Fate::Open { NOT_ISOLATED } else { PROFILE };
        let mut pod = PolicyPod { ingress: profile, egress: profile, epoch: 1, ..PolicyPod::default() };
        match self.pick("10.1.0.7", "fd00:10:1::7")? {
            IpAddr::V4(address) => pod.address4 = Addr4::from(address).0,
            IpAddr::V6(address) => pod.address6 = Addr6::from(address).0,
        }
        bed.set_pod(DEVICE, pod);
        bed.set_peer(self.pick("10.2.0.1", "fd00:10:2::1")?, if self.is_v6 { 128 } else { 32 }, CLASS);
        for other in 0..OTHERS {
            let [_, _, c, d] = other.to_be_bytes();
            let address = if self.is_v6 { format!("fd00:10:3::{other:x}") } else { format!("10.3.{c}.{d}") };
            bed.set_peer(address.parse()?, if self.is_v6 { 128 } else { 32 }, CLASS + 1);
            bed.allow(PROFILE, CLASS + 1, Some(protocol::TCP), Some(u16::try_from(other)?));
        }
        if self.fate == Fate::Established {
            bed.allow(PROFILE, CLASS, Some(protocol::TCP), Some(SERVED));
        }
        Ok(bed)
    }

    fn measure(self, rounds: u32, samples: usize) -> Result<Samples> {
        let (bed, frame) = (self.install()?, self.frame()?);
        let mut wrapper = Wrapper::load(Hook::TcIngress, &frame.build(), DEVICE)?;
        if self.direction == PolicyDirection::Ingress {
            wrapper = wrapper.made_on_the_node();
        }
        let (target, empty) = (bed.program_fd(self.direction), wrapper.empty()?);
        wrapper.rotate(Rounds::new(&frame, self.flows, 1)?)?;
        // Each connection gets its entry.
        self.sample(&bed, &mut wrapper, &target, self.flows * 2)?;
        let mut taken = Samples::default();
        for sample in 0..samples {
            // The one that comes second finds warmer caches, so the order changes.
            for is_program in [sample % 2 == 0, sample % 2 != 0] {
                if is_program {
                    taken.program.push(self.sample(&bed, &mut wrapper, &target, rounds)?);
                } else {
                    taken.empty.push(wrapper.sample(&empty, Repetition::InKernel, rounds)?.nanoseconds);
                }
            }
        }
        Ok(taken)
    }

    /// Takes a sample. All rounds must have been dropped, or none.
    fn sample(self, bed: &PolicyBed, wrapper: &mut Wrapper, target: &ProgramFd, rounds: u32) -> Result<f64> {
        const UNSPEC: u32 = u32::MAX;
        const SHOT: u32 = 2;
        let before = bed.dropped();
        let sample = wrapper.sample(target, Repetition::InKernel, rounds)?;
        let dropped = bed.dropped() - before;
        let (action, all) = if self.fate == Fate::Denied { (SHOT, u64::from(rounds)) } else { (UNSPEC, 0) };
        ensure!(sample.last.1.action == action, "{self}: the last round ended with {:?}", sample.last.1);
        ensure!(dropped == all, "{self}: {dropped} of {rounds} rounds were dropped");
        Ok(sample.nanoseconds)
    }
}
