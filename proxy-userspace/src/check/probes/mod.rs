//! `--network`: a packet to each other node, as large as the way claims, in the encapsulation in use.

mod icmp;
mod socket;

use std::io;
use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use self::socket::Tunnel;
use super::finding::faults_or;
use super::running::{Pins, overhead};
use super::{Facts, Finding, Known};
use crate::config::Settings;
use crate::dataplane::Encapsulation;
use crate::dataplane::ebpf::read::WayView;

/// The size of the first packet. Every path has room for it.
const SMALL: u16 = 128;
/// The exactness of a size that is looked for, in bytes.
const STEP: u16 = 8;
/// The times for the answers to a packet and to its repetition. A kernel sends one ICMP error a second to each host,
/// after a burst of six (icmp_ratelimit).
const PATIENCE: [Duration; 2] = [Duration::from_millis(300), Duration::from_millis(1100)];
/// Ways that are probed at once.
const AT_ONCE: usize = 16;

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The node has it.
    Arrived,
    /// This node or a router says that it is too big.
    TooBig,
    /// A router or the node refused it by this ICMP error.
    Refused {
        /// The type.
        kind: u8,
        /// The code.
        code: u8,
    },
    /// Nobody answered.
    Silent,
}

/// What the probes of a way found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probed {
    /// The address of the other node.
    pub target: IpAddr,
    /// The MTU that the way claims.
    pub claimed: u16,
    /// The result, or why the way can't be probed.
    pub reach: Known<Reach>,
}

/// How far packets come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Packets of the claimed size arrive.
    Whole,
    /// No packet is answered, however small.
    Silent,
    /// Larger packets than this are lost without a word.
    Hole(u16),
    /// Larger packets than this are refused by a router.
    Told(u16),
    /// All packets are refused by an ICMP error of this type and code.
    Refused(u8, u8),
}

/// Probes all ways in the maps.
pub fn read(settings: &Settings, pins: &Pins) -> Vec<Probed> {
    let encapsulation = settings.dsr.encapsulation;
    let mut probed = Vec::new();
    for ways in pins.ways.chunks(AT_ONCE) {
        thread::scope(|scope| {
            let asked: Vec<_> =
                ways.iter().map(|way| scope.spawn(move || probe(way, encapsulation))).collect();
            probed.extend(asked.into_iter().filter_map(|one| one.join().ok()));
        });
    }
    probed
}

fn probe(way: &WayView, encapsulation: Encapsulation) -> Probed {
    let reach = || {
        let source = way.source.ok_or_else(|| "there is no route".to_owned())?;
        let tunnel = Tunnel::open(source, way.target, encapsulation).map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => "sending the probe takes CAP_NET_RAW".to_owned(),
            _ => error.to_string(),
        })?;
        measure(way.mtu, |size, patience| tunnel.ask(size, patience)).map_err(|error| error.to_string())
    };
    Probed { target: way.target, claimed: way.mtu, reach: reach() }
}

/// Finds out how large packets may be, up to the claimed size.
fn measure(claimed: u16, mut ask: impl FnMut(u16, Duration) -> io::Result<Answer>) -> io::Result<Reach> {
    let mut try_size = |size| {
        for patience in PATIENCE {
            match ask(size, patience)? {
                Answer::Silent => {}
                answer => return Ok(answer),
            }
        }
        Ok::<_, io::Error>(Answer::Silent)
    };
    match try_size(SMALL)? {
        Answer::Arrived => {}
        Answer::Refused { kind, code } => return Ok(Reach::Refused(kind, code)),
        Answer::Silent | Answer::TooBig => return Ok(Reach::Silent),
    }
    let mut is_told = match try_size(claimed)? {
        Answer::Arrived => return Ok(Reach::Whole),
        answer => answer == Answer::TooBig,
    };
    let (mut passes, mut fails) = (SMALL, claimed);
    while fails.saturating_sub(passes) > STEP {
        let middle = passes.midpoint(fails);
        match try_size(middle)? {
            Answer::Arrived => passes = middle,
            answer => (fails, is_told) = (middle, is_told && answer == Answer::TooBig),
        }
    }
    Ok(if is_told { Reach::Told(passes) } else { Reach::Hole(passes) })
}

pub fn network(facts: &Facts) -> Vec<Finding> {
    let Some(probed) = &facts.probed else {
        return vec![Finding::skip("--network sends a packet to each other node")];
    };
    if probed.is_empty() {
        return vec![Finding::skip("no other node is known")];
    }
    let encapsulation = facts.settings.dsr.encapsulation;
    let faults = probed.iter().filter_map(|one| wrong(one, encapsulation));
    faults_or(faults.collect(), || {
        let name = encapsulation.name();
        format!("{} nodes got packets as large as claimed, encapsulated ({name})", probed.len())
    })
}

