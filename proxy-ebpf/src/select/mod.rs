//! Frontend, client and backend: who serves a packet, and who may ask.

pub mod affinity;
pub mod backend;
pub mod node_flow;
pub mod peer;
pub mod source;
pub mod vip;
