//! The test bed: a cluster of network namespaces, agents in it, traffic through it, and proof of what happened.
//!
//! - [`net`]: namespaces, links, offloads; all through system calls and rtnetlink, never a shell.
//! - [`topology`]: the bed itself: a client, a router, nodes and their pods.
//! - [`capture`]: what crossed the wires.
//! - [`traffic`]: servers in pods that say whom they see, and clients that ask them.
//! - [`frame`]: frames to send and to expect, parsed, printed, compared.
//! - [`program`]: the real programs, run on frames without any device.

pub mod capture;
pub mod frame;
pub mod net;
pub mod program;
pub mod topology;
pub mod traffic;
