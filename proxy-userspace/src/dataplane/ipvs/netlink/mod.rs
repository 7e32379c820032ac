//! The netlink families that IPVS mode needs. Requests block, because the data plane has its own thread.

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
