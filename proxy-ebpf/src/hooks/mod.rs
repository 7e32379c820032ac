//! The programs: from the first look at a packet or a call to its verdict.

pub mod egress;
mod first_look;
mod forged_tunnel;
pub mod pod;
mod refusal;
pub mod socket;
pub mod tunnel;
pub mod uplink;
