//! CONFIG and AGENT: what is fixed when the programs are loaded, and what the agent tells them while it runs.

use core::ops::RangeInclusive;

/// Names of the load-time constants in the BPF object's read-only data; the verifier sees their values and
/// removes what is off. Each is a `u32`, but for what is said to be four of them.
pub mod global {
    /// Seconds for `FLOW_SYN`.
    pub const TIMEOUT_SYN: &str = "TIMEOUT_SYN";
    /// Seconds for `FLOW_ESTABLISHED`.
    pub const TIMEOUT_ESTABLISHED: &str = "TIMEOUT_ESTABLISHED";
    /// Seconds for `FLOW_CLOSING`.
    pub const TIMEOUT_CLOSING: &str = "TIMEOUT_CLOSING";
    /// Seconds for `FLOW_DATAGRAM`.
    pub const TIMEOUT_DATAGRAM: &str = "TIMEOUT_DATAGRAM";
    /// The mark packets that go up carry, and its mask: `mark = mark & !MASK | VALUE`.
    pub const MARK_VALUE: &str = "MARK_VALUE";
    /// Bits of the mark that are ours. 0 = packets are not marked.
    pub const MARK_MASK: &str = "MARK_MASK";
    /// The kinds of service addresses (`VIP_*` bits) whose unknown ports are refused. 0 = none.
    pub const REJECT_UNKNOWN: &str = "REJECT_UNKNOWN";
    /// Non-zero where `bpf_skb_adjust_room` takes the flags for decapsulation (Linux 6.3 and later).
    pub const TC_DECAP_FLAGS: &str = "TC_DECAP_FLAGS";
    /// First port of this node that connections to backends on other nodes are translated to.
    pub const SNAT_PORT_FIRST: &str = "SNAT_PORT_FIRST";
    /// Number of those ports.
    pub const SNAT_PORT_COUNT: &str = "SNAT_PORT_COUNT";
    /// Non-zero where `bpf_fib_lookup` says which source address a route prefers (Linux 6.7 and later).
    pub const FIB_SOURCE: &str = "FIB_SOURCE";
    /// Non-zero where packets to other nodes are encapsulated in UDP (FoU), not in IP directly.
    pub const DSR_FOU: &str = "DSR_FOU";
    /// What this node decapsulates: `TAKES_*` bits.
    pub const DSR_TAKES: &str = "DSR_TAKES";
    /// Non-zero where pods of this node may answer clients themselves, out of tunnels.
    pub const DSR_POD: &str = "DSR_POD";
    /// Prefix that nodes may take the source of what they encapsulate from, in IPv4: an address, bytes in network order.
    pub const OUTER_PREFIX4: &str = "OUTER_PREFIX4";
    /// Its mask. 0 = there is no such prefix.
    pub const OUTER_MASK4: &str = "OUTER_MASK4";
    /// The same for IPv6, four words.
    pub const OUTER_PREFIX6: &str = "OUTER_PREFIX6";
    /// Its mask, four words. All zero = there is no such prefix.
    pub const OUTER_MASK6: &str = "OUTER_MASK6";
    /// Non-zero where this node takes them from there itself, for each flow another one.
    pub const OUTER_SPREAD: &str = "OUTER_SPREAD";
    /// With whom this node's connections are shared: a `SHARE_*` word.
    pub const SHARE: &str = "SHARE";
    /// Non-zero where only sockets of the node's own network namespace are served by the socket hooks.
    pub const SOCKET_NODE_ONLY: &str = "SOCKET_NODE_ONLY";
    /// Cookie of the node's own network namespace, the one the agent runs in: the low word.
    pub const NODE_NAMESPACE_LOW: &str = "NODE_NAMESPACE_LOW";
    /// The high word.
    pub const NODE_NAMESPACE_HIGH: &str = "NODE_NAMESPACE_HIGH";
}

