//! ICMP: messages of the link, echo, and errors about other packets.

use proxy_common::addr::Address;
use proxy_common::policy::{PolicyDrop, PolicyFlowKey};

use crate::header::{IcmpHeader, NeighbourMessage, Ports, has_ports};
use crate::policy::family::{Family, KeyOf};
use crate::policy::follow::{Role, by_entry};
use crate::policy::scene::Scene;
use crate::policy::shape::{Packet, Piece};
use crate::policy::skb::Skb;
use crate::policy::sources;

/// Types of `ICMPv6` messages between neighbours (RFC 4861, RFC 2710, RFC 3810).
mod kind {
    pub const LISTENER_QUERY: u8 = 130;
    pub const LISTENER_DONE: u8 = 132;
    pub const ROUTER_SOLICITATION: u8 = 133;
    pub const ROUTER_ADVERTISEMENT: u8 = 134;
    pub const NEIGHBOUR_SOLICITATION: u8 = 135;
    pub const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
    pub const REDIRECT: u8 = 137;
    pub const LISTENER_REPORT_2: u8 = 143;
}

/// The hop limit of a message that no router has forwarded.
const UNFORWARDED: u8 = 255;
/// The hop limit of a message that no router forwards.
const LINK_ONLY: u8 = 1;

/// What is to be done with a message. Not a [`Result`], which LLVM would return through the caller's stack: the
/// verifier refuses a function that leaves a pointer there in the register of results.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// It passes.
    Pass,
    /// It is judged as a packet of an exchange. The key has its ports.
    JudgeDatagram,
    /// It is judged as an answer. The key has its ports.
    JudgeAnswer,
    /// It is judged alone.
    JudgeAlone,
    /// It can't be read.
    Unreadable,
    /// It claims an address that is not the pod's.
    Foreign,
}

impl Step {
    /// The role of a message that is judged; `None`: it passes.
    #[inline(always)]
    pub const fn role(self) -> Result<Option<Role>, PolicyDrop> {
        match self {
            Self::Pass => Ok(None),
            Self::JudgeDatagram => Ok(Some(Role::Datagram)),
            Self::JudgeAnswer => Ok(Some(Role::Answer)),
            Self::JudgeAlone => Ok(Some(Role::Alone)),
            Self::Unreadable => Err(PolicyDrop::Unreadable),
            Self::Foreign => Err(PolicyDrop::ForeignSource),
        }
    }
}

/// Looks at a message, which is whole or the first fragment of one.
#[inline(never)]
pub fn look_at<F: Family, const FROM_POD: bool>(
    skb: Skb,
    packet: &mut Packet<F::Address>,
    scene: &Scene,
) -> Step {
    if packet.transport + size_of::<IcmpHeader>() as u32 > packet.end {
        return unreadable(scene);
    }
    let Some(header) = skb.load::<IcmpHeader>(packet.transport) else { return unreadable(scene) };
    if F::Address::WORDS == 4 && matches!(header.kind, kind::LISTENER_QUERY..=kind::LISTENER_REPORT_2) {
        return look_at_neighbours::<F, FROM_POD>(skb, packet, scene, header.kind);
    }
    if let Some(ports) = echo_ports::<F>(&header) {
        set_ports::<_, FROM_POD>(&mut packet.key, ports);
        let is_request = header.kind == F::ECHO_REQUEST;
        return if is_request { Step::JudgeDatagram } else { Step::JudgeAnswer };
    }
    if F::is_error(header.kind) && scene.is_isolated() && is_expected::<F, FROM_POD>(skb, packet, scene) {
        return Step::Pass;
    }
    Step::JudgeAlone
}

/// Not isolated: no network stack takes such a message.
#[inline(always)]
const fn unreadable(scene: &Scene) -> Step {
    if scene.is_isolated() { Step::Unreadable } else { Step::Pass }
}

