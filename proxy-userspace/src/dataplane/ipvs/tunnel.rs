//! The devices that take the outer header off what other nodes encapsulated, one for each family of that header.

use std::io;

use super::error::OpenError;
use super::netlink::{Device, Kind, tunnel_address};
use crate::model::Family;
use crate::node::{Sysctls, device_name};

/// One of them.
#[derive(Debug)]
pub struct Tunnel {
    family: Family,
    device: Device,
    /// Whether it was there when it was last looked for, or has been made since.
    is_up: bool,
}

/// Both, made or not.
pub fn tunnels() -> Result<[Tunnel; 2], OpenError> {
    Ok([Tunnel::open(Family::V4)?, Tunnel::open(Family::V6)?])
}

impl Tunnel {
    fn open(family: Family) -> Result<Self, OpenError> {
        let device = Device::open(Kind::Tunnel(family)).map_err(OpenError::dummy)?;
        Ok(Self { family, device, is_up: false })
    }

    /// The family of the outer header.
    pub const fn family(&self) -> Family {
        self.family
    }

    /// Its name.
    pub const fn name(&self) -> &'static str {
        Kind::Tunnel(self.family).name()
    }

    /// Whether it is there, with its address.
    pub fn find(&mut self) -> io::Result<bool> {
        self.is_up = self.device.exists()? && self.device.addresses()?.contains(&tunnel_address(self.family));
        if self.is_up {
            self.take_any_source();
        }
        Ok(self.is_up)
    }

    /// Fails where it was there and is no more.
    pub fn check(&mut self) -> Result<(), String> {
        let is_gone = self.is_up && !self.device.exists().map_err(|error| self.describe(&error))?;
        if is_gone { Err(format!("the device {} is gone", self.name())) } else { Ok(()) }
    }

    /// Makes it.
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

    /// Fails where somebody else has its address: what is encapsulated for either would get to one of them.
    fn check_address(&mut self) -> Result<(), String> {
        let address = tunnel_address(self.family);
        let other = self.device.other_with(address).map_err(|error| self.describe(&error))?;
        other.map_or(Ok(()), |index| {
            Err(format!(
                "the device {} has {address}, which {} needs for itself; what other nodes encapsulate for backends here is lost",
                device_name(index).unwrap_or_else(|| format!("number {index}")),
                self.name()
            ))
        })
    }

    /// Removes it.
    pub fn lower(&mut self) -> Result<(), String> {
        self.device.remove().map_err(|error| self.describe(&error))?;
        self.is_up = false;
        Ok(())
    }

    /// Removes it; tells whether it was there.
    pub fn remove(&mut self) -> io::Result<bool> {
        self.device.remove()
    }

    /// What is inside comes from anywhere. The kernel takes the higher one of this and `all`, and knows no such filter with IPv6.
    fn take_any_source(&self) {
        if self.family == Family::V4 {
            Sysctls::default().require(&format!("ipv4/conf/{}/rp_filter", self.name()), "2");
        }
    }

    fn describe(&self, error: &io::Error) -> String {
        format!("{}: {error}", self.name())
    }

    fn without_module(&self) -> String {
        let module = Kind::Tunnel(self.family).module();
        format!(
            "the kernel makes no device {}: module {module} is missing (modprobe {module}); what other nodes encapsulate for backends here is lost",
            self.name()
        )
    }
}
