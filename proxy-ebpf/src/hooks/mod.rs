//! What each program does with a packet or a call, from its first look to its verdict.

pub mod egress;
mod forged_tunnel;
pub mod pod;
pub mod socket;
pub mod uplink;
