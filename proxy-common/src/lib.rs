//! The contract between the BPF programs and the agent: the types of every map, and the arithmetic
//! that both sides must do alike.
//!
//! - **Maps.** Each type that is a key or a value of a map is declared by one macro, `shared!` in
//!   `layout.rs`. The macro refuses padding. Every bit pattern of each type is valid, so neither
//!   side can hand the other an undefined value.
//! - **Rules.** [`rules`] says which owner of a slot gets a packet. Programs, plan, collector and
//!   tests share that code.
//! - **Hashes.** [`hash`] has the two hashes that all nodes of a cluster must compute alike.
//!
//! Addresses and ports are in network byte order. All other numbers are in the host's, unless a
//! field says otherwise. Start with [`frontend`], [`selection`] and [`backend`]: they are the way
//! of a look-up.
#![cfg_attr(not(test), no_std)]

pub mod addr;
pub mod affinity;
pub mod announced;
pub mod answer;
pub mod backend;
pub mod checksum;
pub mod config;
pub mod device_mac;
pub mod event;
pub mod figures;
pub mod flow;
pub mod fragment;
pub mod frontend;
pub mod frontend_index;
pub mod hash;
pub mod hop;
pub mod icmp;
pub mod kernel_drop;
mod layout;
pub mod name;
pub mod node_flow;
pub mod part;
pub mod policy;
pub mod rules;
#[expect(
    clippy::indexing_slicing,
    reason = "each index is a byte or a bit, and its table has an entry for each value"
)]
pub mod sctp;
pub mod selection;
pub mod socket;
pub mod source_range;
pub mod timeouts;
pub mod trace;
pub mod tuple;
pub mod verdict;
pub mod vip;
pub mod way;

pub use addr::{Addr4, Addr6, Address};

/// The version of the map layout: a part of the directory that all maps and links are pinned below.
///
/// It changes with any type of this crate, with the kind of any map, and with the meaning of any
/// field.
pub const LAYOUT_VERSION: u32 = 9;
