//! Load-time constants of the programs, and AGENT: the words that the agent writes while it runs.

use core::ops::RangeInclusive;

/// The names of the load-time constants in the BPF object's read-only data.
///
/// The verifier sees the values and removes the code that they switch off. Each constant is a
/// `u32`, or several where its comment says so.
pub mod global {
    /// The table of a flow entry's [`Limits`](crate::timeouts::Limits), `LIMITS_WORDS` words.
    pub const FLOW_LIMITS: &str = "FLOW_LIMITS";
    /// The mark of packets that are passed to the stack: `mark = mark & !MARK_MASK | MARK_VALUE`.
    pub const MARK_VALUE: &str = "MARK_VALUE";
    /// The bits of the mark that Millrace owns. 0 = packets are not marked.
    pub const MARK_MASK: &str = "MARK_MASK";
    /// The kinds of Service addresses (`VIP_*` bits) that refuse unknown ports. 0 = none.
    pub const REJECT_UNKNOWN: &str = "REJECT_UNKNOWN";
    /// Non-zero if `bpf_skb_adjust_room` accepts the flags for decapsulation (Linux 6.3 and later).
    pub const TC_DECAP_FLAGS: &str = "TC_DECAP_FLAGS";
    /// First of the ports of this node that SNAT uses for connections to backends on other nodes.
    pub const SNAT_PORT_FIRST: &str = "SNAT_PORT_FIRST";
    /// Number of those ports.
    pub const SNAT_PORT_COUNT: &str = "SNAT_PORT_COUNT";
    /// The first port at which the programs look for replies to SNAT. The range has all ports for SNAT, and
    /// those that connections still have after a change of the setting.
    pub const SNAT_REPLY_FIRST: &str = "SNAT_REPLY_FIRST";
    /// The number of these ports.
    pub const SNAT_REPLY_COUNT: &str = "SNAT_REPLY_COUNT";
    /// Non-zero if `bpf_fib_lookup` returns the preferred source address of a route (Linux 6.7 and
    /// later).
    pub const FIB_SOURCE: &str = "FIB_SOURCE";
    /// Non-zero if packets to other nodes are encapsulated in UDP (FoU), zero for IP in IP.
    pub const DSR_FOU: &str = "DSR_FOU";
    /// The encapsulations that this node decapsulates: `TAKES_*` bits.
    pub const DSR_TAKES: &str = "DSR_TAKES";
    /// Non-zero if pods of this node may decapsulate and answer clients themselves.
    pub const DSR_POD: &str = "DSR_POD";
    /// IPv4 prefix of outer source addresses that all nodes share, bytes in network order (decision
    /// 76).
    pub const OUTER_PREFIX4: &str = "OUTER_PREFIX4";
    /// The mask of the prefix. 0 = there is no prefix.
    pub const OUTER_MASK4: &str = "OUTER_MASK4";
    /// IPv6 prefix of outer source addresses, four words.
    pub const OUTER_PREFIX6: &str = "OUTER_PREFIX6";
    /// The mask of the prefix, four words. All zero = there is no prefix.
    pub const OUTER_MASK6: &str = "OUTER_MASK6";
    /// Non-zero if this node sends from that prefix, each flow from another address of it.
    pub const OUTER_SPREAD: &str = "OUTER_SPREAD";
    /// The data plane that this node's connections are shared with: a `SHARE_*` word.
    pub const SHARE: &str = "SHARE";
    /// Non-zero if the socket hooks serve only sockets of the node's own network namespace.
    pub const SOCKET_NODE_ONLY: &str = "SOCKET_NODE_ONLY";
}

/// Bit of `DSR_TAKES`: packets encapsulated in IP.
pub const TAKES_IPIP: u32 = 1 << 0;
/// Bit of `DSR_TAKES`: packets encapsulated in UDP (FoU).
pub const TAKES_FOU: u32 = 1 << 1;
/// Bit of `DSR_TAKES`: the kernel decapsulates packets for pods that other nodes encapsulate in IP (`--pod-routes ipip`).
pub const TAKES_POD_PACKETS: u32 = 1 << 2;

