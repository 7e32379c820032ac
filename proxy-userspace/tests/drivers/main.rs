//! Agents on emulated network cards, with the drivers of real ones: three nodes with a card each.
//!
//! `cargo xtask vm --nic virtio_net --kernel 6.12 -- drivers` makes such a machine. `MILLRACE_NIC` is the
//! driver of its cards.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that finds something else than it asked for must fail at once"
)]

mod errors;
mod fixture;
mod mode;
mod queues;
mod reach;
mod sizes;
mod tags;
