//! The IPVS data plane with a kernel that has it: real agents, real sockets. Needs root, the modules and nft; machines made by
//! `cargo xtask vm` have them.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test that can't go on shall fail"
)]

mod bad_input;
mod change;
mod direct;
mod drained;
mod fixture;
mod forged;
mod lifetimes;
mod mixed;
mod modules;
mod neighbours;
mod reach;
mod scale;
mod schedulers;
mod taken;
mod views;
