//! The netlink families that IPVS mode and `millrace check` need. Requests block, because the data plane has its own thread.

mod attribute;
mod channel;
mod device;
mod generation;
mod genl;
mod message;
mod nfnetlink;
pub mod nftables;

pub use channel::Channel;
pub use device::{Device, Kind, tunnel_address};
pub use generation::Generation;
pub use genl::Ipvs;
