//! CONFIG and AGENT: what is fixed when the programs are loaded, and what the agent tells them while it runs.

/// Names of the load-time constants in the BPF object's read-only data; the verifier sees their values and
/// removes what is off. Each is a `u32`.
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
}

/// Index into AGENT: monotonic seconds of the agent's last heartbeat.
pub const AGENT_HEARTBEAT: u32 = 0;
/// Index into AGENT: non-zero once this node has made a flow entry whose reply leaves through tc_egress.
/// Written by the programs; lets tc_egress skip its look-up on nodes that have served nothing.
pub const AGENT_SERVED: u32 = 1;
/// Number of u64 words in AGENT.
pub const AGENT_WORDS: u32 = 8;

/// Seconds after which a silent agent's ways are not believed and the FIB is asked.
pub const HEARTBEAT_SECONDS: u32 = 30;

/// Default mark and mask of packets that go up: one bit that kube-proxy, Cilium and Calico leave free.
pub const DEFAULT_MARK: u32 = 0x0008_0000;

/// First word of the metadata XDP hands to TC in front of a frame it has translated.
pub const HANDOVER_MAGIC: u32 = 0x4d4c_5243;
