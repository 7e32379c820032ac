//! Device features, through the ethtool ioctl.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use anyhow::{Context, Result, bail};

/// A feature of a device. The value is the ethtool command of linux/ethtool.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Offload {
    /// The device computes checksums. A virtual device leaves them unfinished, and XDP sees them
    /// so. Without this feature, the segmentation that relies on it is off, too.
    TxChecksum = 0x17,
    /// The device merges received frames.
    Receive = 0x2c,
}

/// Switches a feature of a device of the current thread's namespace on or off.
pub fn set_offload(device: &str, offload: Offload, on: bool) -> Result<()> {
    set(device, offload as u32, u32::from(on))
        .with_context(|| format!("can't switch {offload:?} of {device} {}", if on { "on" } else { "off" }))
}

/// Makes a device of the current thread's namespace leave VLAN tags in frames alone.
pub fn leave_tags_alone(device: &str) -> Result<()> {
    /// `ETHTOOL_SFLAGS`: all features that have a flag at once.
    const SET_FLAGS: u32 = 0x26;
    set(device, SET_FLAGS, 0).with_context(|| format!("can't have {device} leave VLAN tags alone"))
}

/// Gives a virtual device of the current thread's namespace this number of queues in each direction.
pub fn set_queues(device: &str, number: u32) -> Result<()> {
    /// `ETHTOOL_SCHANNELS`; the words are those of struct ethtool_channels.
    const SET_CHANNELS: u32 = 0x3d;
    request(device, &mut [SET_CHANNELS, 0, 0, 0, 0, number, number, 0, 0])
        .with_context(|| format!("can't give {device} {number} queues"))
}

/// Returns the number of queues in each direction that a device of the current thread's namespace has in use. A driver
/// that can't tell has one.
#[must_use]
pub fn queues(device: &str) -> u32 {
    /// `ETHTOOL_GCHANNELS`; the words are those of struct ethtool_channels.
    const GET_CHANNELS: u32 = 0x3c;
    let mut words = [GET_CHANNELS, 0, 0, 0, 0, 0, 0, 0, 0];
    // The last two words: queues for received frames, and those for both directions.
    request(device, &mut words).map_or(1, |()| words[5].max(words[8]).max(1))
}

/// Returns the driver of a device of the current thread's namespace.
pub fn driver_of(device: &str) -> Result<String> {
    driver_text(device, 0)
}

/// Returns the place of a device of the current thread's namespace on its bus, such as `0000:00:03.0`.
pub fn bus_of(device: &str) -> Result<String> {
    driver_text(device, 3)
}

/// Returns a text of `ETHTOOL_GDRVINFO`. Struct ethtool_drvinfo has 196 bytes: the command, then texts of 32
/// bytes each: driver, version, version of the firmware, place on the bus.
fn driver_text(device: &str, number: usize) -> Result<String> {
    const GET_DRIVER: u32 = 3;
    /// Words of a text.
    const TEXT: usize = 8;
    let mut words = [0; 49];
    words[0] = GET_DRIVER;
    request(device, &mut words).with_context(|| format!("{device} has no driver"))?;
    let text = words.iter().skip(1 + number * TEXT).take(TEXT);
    let bytes: Vec<u8> = text.flat_map(|word| word.to_ne_bytes()).collect();
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(text).into_owned())
}

fn set(device: &str, command: u32, data: u32) -> Result<()> {
    request(device, &mut [command, data])
}

/// Sends a command, the first word, with the words behind it.
fn request(device: &str, words: &mut [u32]) -> Result<()> {
    // SAFETY: an all-zero ifreq is valid: it holds integers, arrays and null pointers only.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if device.len() >= request.ifr_name.len() {
        bail!("{device} is too long for the name of a device");
    }
    for (target, byte) in request.ifr_name.iter_mut().zip(device.bytes()) {
        *target = byte.cast_signed();
    }
    request.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
    let socket = control_socket()?;
    // SAFETY: SIOCETHTOOL reads the name and the words behind ifru_data, as many as the command has;
    // both live until the call returns.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) };
    nix::errno::Errno::result(result)?;
    Ok(())
}

/// Any socket of the namespace takes device ioctls.
fn control_socket() -> Result<OwnedFd> {
    // SAFETY: no pointers are passed.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    let fd = nix::errno::Errno::result(fd).context("can't open a socket")?;
    // SAFETY: the call above returned the descriptor, and it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
