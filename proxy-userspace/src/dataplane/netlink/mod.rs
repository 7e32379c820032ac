//! Netlink with requests that block, because the data plane has its own thread: the channel, attributes, and nftables.

pub(in crate::dataplane) mod attribute;
mod channel;
mod generation;
pub(in crate::dataplane) mod nfnetlink;
pub mod nftables;

pub use channel::Channel;
pub use generation::Generation;
