//! The judgement of the pod firewall about a packet: at the device of the pod that sends it, behind the translation, and at
//! the device of the pod that gets it.
//!
//! Its truth is `policy` of `proxy-ebpf`. Packets that `explain` can ask for have a plain header and ports, so the
//! judgement of fragments, ICMP and unusual headers is not here.

mod guard;
mod judge;
#[cfg(test)]
mod judge_tests;
mod judged;

pub use guard::{Crossed, Guard, PolicyRun};
pub use judged::{CLOSED_BY_NFTABLES, Judged, Ruling};
