//! The parameters of a test that runs for every hook and family, and their addresses.

use std::net::{IpAddr, SocketAddr};

use millrace_lab::frame::{DEVICE_MAC, Frame, Icmp, Layer, flag};
use millrace_lab::program::{Bed, BedBuilder, DEVICE, Hook, NEXT_HOP_MAC, Outcome, hash_of, resolved_way};
use proxy_common::config::{DEFAULT_MARK, HANDOVER_MAGIC};
use proxy_common::verdict::Reason;
use proxy_common::way::FOU_PORT;

/// Declares each function as tests: for both ingress programs and both families.
macro_rules! each_ingress {
    ($($name:ident)+) => {$(
        mod $name {
            use crate::case::{Case, Family::{V4, V6}};
            use millrace_lab::program::Hook::{TcIngress, XdpIngress};

            #[test] fn xdp_ipv4() { super::$name(Case { hook: XdpIngress, family: V4 }); }
            #[test] fn xdp_ipv6() { super::$name(Case { hook: XdpIngress, family: V6 }); }
            #[test] fn tc_ipv4() { super::$name(Case { hook: TcIngress, family: V4 }); }
            #[test] fn tc_ipv6() { super::$name(Case { hook: TcIngress, family: V6 }); }
        }
    )+};
}
pub(crate) use each_ingress;

/// Declares each function as tests for clients outside, as [`each_ingress`] does, and for pods, in
/// both families.
macro_rules! each_client {
    ($($name:ident)+) => {
        $crate::case::each_ingress! { $($name)+ }

        mod of_a_pod {$(
            mod $name {
                use crate::case::{Case, Family::{V4, V6}};
                use millrace_lab::program::Hook::TcPodIn;

                #[test] fn ipv4() { super::super::$name(Case { hook: TcPodIn, family: V4 }); }
                #[test] fn ipv6() { super::super::$name(Case { hook: TcPodIn, family: V6 }); }
            }
        )+}
    };
}
pub(crate) use each_client;

/// Declares each function as tests: for both ingress programs.
macro_rules! each_hook {
    ($($name:ident)+) => {$(
        mod $name {
            use millrace_lab::program::Hook::{TcIngress, XdpIngress};

            #[test] fn xdp() { super::$name(XdpIngress); }
            #[test] fn tc() { super::$name(TcIngress); }
        }
    )+};
}
pub(crate) use each_hook;

/// Declares each function as tests: for both families.
macro_rules! each_family {
    ($($name:ident)+) => {$(
        mod $name {
            use crate::case::Family::{V4, V6};

            #[test] fn ipv4() { super::$name(V4); }
            #[test] fn ipv6() { super::$name(V6); }
        }
    )+};
}
pub(crate) use each_family;

/// Declares each function as tests: for both ingress programs, both families inside and outside,
/// and both encapsulations.
macro_rules! each_tunnel {
    ($($name:ident)+) => {$(
        mod $name {
            crate::case::each_outer! { $name ipip Ipip }
            crate::case::each_outer! { $name fou Fou }
        }
    )+};
}
pub(crate) use each_tunnel;

/// Does the same as [`each_tunnel`] for one encapsulation.
macro_rules! each_outer {
    ($name:ident $module:ident $encapsulation:ident) => {
        mod $module {
            use crate::case::Encapsulation::$encapsulation;
            use crate::case::{
                Case,
                Family::{V4, V6},
                Tunnel,
            };
            use millrace_lab::program::Hook::{self, TcIngress, XdpIngress};

            fn run(hook: Hook, family: crate::case::Family, outer: crate::case::Family) {
                super::super::$name(Tunnel {
                    case: Case { hook, family },
                    outer,
                    encapsulation: $encapsulation,
                });
            }

            #[test]
            fn xdp_ipv4_in_ipv4() {
                run(XdpIngress, V4, V4);
            }
            #[test]
            fn xdp_ipv4_in_ipv6() {
                run(XdpIngress, V4, V6);
            }
            #[test]
            fn xdp_ipv6_in_ipv4() {
                run(XdpIngress, V6, V4);
            }
            #[test]
            fn xdp_ipv6_in_ipv6() {
                run(XdpIngress, V6, V6);
            }
            #[test]
            fn tc_ipv4_in_ipv4() {
                run(TcIngress, V4, V4);
            }
            #[test]
            fn tc_ipv4_in_ipv6() {
                run(TcIngress, V4, V6);
            }
            #[test]
            fn tc_ipv6_in_ipv4() {
                run(TcIngress, V6, V4);
            }
            #[test]
            fn tc_ipv6_in_ipv6() {
                run(TcIngress, V6, V6);
            }
        }
    };
}
pub(crate) use each_outer;