/// Index into AGENT: monotonic seconds of the agent's last heartbeat.
pub const AGENT_HEARTBEAT: u32 = 0;
/// Index into AGENT: the number of Service ports that were degraded after the agent's last sync.
pub const AGENT_DEGRADED: u32 = 1;
/// Indices into AGENT: the other failures of the last sync. They count whether the node serves
/// nothing, failed devices, and failed map entries.
pub const AGENT_FAILURES: [u32; 3] = [2, 3, 4];
/// Index into AGENT: the `SHARE_*` word of the attached programs.
pub const AGENT_SHARE: u32 = 5;
/// Index into AGENT: the monotonic second since which the attached programs have had that word.
pub const AGENT_SHARE_SINCE: u32 = 6;
/// Index into AGENT: the number of backends, IPv4 in the low half and IPv6 in the high half, with
/// [`COUNTED`] set.
pub const AGENT_BACKENDS: u32 = 7;
/// Bit of the words at [`AGENT_BACKENDS`] and [`AGENT_FLOWS`]: an agent wrote the word.
pub const COUNTED: u64 = 1 << 63;
/// Index into AGENT: the monotonic second up to which no connection moves to FLOWS. An agent that copies
/// FLOWS into a larger or smaller map needs them to stand still. The time ends by itself, should the agent
/// be killed meanwhile.
pub const AGENT_HOLD: u32 = 8;
/// Index into AGENT: the first port of `--snat-ports` in bits 0 to 15, the last one in bits 16 to 31; zero if
/// no agent wrote it.
pub const AGENT_SNAT_PORTS: u32 = 9;
/// Index into AGENT: the entries of FLOWS at the agent's last walk, IPv4 in the low half and IPv6 in the high half,
/// with [`COUNTED`] set.
pub const AGENT_FLOWS: u32 = 10;
/// Index into AGENT: the cookie of the node's own network namespace, in which the agent runs. It is no constant of the
/// programs, so that they do not differ from one start of the node to the next.
pub const AGENT_NAMESPACE: u32 = 11;
/// The number of `u64` words in AGENT.
pub const AGENT_WORDS: u32 = 12;

/// `SHARE_*` word: no mode change. The programs serve all connections.
pub const SHARE_ALONE: u32 = 0;
/// `SHARE_*` word: eBPF is the newer mode of a mode change.
///
/// The programs serve new connections and datagrams. TCP and SCTP connections without a flow entry
/// began before and belong to IPVS.
pub const SHARE_NEWER: u32 = 1;
/// `SHARE_*` word: eBPF is the older mode of a mode change.
///
/// The programs serve TCP and SCTP connections with a flow entry. New ones and datagrams belong to
/// IPVS. A connection of which a director keeps no entry belongs to eBPF.
pub const SHARE_OLDER: u32 = 2;
/// Bit of `SHARE_NEWER` and `SHARE_OLDER`: the mode change was turned round.
///
/// The owner of connections that a director has no entry of is then the other mode (decision 102).
pub const SHARE_TURNED: u32 = 4;

/// Seconds after the last heartbeat for which the programs believe the agent's WAYS. Later they ask
/// the FIB.
pub const HEARTBEAT_SECONDS: u32 = 30;

/// Default mark and mask of packets that are passed to the stack. The bit is below those of
/// kube-proxy (0xc000), portmap (0x2000), and Calico and Cilium (the upper half).
pub const DEFAULT_MARK: u32 = 0x1000;

/// Default ports of SNAT. They are above the ports that Linux gives to sockets by default.
pub const DEFAULT_SNAT_PORTS: RangeInclusive<u16> = 61000..=65535;

/// The number of ports in a group of SERVED_PORTS.
pub const PORT_GROUP: u32 = 64;
/// The number of entries in SERVED_PORTS.
pub const PORT_GROUPS: u32 = 65536 / PORT_GROUP;

/// First word of the metadata that XDP puts in front of a translated frame for TC.
pub const HANDOVER_MAGIC: u32 = 0x4d4c_5243;

/// Converts nanoseconds of a monotonic clock to seconds, at most 17 ms late. Good for 136 years of
/// uptime.
///
/// A multiplication does it. A division would cost more than everything else that a flow look-up
/// does with the time (decision 16).
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
    fn seconds_are_never_ahead_and_at_most_one_behind() {
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
