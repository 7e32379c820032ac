//! The eBPF data plane on this kernel. Needs root and a BPF file system.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod attach;
mod capability;
mod explain;
mod explain_ports;
mod flows;
mod metrics;
mod migrate;
mod open;
mod recorder;
mod resize;
mod sockets;
mod support;
mod sync;
mod top;
