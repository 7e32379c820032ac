//! The netlink families of IPVS mode: IPVS itself, and its devices.

mod device;
mod genl;
mod message;

pub use device::{Device, Kind, tunnel_address};
pub use genl::Ipvs;
