//! The kernel's netlink families that IPVS needs, spoken synchronously: the data plane has a thread of its own.

mod attribute;
mod channel;
mod device;
mod generation;
mod genl;
mod message;

pub use channel::Channel;
pub use device::{Device, Kind, tunnel_address};
pub use generation::Generation;
pub use genl::Ipvs;
