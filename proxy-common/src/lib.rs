//! The contract between the BPF programs and the agent, and nothing else.
//!
//! Every type here lives in a BPF map. None has padding (the build fails on it) and every bit pattern of
//! each is valid, so that neither side can hand the other something undefined. Addresses and ports are in
//! network byte order, everything else in the host's, unless a field says otherwise.
#![cfg_attr(not(test), no_std)]

pub mod addr;
pub mod affinity;
pub mod answer;
pub mod backend;
pub mod checksum;
pub mod config;
pub mod flow;
pub mod fragment;
pub mod frontend;
pub mod hash;
pub mod hop;
pub mod icmp;
mod layout;
pub mod name;
pub mod node_flow;
pub mod rules;
#[expect(clippy::indexing_slicing, reason = "a byte, or a bit, is an index into a table of as many entries")]
pub mod sctp;
pub mod selection;
pub mod socket;
pub mod source_range;
pub mod verdict;
pub mod vip;
pub mod way;

pub use addr::{Addr4, Addr6, Address};

/// Version of the map layout: part of the directory name all maps and links are pinned below.
///
/// It changes whenever a type of this crate, a map's kind or the meaning of a field changes.
pub const LAYOUT_VERSION: u32 = 4;