/// Address family of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// The parameters of a test.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The program for the client's packets: an ingress program, or that of pods.
    pub hook: Hook,
    /// The family of the client's packets.
    pub family: Family,
}

/// The parameters of a test about encapsulated packets.
#[derive(Clone, Copy, Debug)]
pub struct Tunnel {
    /// Hook, and family of the client's packets.
    pub case: Case,
    /// Family of the outer header.
    pub outer: Family,
    /// The bytes between the headers.
    pub encapsulation: Encapsulation,
}

/// The encapsulation: the bytes between the outer and the inner IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encapsulation {
    /// Nothing.
    Ipip,
    /// A UDP header.
    Fou,
}

/// The client's source port.
pub const CLIENT_PORT: u16 = 40000;
/// The frontend's port.
pub const VIP_PORT: u16 = 80;
/// The backends' port.
pub const TARGET_PORT: u16 = 8080;

impl Family {
    /// Returns the one of two addresses that is of this family.
    #[track_caller]
    pub fn pick(self, v4: &str, v6: &str) -> IpAddr {
        match self {
            Self::V4 => v4.parse().unwrap(),
            Self::V6 => v6.parse().unwrap(),
        }
    }

    /// Returns the error "nothing serves the port".
    pub fn port_unreachable(self) -> Icmp {
        let (kind, code) = if self == Self::V4 { (3, 3) } else { (1, 4) };
        Icmp { kind, code, rest: [0; 4] }
    }

    /// Returns the error "too large" with the size that fits.
    #[track_caller]
    pub fn too_big<N: TryInto<u32, Error: std::fmt::Debug>>(self, mtu: N) -> Icmp {
        let (kind, code) = if self == Self::V4 { (3, 4) } else { (2, 0) };
        Icmp { kind, code, rest: mtu.try_into().unwrap().to_be_bytes() }
    }

    /// Returns the address of node `number`. Node 1 is the node of the programs.
    pub fn node(self, number: u8) -> IpAddr {
        self.pick(&format!("192.0.2.{number}"), &format!("2001:db8:2::{number}"))
    }
}

impl Case {
    /// Returns a client's address and port: outside the cluster, or of a pod.
    pub fn client(self) -> SocketAddr {
        SocketAddr::new(self.family.pick("198.51.100.10", "2001:db8:51::10"), CLIENT_PORT)
    }

    /// Returns the frontend.
    pub fn vip(self) -> SocketAddr {
        SocketAddr::new(self.family.pick("203.0.113.1", "2001:db8:113::1"), VIP_PORT)
    }

    /// Returns pod `number` of this node.
    pub fn pod(self, number: u8) -> SocketAddr {
        let address = self.family.pick(&format!("10.1.0.{number}"), &format!("fd00:10:1::{number}"));
        SocketAddr::new(address, TARGET_PORT)
    }

    /// Returns the client's TCP packet to the frontend, with `flag` bits and, unless it is a SYN,
    /// with a payload.
    pub fn tcp(self, flags: u8) -> Frame {
        self.tcp_from(CLIENT_PORT, flags)
    }

    /// Returns the packet of [`Case::tcp`] from another port.
    pub fn tcp_from(self, port: u16, flags: u8) -> Frame {
        let frame = Frame::ip(self.client().ip(), self.vip().ip()).tcp(port, VIP_PORT, flags);
        if flags & flag::SYN == 0 { frame.payload(&b"GET / HTTP/1.0\r\n\r\n"[..]) } else { frame }
    }

    /// Returns the client's datagram to the frontend.
    pub fn udp(self) -> Frame {
        Frame::ip(self.client().ip(), self.vip().ip()).udp(CLIENT_PORT, VIP_PORT).payload(&b"a question"[..])
    }

    /// Returns pod `number` of another node.
    pub fn remote_pod(self, number: u8) -> SocketAddr {
        let address = self.family.pick(&format!("10.2.0.{number}"), &format!("fd00:10:2::{number}"));
        SocketAddr::new(address, TARGET_PORT)
    }

