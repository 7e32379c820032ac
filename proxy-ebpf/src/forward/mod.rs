//! Forwarding to the backend and back: rewrites the packet and finds its next hop.

pub mod decap;
pub mod dsr_node;
pub mod dsr_pod;
pub mod fragment_ipv4;
pub mod hairpin;
pub mod mss;
pub mod nat;
pub mod other_mode;
pub mod outer;
pub mod path_mtu;
pub mod route;
pub mod snat;
