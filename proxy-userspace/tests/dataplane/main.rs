//! The eBPF data plane on this kernel. Needs root and a BPF file system.

mod attach;
mod capability;
mod open;
mod support;
mod sync;