    /// Returns the reason that counts a client's packet to a backend on this node.
    pub fn served(self) -> Reason {
        if self.hook == Hook::TcPodIn { Reason::ServedPod } else { Reason::ServedLocal }
    }

    /// Returns the program that replies to the client pass.
    pub fn way_out(self) -> Hook {
        if self.hook == Hook::TcPodIn { Hook::TcPodOut } else { Hook::TcEgress }
    }

    /// Empties the client's ICMP buckets for an hour.
    pub fn exhaust_icmp(self, bed: &Bed) {
        if self.hook == Hook::TcPodIn {
            bed.exhaust_icmp_of_pod(DEVICE);
        } else {
            bed.exhaust_icmp(self.client().ip());
        }
    }

    /// Runs the program on a frame.
    #[track_caller]
    pub fn arrives(self, bed: &Bed, frame: &Frame) -> Outcome {
        bed.send(self.hook, frame)
    }

    /// Runs the program on a frame. It must be passed to the stack as `expected`, marked as
    /// handled, and counted once under `reason`.
    #[track_caller]
    pub fn is_delivered(self, bed: &Bed, frame: &Frame, expected: &Frame, reason: Reason) {
        let outcome = self.arrives(bed, frame);
        outcome.assert_passed(expected).assert_counted(reason);
        match self.hook {
            Hook::XdpIngress => {
                assert_eq!(outcome.run.metadata[..], HANDOVER_MAGIC.to_ne_bytes(), "handover\n{outcome}");
            }
            _ => assert_eq!(outcome.run.mark & DEFAULT_MARK, DEFAULT_MARK, "mark\n{outcome}"),
        }
    }
}

impl Tunnel {
    /// Returns a bed with programs of this encapsulation.
    pub fn bed(self) -> Bed {
        self.load(Bed::builder())
    }

    /// Returns such a bed with other settings.
    pub fn load(self, builder: BedBuilder) -> Bed {
        match self.encapsulation {
            Encapsulation::Ipip => builder.load(),
            Encapsulation::Fou => builder.fou().load(),
        }
    }

    /// Returns the bytes of the outer headers.
    pub fn overhead(self) -> u16 {
        let network = if self.outer == Family::V4 { 20 } else { 40 };
        if self.encapsulation == Encapsulation::Fou { network + 8 } else { network }
    }

    /// Returns a packet as node `from` sends it to node `to`. `hint` includes its flag bits.
    pub fn around(self, inner: &Frame, from: u8, to: u8, hint: u16) -> Frame {
        self.between(inner, (self.outer.node(from), self.outer.node(to)), hint)
    }

    /// Returns the packet of [`Tunnel::around`] from one address to another.
    pub fn between(self, inner: &Frame, (source, destination): (IpAddr, IpAddr), hint: u16) -> Frame {
        let mut layer = Layer::ip(source, destination);
        match &mut layer {
            Layer::Ipv4(ip) => (ip.id, ip.dont_fragment) = (hint, true),
            Layer::Ipv6(ip) => ip.flow_label = hint.into(),
            other => panic!("{other:?} is no IP header"),
        }
        let frame = inner.clone().encapsulated(layer);
        match self.encapsulation {
            Encapsulation::Ipip => frame,
            Encapsulation::Fou => frame.in_udp(0xc000 | hash_of(inner) as u16, FOU_PORT),
        }
    }

    /// Returns whether the outer header may name a backend's pod. IPVS writes such headers in the
    /// packet's own family.
    pub fn may_be_for_a_pod(self) -> bool {
        self.encapsulation == Encapsulation::Ipip && self.outer == self.case.family
    }

    /// Returns the way from this node to node `number`.
    pub fn way(self, bed: &Bed, number: u8) -> u32 {
        bed.way(resolved_way(self.outer.node(1), self.outer.node(number)))
    }

    /// Returns a client's frame as this node sends it on to node `to`.
    pub fn forwarded(self, frame: &Frame, to: u8, hint: u16) -> Frame {
        let sent = self.around(&frame.clone().with_hop_limit(63), 1, to, hint);
        sent.with_macs(DEVICE_MAC, NEXT_HOP_MAC)
    }
}
