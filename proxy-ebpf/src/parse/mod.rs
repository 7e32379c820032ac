//! Packets that are more than an IP header and a transport header.

pub mod fragments;
pub mod held_fragments;
pub mod unusual;
