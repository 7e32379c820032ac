//! Entry points of the [parts](proxy_common::part) of programs.

use aya_ebpf::macros::{classifier, xdp};
use aya_ebpf::programs::{TcContext, XdpContext};
use proxy_common::verdict::Program;

use crate::action::{finish, finish_ingress, finish_xdp};
use crate::hooks::{pod, tunnel, uplink};
use crate::maps::v4::V4;
use crate::maps::v6::V6;
use crate::packet::tc::{BARE, FRAMED, TcPacket};
use crate::packet::xdp::XdpPacket;
use crate::{announced, icmp};

macro_rules! uplink_parts {
    ($($xdp:ident $tc:ident $l3:ident = $walk:expr;)+) => {$(
        #[xdp(frags)]
        pub fn $xdp(context: XdpContext) -> u32 {
            let packet = XdpPacket::new(&context);
            finish_xdp(&packet, $walk(packet))
        }

        #[classifier]
        pub fn $tc(context: TcContext) -> i32 {
            let packet = TcPacket::<FRAMED>::new(&context);
            finish_ingress(&packet, $walk(packet))
        }

        #[classifier]
        pub fn $l3(context: TcContext) -> i32 {
            let packet = TcPacket::<BARE>::new(&context);
            finish_ingress(&packet, $walk(packet))
        }
    )+};
}

uplink_parts! {
    xdp_ipv6 tc_ipv6 l3_ipv6 = uplink::walk_client::<_, V6>;
    xdp_icmp4 tc_icmp4 l3_icmp4 = icmp::receive::<_, V4>;
    xdp_icmp6 tc_icmp6 l3_icmp6 = icmp::receive::<_, V6>;
    xdp_tunnel4 tc_tunnel4 l3_tunnel4 = tunnel::receive::<_, V4>;
    xdp_tunnel6 tc_tunnel6 l3_tunnel6 = tunnel::receive::<_, V6>;
    xdp_tun_icmp4 tc_tun_icmp4 l3_tun_icmp4 = tunnel::receive_icmp::<_, V4>;
    xdp_tun_icmp6 tc_tun_icmp6 l3_tun_icmp6 = tunnel::receive_icmp::<_, V6>;
    xdp_snat4 tc_snat4 l3_snat4 = uplink::walk_snat::<_, V4>;
    xdp_snat6 tc_snat6 l3_snat6 = uplink::walk_snat::<_, V6>;
    xdp_snat_reply4 tc_snat_reply4 l3_snat_reply4 = uplink::walk_snat_reply::<_, V4>;
    xdp_snat_reply6 tc_snat_reply6 l3_snat_reply6 = uplink::walk_snat_reply::<_, V6>;
    xdp_refusal4 tc_refusal4 l3_refusal4 = uplink::walk_refusal::<_, V4>;
    xdp_refusal6 tc_refusal6 l3_refusal6 = uplink::walk_refusal::<_, V6>;
}

/// Questions for a MAC address. Bare packets have no such questions.
#[xdp(frags)]
pub fn xdp_announced(context: XdpContext) -> u32 {
    let packet = XdpPacket::new(&context);
    finish_xdp(&packet, announced::receive(packet))
}

/// The same in `tc_ingress`.
#[classifier]
pub fn tc_announced(context: TcContext) -> i32 {
    let packet = TcPacket::<FRAMED>::new(&context);
    finish_ingress(&packet, announced::receive(packet))
}

macro_rules! pod_parts {
    ($($name:ident = $walk:expr;)+) => {$(
        #[classifier]
        pub fn $name(context: TcContext) -> i32 {
            let packet = TcPacket::<FRAMED>::new(&context);
            finish(Program::TcPodIn, $walk(packet), &packet)
        }
    )+};
}

pod_parts! {
    pod_ipv6 = pod::walk_client::<_, V6>;
    pod_icmp4 = icmp::receive_of_pod::<_, V4>;
    pod_icmp6 = icmp::receive_of_pod::<_, V6>;
    pod_snat4 = pod::walk_hairpin::<_, V4>;
    pod_snat6 = pod::walk_hairpin::<_, V6>;
    pod_snat_reply4 = pod::walk_hairpin_reply::<_, V4>;
    pod_snat_reply6 = pod::walk_hairpin_reply::<_, V6>;
    pod_refusal4 = pod::walk_refusal::<_, V4>;
    pod_refusal6 = pod::walk_refusal::<_, V6>;
}
