//! Wires of TUN devices, which resemble `WireGuard` devices and tunnels to the stack, and of TAP
//! devices, which lead to virtual machines.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, bail};
use ipnet::IpNet;

use super::{Namespace, Netlink};

/// The interval in which a wire checks whether it was dropped.
const PATIENCE_MILLISECONDS: i32 = 50;
/// A size above that of the largest packet with an Ethernet header.
const LARGEST: usize = 1 << 17;

/// The content of a wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// IP packets: TUN devices.
    Bare,
    /// Ethernet frames: TAP devices.
    Ethernet,
}

/// Two devices of the same name in two namespaces. Each receives the packets that the other sends.
/// Both are removed on drop.
#[derive(Debug)]
pub struct Wire {
    stop: Arc<AtomicBool>,
    pumps: Vec<JoinHandle<()>>,
}

impl Wire {
    /// Lays a wire. Each end gets its addresses.
    pub fn lay(medium: Medium, device: &str, ends: [(&Namespace, &[IpNet]); 2]) -> Result<Self> {
        let [one, other] = ends.map(|(namespace, addresses)| open_end(medium, device, namespace, addresses));
        let (one, other) = (one?, other?);
        let stop = Arc::new(AtomicBool::new(false));
        let pumps = [(one.try_clone()?, other.try_clone()?), (other, one)].map(|(from, to)| {
            let stop = Arc::clone(&stop);
            thread::spawn(move || pump(from, to, &stop))
        });
        Ok(Self { stop, pumps: pumps.into() })
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for pump in self.pumps.drain(..) {
            let _ = pump.join();
        }
    }
}

fn open_end(medium: Medium, device: &str, namespace: &Namespace, addresses: &[IpNet]) -> Result<File> {
    let (device, addresses) = (device.to_owned(), addresses.to_vec());
    namespace.run(async move || {
        let tun = open_tun(medium, &device)?;
        let netlink = Netlink::open()?;
        netlink.set_up(&device).await?;
        for address in addresses {
            netlink.add_address(&device, address).await?;
        }
        Ok(tun)
    })
}

/// Makes a TUN or TAP device in the current thread's namespace.
fn open_tun(medium: Medium, device: &str) -> Result<File> {
    let kind = match medium {
        Medium::Bare => libc::IFF_TUN,
        Medium::Ethernet => libc::IFF_TAP,
    };
    let tun = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/net/tun")
        .context("can't open /dev/net/tun")?;
    // SAFETY: an all-zero ifreq is valid: it holds integers, arrays and null pointers only.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if device.len() >= request.ifr_name.len() {
        bail!("{device} is too long for the name of a device");
    }
    for (target, byte) in request.ifr_name.iter_mut().zip(device.bytes()) {
        *target = byte.cast_signed();
    }
    request.ifr_ifru.ifru_flags = libc::c_short::try_from(kind | libc::IFF_NO_PI)?;
    // SAFETY: TUNSETIFF reads the name and the flags; both live until the call returns.
    let result = unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    nix::errno::Errno::result(result)
        .with_context(|| format!("can't make the device {device} of {medium:?} packets"))?;
    Ok(tun)
}

/// Carries packets until `stop` is set, or an end is closed.
fn pump(mut from: File, mut to: File, stop: &AtomicBool) {
    let mut packet = vec![0; LARGEST];
    while !stop.load(Ordering::Relaxed) {
        match from.read(&mut packet) {
            Ok(length) => {
                // A packet that the other end does not accept is lost, as on any wire.
                let _ = to.write(packet.get(..length).unwrap_or_default());
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => wait(&from),
            Err(_) => return,
        }
    }
}

fn wait(end: &File) {
    let mut polled = libc::pollfd { fd: end.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: the one entry lives until the call returns. The reason of the return does not matter:
    // the caller reads again.
    unsafe { libc::poll(&raw mut polled, 1, PATIENCE_MILLISECONDS) };
}
