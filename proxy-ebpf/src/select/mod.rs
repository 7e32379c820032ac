//! Selection: the frontend of a packet, the client's right to use it, and the backend.

pub mod affinity;
pub mod backend;
pub mod node_flow;
pub mod peer;
pub mod source;
pub mod vip;