/// Bit of `DSR_TAKES`: packets that are encapsulated in IP.
pub const TAKES_IPIP: u32 = 1 << 0;
/// Bit of `DSR_TAKES`: packets that are encapsulated in UDP (FoU).
pub const TAKES_FOU: u32 = 1 << 1;

/// Index into AGENT: monotonic seconds of the agent's last heartbeat.
pub const AGENT_HEARTBEAT: u32 = 0;
/// Index into AGENT: service ports that were degraded after the agent's last sync.
pub const AGENT_DEGRADED: u32 = 1;
/// Index into AGENT of what else the last sync failed on: whether this node serves nobody, devices, entries of maps.
pub const AGENT_FAILURES: [u32; 3] = [2, 3, 4];
/// Index into AGENT: the `SHARE_*` word of the programs that are attached.
pub const AGENT_SHARE: u32 = 5;
/// Index into AGENT: monotonic seconds since when they have had it.
pub const AGENT_SHARE_SINCE: u32 = 6;
/// Index into AGENT: how many backends exist, in IPv4 in the low half and in IPv6 in the high one; [`BACKENDS_COUNTED`] is set, too.
pub const AGENT_BACKENDS: u32 = 7;
/// Bit of that word: an agent wrote it.
pub const BACKENDS_COUNTED: u64 = 1 << 63;
/// Number of u64 words in AGENT.
pub const AGENT_WORDS: u32 = 8;

/// All connections are this mode's.
pub const SHARE_ALONE: u32 = 0;
/// New connections and datagrams are this mode's; TCP and SCTP connections that it does not know are IPVS', from before.
pub const SHARE_NEWER: u32 = 1;
/// TCP and SCTP connections that it knows are this mode's; new ones, and datagrams, are IPVS'. So is this mode's what a
/// director keeps nothing of.
pub const SHARE_OLDER: u32 = 2;
/// Bit of the other words: the change of mode was turned round, and what a director knows nothing of is whose it is in the other one.
pub const SHARE_TURNED: u32 = 4;

/// Seconds after which a silent agent's ways are not believed and the FIB is asked.
pub const HEARTBEAT_SECONDS: u32 = 30;

/// Default mark and mask of packets that go up: one bit below those of kube-proxy (0xc000), portmap (0x2000), Calico
/// and Cilium (the upper half).
pub const DEFAULT_MARK: u32 = 0x1000;

/// Default ports for connections to backends on other nodes: above those Linux gives to sockets by default.
pub const DEFAULT_SNAT_PORTS: RangeInclusive<u16> = 61000..=65535;

/// Ports a group of SERVED_PORTS holds.
pub const PORT_GROUP: u32 = 64;
/// Number of entries in SERVED_PORTS.
pub const PORT_GROUPS: u32 = 65536 / PORT_GROUP;

/// First word of the metadata XDP hands to TC in front of a frame it has translated.
pub const HANDOVER_MAGIC: u32 = 0x4d4c_5243;

/// Seconds of a monotonic clock in nanoseconds, within 17 ms: a multiplication where a division would cost more than
/// everything else a flow look-up does with the time. Good for 136 years of uptime.
#[inline(always)]
#[must_use]
pub const fn seconds(nanoseconds: u64) -> u32 {
    /// 2^32 x 2^24 / 10^9.
    const SCALE: u64 = 72_057_594;
    (((nanoseconds >> 24) * SCALE) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::seconds;

    #[test]
    fn seconds_are_never_early_and_at_most_one_late() {
        const NANOSECONDS: u64 = 1_000_000_000;
        for day in 0..20 * 365_u64 {
            for offset in [0, 1, 17_000_000, NANOSECONDS / 2, NANOSECONDS - 1] {
                let now = (day * 86_400 + 7) * NANOSECONDS + offset;
                let exact = (now / NANOSECONDS) as u32;
                assert!(exact - seconds(now) <= 1, "day {day}");
            }
        }
    }
}
