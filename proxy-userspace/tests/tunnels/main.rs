//! Real sockets and agents where the kernel has tunnel devices, which few machines have.
#![expect(
    clippy::unwrap_used,
    reason = "a test that finds something else than it asked for must fail at once"
)]

mod lab;
mod pods;
mod uplinks;
