//! Load-time constants.
//!
//! The agent overrides them before it loads the programs, so the verifier sees their values. Names and
//! meaning: `proxy_common::config::global`.

use aya_ebpf::Global;
use proxy_common::config::{
    DEFAULT_MARK, DEFAULT_SNAT_PORTS, SHARE_ALONE, TAKES_FOU, TAKES_IPIP, TAKES_POD_PACKETS,
};
use proxy_common::timeouts::{LIMITS_ENTRIES, LIMITS_WORDS, Limits, Timeouts};
use proxy_common::vip::VIP_CLUSTER_IP;

use crate::header::Udp;

#[unsafe(no_mangle)]
pub static FLOW_LIMITS: Global<[u32; LIMITS_WORDS]> = Global::new(Timeouts::DEFAULT.table());
#[unsafe(no_mangle)]
pub static MARK_VALUE: Global<u32> = Global::new(DEFAULT_MARK);
#[unsafe(no_mangle)]
pub static MARK_MASK: Global<u32> = Global::new(DEFAULT_MARK);
#[unsafe(no_mangle)]
pub static REJECT_UNKNOWN: Global<u32> = Global::new(VIP_CLUSTER_IP);

#[unsafe(no_mangle)]
pub static TC_DECAP_FLAGS: Global<u32> = Global::new(1);
#[unsafe(no_mangle)]
pub static SNAT_PORT_FIRST: Global<u32> = Global::new(*DEFAULT_SNAT_PORTS.start() as u32);
#[unsafe(no_mangle)]
pub static SNAT_PORT_COUNT: Global<u32> =
    Global::new((*DEFAULT_SNAT_PORTS.end() - *DEFAULT_SNAT_PORTS.start()) as u32 + 1);
#[unsafe(no_mangle)]
pub static SNAT_REPLY_FIRST: Global<u32> = Global::new(*DEFAULT_SNAT_PORTS.start() as u32);
#[unsafe(no_mangle)]
pub static SNAT_REPLY_COUNT: Global<u32> =
    Global::new((*DEFAULT_SNAT_PORTS.end() - *DEFAULT_SNAT_PORTS.start()) as u32 + 1);
#[unsafe(no_mangle)]
pub static FIB_SOURCE: Global<u32> = Global::new(0);

#[unsafe(no_mangle)]
pub static DSR_FOU: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
pub static DSR_TAKES: Global<u32> = Global::new(TAKES_IPIP);
#[unsafe(no_mangle)]
pub static DSR_POD: Global<u32> = Global::new(0);

#[unsafe(no_mangle)]
pub static OUTER_PREFIX4: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
pub static OUTER_MASK4: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
pub static OUTER_PREFIX6: Global<[u32; 4]> = Global::new([0; 4]);
#[unsafe(no_mangle)]
pub static OUTER_MASK6: Global<[u32; 4]> = Global::new([0; 4]);
#[unsafe(no_mangle)]
pub static OUTER_SPREAD: Global<u32> = Global::new(0);

#[unsafe(no_mangle)]
pub static SHARE: Global<u32> = Global::new(SHARE_ALONE);

#[unsafe(no_mangle)]
pub static SOCKET_NODE_ONLY: Global<u32> = Global::new(0);

/// Whether a port, in network byte order, may be that of a reply to SNAT.
#[inline(always)]
pub fn is_snat_port(port: u16) -> bool {
    u32::from(u16::from_be(port)).wrapping_sub(SNAT_REPLY_FIRST.load()) < SNAT_REPLY_COUNT.load()
}

/// Whether this node decapsulates packets in IP.
#[inline(always)]
pub fn takes_ipip() -> bool {
    DSR_TAKES.load() & TAKES_IPIP != 0
}

/// Whether this node decapsulates packets in UDP.
#[inline(always)]
pub fn takes_fou() -> bool {
    DSR_TAKES.load() & TAKES_FOU != 0
}

/// Whether nodes' kernels decapsulate packets in IP for pods.
#[inline(always)]
pub fn takes_pod_packets() -> bool {
    DSR_TAKES.load() & TAKES_POD_PACKETS != 0
}

/// Whether nodes share prefixes of outer source addresses.
#[inline(always)]
pub fn has_outer_sources() -> bool {
    // SAFETY: the first of the mask's words, which is not zero in any prefix.
    OUTER_MASK4.load() != 0 || unsafe { (&raw const OUTER_MASK6).cast::<u32>().read_volatile() } != 0
}

/// The limits of a flow entry, by [`Flow::limits_index`](proxy_common::flow::Flow::limits_index).
#[inline(always)]
pub fn flow_limits(index: usize) -> Limits {
    let place = (&raw const FLOW_LIMITS).cast::<Limits>();
    // SAFETY: the table is an array of words in the order of `Limits`, and the remainder bounds the index.
    unsafe { place.add(index % LIMITS_ENTRIES).read_volatile() }
}

/// Bytes that this node puts between the outer IP header and the inner one: those of a UDP header, or none.
#[inline(always)]
pub fn tunnel_header_bytes() -> usize {
    if DSR_FOU.load() != 0 { size_of::<Udp>() } else { 0 }
}

/// Whether pods of this node may answer clients themselves.
#[inline(always)]
pub fn pods_decapsulate() -> bool {
    DSR_POD.load() != 0
}
