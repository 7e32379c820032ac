//! The kernel's netlink families that IPVS needs, spoken synchronously: the data plane has a thread of its own.

mod attribute;
mod channel;
mod dummy;
mod generation;
mod genl;
mod message;

pub use channel::Channel;
pub use dummy::Dummy;
pub use generation::Generation;
pub use genl::Ipvs;
