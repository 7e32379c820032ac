//! The programs and maps as `cargo xtask build` links them.

/// The BPF object of this agent.
pub static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("MILLRACE_BPF_OBJECT"));
/// The BPF object of `millrace monitor --kernel`.
pub static KERNEL_OBJECT: &[u8] = aya::include_bytes_aligned!(env!("MILLRACE_KERNEL_BPF_OBJECT"));
/// The BPF object of the pod firewall.
pub static POLICY_OBJECT: &[u8] = aya::include_bytes_aligned!(env!("MILLRACE_POLICY_BPF_OBJECT"));
