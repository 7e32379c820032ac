//! Random clusters with NetworkPolicies, and an oracle that says which connections they allow.
//!
//! The tests of `src/policy`, of the real programs (`packet`) and of another implementation (`policies`) share them.

pub mod manifest;
pub mod oracle;
#[path = "../fuzz/random.rs"]
pub mod random;
pub mod world;