/// Looks at a message between neighbours. One that may have been forwarded is judged.
///
/// Those of a fragmented packet are not for neighbours (RFC 6980).
#[inline(always)]
fn look_at_neighbours<F: Family, const FROM_POD: bool>(
    skb: Skb,
    packet: &Packet<F::Address>,
    scene: &Scene,
    kind: u8,
) -> Step {
    if FROM_POD && let Some(pod) = scene.pod {
        match kind {
            kind::ROUTER_ADVERTISEMENT | kind::REDIRECT => return Step::Foreign,
            kind::NEIGHBOUR_ADVERTISEMENT => {
                let message = skb.load::<NeighbourMessage>(packet.transport);
                let target = message.and_then(|message| F::from_words(message.target));
                if !target.is_some_and(|target| sources::may_claim::<F>(&target, pod)) {
                    return Step::Foreign;
                }
            }
            _ => {}
        }
    }
    let is_of_neighbours = match kind {
        kind::LISTENER_QUERY..=kind::LISTENER_DONE | kind::LISTENER_REPORT_2 => packet.hops == LINK_ONLY,
        kind::ROUTER_SOLICITATION | kind::NEIGHBOUR_SOLICITATION | kind::NEIGHBOUR_ADVERTISEMENT => {
            packet.hops == UNFORWARDED && (!FROM_POD || sources::is_neighbour::<F>(&packet.key.peer, scene))
        }
        kind::ROUTER_ADVERTISEMENT | kind::REDIRECT => !FROM_POD && packet.hops == UNFORWARDED,
        _ => false,
    };
    if is_of_neighbours && packet.piece == Piece::Whole { Step::Pass } else { Step::JudgeAlone }
}

/// The ports of an echo message: the side that asks has the identifier, the other one 0.
///
/// So the key tells who asks, and the destination port of the question is that of protocols without ports.
#[inline(always)]
fn echo_ports<F: Family>(header: &IcmpHeader) -> Option<Ports> {
    let [first, second, _, _] = header.rest.to_ne_bytes();
    let identifier = u16::from_ne_bytes([first, second]);
    if header.kind == F::ECHO_REQUEST {
        Some(Ports { source: identifier, destination: 0 })
    } else if header.kind == F::ECHO_REPLY {
        Some(Ports { source: 0, destination: identifier })
    } else {
        None
    }
}

/// Whether an error is about an allowed connection of the pod.
///
/// A router's address tells nothing, but the pod's own errors go to the end that they are about: else it could
/// send them anywhere.
#[inline(always)]
fn is_expected<F: Family, const FROM_POD: bool>(
    skb: Skb,
    packet: &Packet<F::Address>,
    scene: &Scene,
) -> bool {
    let Some(key) = read_quoted::<F, FROM_POD>(skb, packet) else { return false };
    by_entry::<F, false>(&key, scene) == Some(true)
}

/// The key of the packet that an error quotes. The pod has sent it if the error goes to the pod.
#[inline(always)]
fn read_quoted<F: Family, const FROM_POD: bool>(skb: Skb, packet: &Packet<F::Address>) -> Option<KeyOf<F>> {
    let place = packet.transport + size_of::<IcmpHeader>() as u32;
    let (source, destination, protocol) = F::read_quoted(&skb.load::<F::Header>(place)?)?;
    let place = place + size_of::<F::Header>() as u32;
    let ports = if has_ports(protocol) {
        skb.load::<Ports>(place)?
    } else if protocol == F::ICMP {
        echo_ports::<F>(&skb.load::<IcmpHeader>(place)?)?
    } else {
        Ports::default()
    };
    let (pod, peer) = if FROM_POD { (destination, source) } else { (source, destination) };
    if pod != packet.key.pod || FROM_POD && peer != packet.key.peer {
        return None;
    }
    let mut key = PolicyFlowKey {
        pod,
        peer,
        pod_port: ports.source,
        peer_port: ports.destination,
        protocol: protocol.into(),
        device: packet.key.device,
    };
    if FROM_POD {
        (key.pod_port, key.peer_port) = (ports.destination, ports.source);
    }
    Some(key)
}

/// Writes the ports of a packet into its key.
#[inline(always)]
pub fn set_ports<A, const FROM_POD: bool>(key: &mut PolicyFlowKey<A>, ports: Ports) {
    (key.pod_port, key.peer_port) =
        if FROM_POD { (ports.source, ports.destination) } else { (ports.destination, ports.source) };
}
