//! Facts about a device that only the ethtool ioctl tells.

use std::io;
use std::os::fd::AsRawFd;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

/// `ETHTOOL_GDRVINFO` of linux/ethtool.h.
const GET_DRIVER: u32 = 0x3;
/// `ETHTOOL_GFLAGS`: features that have a flag, all at once.
const GET_FLAGS: u32 = 0x25;
/// `ETH_FLAG_LRO`
const LRO: u32 = 1 << 15;
/// The size of `struct ethtool_drvinfo` in words. The name is in the eight words behind the command.
const DRIVER_WORDS: usize = 49;
const NAME_WORDS: usize = 8;

/// Returns the name of a device's driver, such as `mlx5_core` or `veth`.
pub fn driver(device: &str) -> io::Result<String> {
    let mut words = [0; DRIVER_WORDS];
    if let Some(command) = words.first_mut() {
        *command = GET_DRIVER;
    }
    request(device, &mut words)?;
    let name = words.iter().skip(1).take(NAME_WORDS).flat_map(|word| word.to_ne_bytes());
    let name: Vec<u8> = name.take_while(|byte| *byte != 0).collect();
    Ok(String::from_utf8_lossy(&name).into_owned())
}

/// Returns whether a device merges received segments into packets that no program can send on (LRO).
pub fn has_lro(device: &str) -> io::Result<bool> {
    let mut words = [GET_FLAGS, 0];
    request(device, &mut words)?;
    let [_, flags] = words;
    Ok(flags & LRO != 0)
}

/// Sends a command, the first word. The kernel answers in all of `words`.
fn request(device: &str, words: &mut [u32]) -> io::Result<()> {
    // SAFETY: an all-zero ifreq is valid: it holds integers, arrays and null pointers only.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if device.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (target, byte) in request.ifr_name.iter_mut().zip(device.bytes()) {
        *target = byte.cast_signed();
    }
    request.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
    let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    // SAFETY: SIOCETHTOOL reads the name, and reads and writes the words behind ifru_data. The callers in this
    // file give as many as their command has, and both live until the call returns.
    let result =
        unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as libc::Ioctl, &raw mut request) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_is_not_there_has_no_driver() {
        assert!(driver("nobody0").is_err() && has_lro("nobody0").is_err());
        assert_eq!(driver("a-name-that-is-too-long").unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert!(!has_lro("lo").unwrap());
    }
}
