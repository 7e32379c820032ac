//! The explanation of a packet's way: why it goes where it goes.
//!
//! Two engines answer. The walk reads the pinned tables with the rules of `proxy-common`, and yields the steps. The dry
//! run ([`dataplane::ebpf::dry_run`](crate::dataplane::ebpf::dry_run)) lets the programs themselves decide. Both must
//! come to the same reason.

mod access;
mod call;
#[cfg(test)]
mod call_tests;
mod choose;
mod explainer;
mod firewall;
#[cfg(test)]
mod fixture;
mod flows;
mod packet;
mod send;
mod step;
mod text;
mod walk;
#[cfg(test)]
mod walk_tests;
mod walker;

pub use call::{Call, Caller, walk_call};
pub use explainer::{Door, Engines, Explainer, Pass, Run};
pub use firewall::{CLOSED_BY_NFTABLES, Crossed, Guard, Judged, PolicyRun, Ruling};
pub use step::{End, Step, Verdict, Walk};
pub use walk::walk;
pub use walker::Past;