fn wrong(probed: &Probed, encapsulation: Encapsulation) -> Option<Finding> {
    let Probed { target, claimed, reach } = probed;
    let name = encapsulation.name();
    let room = |size: u16| size.saturating_sub(overhead(*target, encapsulation));
    Some(match reach {
        Ok(Reach::Whole) => return None,
        Ok(Reach::Hole(size)) => Finding::fail(
            format!(
                "the way to {target} claims {claimed} bytes and passes {size} ({name}): larger packets vanish without a \
                 word, and DSR connections hang above {} bytes inside",
                room(*size)
            ),
            format!("set the path's MTU on the device or the route: ip route change ... mtu {size}"),
        ),
        Ok(Reach::Told(size)) => Finding::warn(
            format!(
                "the way to {target} claims {claimed} bytes and passes {size} ({name}); a router says so"
            ),
            format!("nothing, if `millrace ways` shows {size} soon; else set the MTU of the route"),
        ),
        Ok(Reach::Refused(kind, code)) => Finding::fail(
            format!(
                "packets to {target} in the encapsulation {name} are refused by ICMP type {kind}, code {code}"
            ),
            "look for a filter between the nodes: the ICMP error's sender has it",
        ),
        Ok(Reach::Silent) => Finding::warn(
            format!(
                "{target} answers no packet in the encapsulation {name}: the network drops {}, or the node's firewall \
                 drops it or its ICMP errors",
                filtered(*target, encapsulation)
            ),
            match encapsulation {
                Encapsulation::Ipip => {
                    "allow it between nodes, or use --dsr-encap fou; a capture on that node tells"
                }
                Encapsulation::Fou => "allow it between nodes; a capture on that node tells",
            },
        ),
        Err(why) => Finding::skip(format!("{target} is not probed: {why}")),
    })
}

const fn filtered(target: IpAddr, encapsulation: Encapsulation) -> &'static str {
    match (encapsulation, target) {
        (Encapsulation::Fou, _) => "UDP port 5555",
        (Encapsulation::Ipip, IpAddr::V4(_)) => "IP protocol 4",
        (Encapsulation::Ipip, IpAddr::V6(_)) => "IP protocol 41",
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Outcome;
    use super::*;

    /// A path that answers up to a size, and gives another answer above.
    fn path(passes: u16, above: Answer) -> impl FnMut(u16, Duration) -> io::Result<Answer> {
        move |size, _| Ok(if size <= passes { Answer::Arrived } else { above })
    }

    #[test]
    fn the_size_that_passes_is_found() {
        let found = |passes, above| measure(1500, path(passes, above)).unwrap();
        assert_eq!(found(1500, Answer::Silent), Reach::Whole);
        assert_eq!(found(0, Answer::Silent), Reach::Silent);
        for passes in [129, 1279, 1400, 1499] {
            let (Reach::Hole(size), Reach::Told(told)) =
                (found(passes, Answer::Silent), found(passes, Answer::TooBig))
            else {
                panic!("{passes}")
            };
            assert!(size <= passes && passes - size < STEP && told == size, "{passes} {size}");
        }
    }

    #[test]
    fn a_packet_that_is_lost_once_is_sent_again() {
        let mut lost = true;
        let ask = |_, _| Ok(if std::mem::take(&mut lost) { Answer::Silent } else { Answer::Arrived });
        assert_eq!(measure(1500, ask).unwrap(), Reach::Whole);
        let filtered = measure(1500, |_, _| Ok(Answer::Refused { kind: 3, code: 13 }));
        assert_eq!(filtered.unwrap(), Reach::Refused(3, 13));
        let refused = measure(1500, |_, _| Err(io::ErrorKind::HostUnreachable.into()));
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::HostUnreachable);
    }

    #[test]
    fn what_is_wrong_with_a_way_is_said_with_its_size() {
        let judged = |reach: Known<Reach>| {
            let mut facts = Facts::example();
            let target = "10.1.0.12".parse().unwrap();
            facts.probed = Some(vec![Probed { target, claimed: 1500, reach }]);
            network(&facts).remove(0)
        };
        assert_eq!(judged(Ok(Reach::Whole)).outcome, Outcome::Pass);
        let hole = judged(Ok(Reach::Hole(1400)));
        assert_eq!(hole.outcome, Outcome::Fail);
        assert_eq!(
            hole.found,
            "the way to 10.1.0.12 claims 1500 bytes and passes 1400 (ipip): larger packets vanish without a word, and DSR \
             connections hang above 1380 bytes inside"
        );
        assert!(judged(Ok(Reach::Silent)).found.contains("the network drops IP protocol 4,"));
        assert_eq!(judged(Ok(Reach::Told(1400))).outcome, Outcome::Warn);
        assert_eq!(judged(Err("no".to_owned())).outcome, Outcome::Skip);
        assert_eq!(network(&Facts::example())[0].outcome, Outcome::Skip);
    }
}
