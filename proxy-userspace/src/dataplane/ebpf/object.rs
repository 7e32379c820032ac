//! The programs and maps as `cargo xtask build` links them.

/// The BPF object of this agent.
pub static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("MILLRACE_BPF_OBJECT"));
