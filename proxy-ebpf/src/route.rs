//! The next hop towards another node.

use aya_ebpf::bindings::{BPF_FIB_LKUP_RET_NO_NEIGH, BPF_FIB_LKUP_RET_SUCCESS, bpf_fib_lookup};
use aya_ebpf::helpers::generated;
use proxy_common::verdict::Reason;
use proxy_common::way::{WAY_IPV4, WAY_RESOLVED, WAY_VALID, WAY_XDP, Way};

use crate::maps;
use crate::observe;
use crate::packet::Packet;
use crate::verdict::{HAND_TO_TC, Verdict};

const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

/// Where a frame leaves, and with which Ethernet addresses (destination, source).
#[derive(Clone, Copy)]
pub struct NextHop {
    pub device: u32,
    pub addresses: [u16; 6],
}

/// The way of a backend on another node.
#[inline(always)]
pub fn lookup_way(id: u32) -> Result<&'static Way, Verdict> {
    match maps::WAYS.get(id) {
        Some(way) if way.flags & WAY_VALID != 0 && way.mtu != 0 => Ok(way),
        _ => Err(Verdict::Drop(Reason::NoWay)),
    }
}

/// The next hop of a way: what the agent resolved, as long as it lives, else what the FIB says.
#[inline(always)]
pub fn resolve<P: Packet>(packet: &P, way: &Way) -> Result<NextHop, Verdict> {
    let usable = WAY_RESOLVED | if packet.needs_xdp_way() { WAY_XDP } else { 0 };
    if way.flags & usable == usable && observe::agent_is_alive() {
        return Ok(NextHop {
            device: way.device,
            addresses: ethernet_addresses(way.destination_mac, way.source_mac),
        });
    }
    ask_fib(packet, way)
}

#[inline(always)]
fn ethernet_addresses(destination: [u8; 6], source: [u8; 6]) -> [u16; 6] {
    let words = |[first, second, third, fourth, fifth, sixth]: [u8; 6]| {
        [[first, second], [third, fourth], [fifth, sixth]].map(u16::from_ne_bytes)
    };
    let [first, second, third] = words(destination);
    let [fourth, fifth, sixth] = words(source);
    [first, second, third, fourth, fifth, sixth]
}

#[inline(never)]
fn ask_fib<P: Packet>(packet: &P, way: &Way) -> Result<NextHop, Verdict> {
    // SAFETY: all-zero is valid for this plain C struct.
    let mut query: bpf_fib_lookup = unsafe { core::mem::zeroed() };
    let [_, _, _, source] = way.source;
    let [_, _, _, target] = way.target;
    if way.flags & WAY_IPV4 != 0 {
        query.family = AF_INET;
        query.__bindgen_anon_3.ipv4_src = source;
        query.__bindgen_anon_4.ipv4_dst = target;
    } else {
        query.family = AF_INET6;
        query.__bindgen_anon_3.ipv6_src = way.source;
        query.__bindgen_anon_4.ipv6_dst = way.target;
    }
    query.ifindex = packet.device();
    let size = size_of::<bpf_fib_lookup>() as i32;
    // SAFETY: the context is the kernel's and the query is as large as said.
    let answer = unsafe { generated::bpf_fib_lookup(packet.context(), &raw mut query, size, 0) };
    let mut next = NextHop { device: query.ifindex, addresses: [0; 6] };
    if !packet.needs_xdp_way() {
        let known =
            answer == i64::from(BPF_FIB_LKUP_RET_SUCCESS) || answer == i64::from(BPF_FIB_LKUP_RET_NO_NEIGH);
        return if known { Ok(next) } else { Err(Verdict::Drop(Reason::NoWay)) };
    }
    // Only a device known to have XDP takes frames from XDP: the one the frame came in by, and the way's own.
    let reachable =
        query.ifindex == packet.device() || query.ifindex == way.device && way.flags & WAY_XDP != 0;
    if answer != i64::from(BPF_FIB_LKUP_RET_SUCCESS) || !reachable {
        return Err(HAND_TO_TC);
    }
    next.addresses = ethernet_addresses(query.dmac, query.smac);
    Ok(next)
}
