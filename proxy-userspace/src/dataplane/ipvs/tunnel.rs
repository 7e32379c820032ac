//! The devices that decapsulate packets from other nodes, one for each family of the outer header.

use std::io;

use super::error::OpenError;
use super::netlink::{Device, Kind, tunnel_address};
use crate::model::Family;
use crate::node::{Sysctls, device_name};

/// The decapsulating device of a family.
#[derive(Debug)]
pub struct Tunnel {
    family: Family,
    device: Device,
    /// Whether it existed at the last check, or the agent made it since.
    is_up: bool,
}

/// Returns the devices of both families. They need not exist yet.
pub fn tunnels() -> Result<[Tunnel; 2], OpenError> {
    Ok([Tunnel::open(Family::V4)?, Tunnel::open(Family::V6)?])
}

impl Tunnel {
    fn open(family: Family) -> Result<Self, OpenError> {
        let device = Device::open(Kind::Tunnel(family)).map_err(OpenError::dummy)?;
        Ok(Self { family, device, is_up: false })
    }

    /// Returns the family of the outer header.
    pub const fn family(&self) -> Family {
        self.family
    }

    /// Returns the name of the device.
    pub const fn name(&self) -> &'static str {
        Kind::Tunnel(self.family).name()
    }

    /// Whether the device exists with its address.
    pub fn find(&mut self) -> io::Result<bool> {
        self.is_up = self.device.exists()? && self.device.addresses()?.contains(&tunnel_address(self.family));
        if self.is_up {
            self.take_any_source();
        }
        Ok(self.is_up)
    }

    /// Fails if the device has disappeared.
    pub fn check(&mut self) -> Result<(), String> {
        let is_gone = self.is_up && !self.device.exists().map_err(|error| self.describe(&error))?;
        if is_gone { Err(format!("the device {} is gone", self.name())) } else { Ok(()) }
    }

    /// Makes the device.
    pub fn raise(&mut self) -> Result<(), String> {
        self.check_address()?;
        self.device.ensure().map_err(|error| match error.raw_os_error() {
            Some(libc::EOPNOTSUPP) => self.without_module(),
            _ => self.describe(&error),
        })?;
        self.take_any_source();
        let added: io::Result<()> = self.device.add(&[tunnel_address(self.family)]).into_iter().collect();
        added.map_err(|error| self.describe(&error))?;
        self.is_up = true;
        Ok(())
    }

    /// Fails if another device has its address, because only one of the two would get the packets.
    fn check_address(&mut self) -> Result<(), String> {
        let address = tunnel_address(self.family);
        let other = self.device.other_with(address).map_err(|error| self.describe(&error))?;
        other.map_or(Ok(()), |index| {
            Err(format!(
                "the device {} has {address}, which {} needs for itself; packets that other nodes encapsulate for backends here are lost",
                device_name(index).unwrap_or_else(|| format!("number {index}")),
                self.name()
            ))
        })
    }

    /// Removes the device.
    pub fn lower(&mut self) -> Result<(), String> {
        self.device.remove().map_err(|error| self.describe(&error))?;
        self.is_up = false;
        Ok(())
    }

    /// Removes the device; returns whether it existed.
    pub fn remove(&mut self) -> io::Result<bool> {
        self.device.remove()
    }

    /// Loosens a strict reverse path filter, because inner packets have any source. There is none for IPv6.
    fn take_any_source(&self) {
        if self.family == Family::V4 {
            Sysctls::default().loosen_rp_filter(self.name());
        }
    }

    fn describe(&self, error: &io::Error) -> String {
        format!("reading or changing device {} failed: {error}", self.name())
    }

    fn without_module(&self) -> String {
        let module = Kind::Tunnel(self.family).module();
        format!(
            "the kernel makes no device {}: module {module} is missing (modprobe {module}); packets that other nodes encapsulate for backends here are lost",
            self.name()
        )
    }
}
