//! Tests of the IPVS data plane with real agents and real sockets.
//!
//! They need root, the kernel modules of IPVS, and nft. Virtual machines of `cargo xtask vm` have all of
//! them.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test that can't go on must fail"
)]

mod bad_input;
mod change;
mod direct;
mod drained;
mod explain;
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
