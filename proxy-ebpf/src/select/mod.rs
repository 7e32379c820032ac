//! Selection: the frontend a packet asks for, whether its client may, and the backend.

pub mod affinity;
pub mod backend;
pub mod node_flow;
pub mod peer;
pub mod source;
pub mod vip;
