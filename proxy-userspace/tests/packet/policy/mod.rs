//! The pod firewall: one pod of this node, and the packets that pass its device.

mod clusters;
mod connections;
mod datagrams;
mod errors;
mod fragments;
mod neighbours;
mod node;
mod shapes;
mod sources;
mod unknown;

use std::net::{IpAddr, SocketAddr};

use millrace_lab::frame::{Frame, Icmp, Layer, flag, protocol};
use millrace_lab::program::{DEVICE, Passage, PolicyBed, monotonic_seconds};
use proxy_common::policy::{NOT_ISOLATED, PEER_NODE, PEER_OWN_NODE, PolicyDirection, PolicyDrop, PolicyPod};
use proxy_common::{Addr4, Addr6};

use crate::case::Family;

/// The profile of the pod for connections to it.
const TO_POD: u32 = 10;
/// The profile of the pod for connections of it.
const FROM_POD: u32 = 20;
/// The class of the peer that both profiles name.
const FRIENDS: u32 = 1;
/// The class of a peer that no profile names.
const STRANGERS: u32 = 2;
/// The class of the node.
const NODES: u32 = 3;

/// The port of the pod's server, for TCP, UDP and SCTP.
const SERVED: u16 = 80;
/// A port of the pod that no rule names.
const CLOSED: u16 = 81;
/// The port at the friend that the pod may connect to.
const ASKED: u16 = 443;
/// A client's port.
const CLIENT: u16 = 40000;

const PASSED: Passage = Passage::Passed;
const ALLOWED: Passage = Passage::Allowed;
const DENIED: Passage = Passage::Dropped(PolicyDrop::Denied);
const UNKNOWN: Passage = Passage::Dropped(PolicyDrop::UnknownPod);
const FOREIGN: Passage = Passage::Dropped(PolicyDrop::ForeignSource);
const UNREADABLE: Passage = Passage::Dropped(PolicyDrop::Unreadable);

/// Returns the second of the programs' clock.
fn now() -> u32 {
    u32::try_from(monotonic_seconds()).unwrap()
}

/// A node with one pod.
struct World {
    bed: PolicyBed,
    family: Family,
    epoch: u32,
    generation: u32,
}

impl World {
    /// Returns a world whose pod is isolated in both directions.
    ///
    /// A friend may reach its server, and it may reach the friend's.
    fn new(family: Family) -> Self {
        let mut world = Self::with_profiles(family, TO_POD, FROM_POD);
        for number in [protocol::TCP, protocol::UDP, protocol::SCTP] {
            world.bed.allow(TO_POD, FRIENDS, Some(number), Some(SERVED));
            world.bed.allow(FROM_POD, FRIENDS, Some(number), Some(ASKED));
        }
        world
    }

    /// Returns the same just after the pod was isolated.
    fn lenient(family: Family) -> Self {
        let mut world = Self::new(family);
        world.set_pod_until(1, TO_POD, FROM_POD, now() + 30);
        world
    }

    /// Returns a world without rules.
    fn with_profiles(family: Family, ingress: u32, egress: u32) -> Self {
        let mut world = Self::without_pod(family);
        world.set_pod(1, ingress, egress);
        world
    }

    /// Returns a world whose pod is not known.
    fn without_pod(family: Family) -> Self {
        let mut world = Self { bed: PolicyBed::new(), family, epoch: 0, generation: 100 };
        world.bed.set_generation(1);
        let bits = if family == Family::V4 { 32 } else { 128 };
        for (address, value) in [
            (world.friend(), FRIENDS),
            (world.stranger(), STRANGERS),
            (world.node(), NODES | PEER_OWN_NODE | PEER_NODE),
            (world.other_node(), NODES | PEER_NODE),
        ] {
            world.bed.set_peer(address, bits, value);
        }
        world
    }

    /// Returns a world whose pod no policy selects.
    fn open(family: Family) -> Self {
        Self::with_profiles(family, NOT_ISOLATED, NOT_ISOLATED)
    }

    fn set_pod(&mut self, epoch: u32, ingress: u32, egress: u32) {
        self.set_pod_until(epoch, ingress, egress, 0);
    }

