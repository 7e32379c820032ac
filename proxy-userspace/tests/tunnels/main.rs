//! Real sockets and agents on kernels with tunnel devices. Few machines have them.
#![expect(
    clippy::unwrap_used,
    reason = "a test that finds something else than it asked for must fail at once"
)]

mod lab;
mod pod_routes;
mod pods;
mod uplinks;
