//! The judgement of packets of pods, for [`pod_firewall`](../pod_firewall.rs).

// A packet's order: each module uses only those below it. Blank lines keep rustfmt from sorting them.
pub mod walk;

mod short;

mod icmp;

mod fragments;

mod follow;

mod judge;

mod sources;

mod family;

mod extensions;

mod shape;

mod record;

pub mod scene;

pub mod skb;

mod maps;

#[path = "../maps/clock.rs"]
mod clock;