    /// Gives the pod a time until which packets without an entry may be replies.
    fn set_pod_until(&mut self, epoch: u32, ingress: u32, egress: u32, lenient_until: u32) {
        let mut pod = PolicyPod { ingress, egress, epoch, lenient_until, ..PolicyPod::default() };
        match self.pod() {
            IpAddr::V4(address) => pod.address4 = Addr4::from(address).0,
            IpAddr::V6(address) => pod.address6 = Addr6::from(address).0,
        }
        self.epoch = epoch;
        // As the agent does behind each change of a pod.
        self.generation += 1;
        self.bed.set_generation(self.generation);
        self.bed.set_pod(DEVICE, pod);
    }

    fn pod(&self) -> IpAddr {
        self.family.pick("10.1.0.7", "fd00:10:1::7")
    }

    fn friend(&self) -> IpAddr {
        self.family.pick("10.2.0.1", "fd00:10:2::1")
    }

    fn stranger(&self) -> IpAddr {
        self.family.pick("10.2.0.2", "fd00:10:2::2")
    }

    fn node(&self) -> IpAddr {
        self.family.node(1)
    }

    fn other_node(&self) -> IpAddr {
        self.family.node(2)
    }

    /// Returns a packet to the pod, without a transport header.
    fn incoming(&self, peer: IpAddr) -> Frame {
        Frame::ip(peer, self.pod())
    }

    /// Returns a packet of the pod, without a transport header.
    fn outgoing(&self, peer: IpAddr) -> Frame {
        Frame::ip(self.pod(), peer)
    }

    /// Returns a TCP packet of a client to the pod's server.
    fn request(&self, peer: IpAddr, flags: u8) -> Frame {
        self.incoming(peer).tcp(CLIENT, SERVED, flags)
    }

    /// Returns a TCP packet of the pod to the friend's server.
    fn call(&self, peer: IpAddr, flags: u8) -> Frame {
        self.outgoing(peer).tcp(CLIENT, ASKED, flags)
    }

    /// Returns an echo message between the pod and a peer.
    fn echo(&self, frame: Frame, is_reply: bool, identifier: u16) -> Frame {
        let kinds = if self.family == Family::V4 { [8, 0] } else { [128, 129] };
        let [high, low] = identifier.to_be_bytes();
        frame.layer(Icmp { kind: kinds[usize::from(is_reply)], code: 0, rest: [high, low, 0, 1] })
    }

    /// Sends a frame to the pod: the node's own, or one from elsewhere.
    #[track_caller]
    fn enter(&mut self, frame: &Frame) -> Passage {
        let is_nodes = frame.layers.iter().any(|layer| match layer {
            Layer::Ipv4(ip) => IpAddr::from(ip.source) == self.node(),
            Layer::Ipv6(ip) => IpAddr::from(ip.source) == self.node(),
            _ => false,
        });
        if is_nodes {
            return self.bed.send_from(0, PolicyDirection::Ingress, DEVICE, frame);
        }
        self.bed.send(PolicyDirection::Ingress, DEVICE, frame)
    }

    #[track_caller]
    fn leave(&mut self, frame: &Frame) -> Passage {
        self.bed.send(PolicyDirection::Egress, DEVICE, frame)
    }

    /// Opens a connection of the friend to the pod.
    #[track_caller]
    fn friend_connects(&mut self) {
        let syn = self.request(self.friend(), flag::SYN);
        assert_eq!(self.enter(&syn), ALLOWED);
        assert_eq!(self.leave(&syn.reply().with_flags(flag::SYN | flag::ACK)), PASSED);
    }

    /// Opens a connection of the pod to the friend.
    #[track_caller]
    fn pod_connects(&mut self) {
        let syn = self.call(self.friend(), flag::SYN);
        assert_eq!(self.leave(&syn), ALLOWED);
        assert_eq!(self.enter(&syn.reply().with_flags(flag::SYN | flag::ACK)), PASSED);
    }

    /// Returns the number of entries of connections.
    fn flows(&self) -> usize {
        match self.family {
            Family::V4 => self.bed.flows::<Addr4>().len(),
            Family::V6 => self.bed.flows::<Addr6>().len(),
        }
    }
}

/// Returns the frame with another hop limit in its first header.
fn with_hops(mut frame: Frame, hops: u8) -> Frame {
    match frame.layers.first_mut() {
        Some(Layer::Ipv4(ip)) => ip.ttl = hops,
        Some(Layer::Ipv6(ip)) => ip.hop_limit = hops,
        other => panic!("{other:?} has no hop limit"),
    }
    frame
}

/// Returns a socket address.
fn at(address: IpAddr, port: u16) -> SocketAddr {
    SocketAddr::new(address, port)
}
