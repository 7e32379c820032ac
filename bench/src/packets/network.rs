//! A network in which the FIB knows the client's route and neighbour.

use std::fs::File;
use std::net::IpAddr;
use std::thread;

use anyhow::{Context, Result, anyhow};
use millrace_lab::frame::Mac;
use millrace_lab::net::{Netlink, write_sysctl};

/// The device towards the client.
const WIRE: &str = "wire";
/// The client's MAC address.
const CLIENT_MAC: Mac = [0x02, 0, 0, 0, 0, 0x0c];

/// The link to the client.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// The index of this node's device.
    pub device: u32,
    /// The device's MAC address.
    pub own_mac: Mac,
    /// The client's MAC address.
    pub client_mac: Mac,
}

/// Does something in a thread with a network namespace of its own, which ends with it.
pub fn in_a_namespace<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)
                .context("can't make a network namespace")?;
            work()
        });
        thread.join().map_err(|panic| match panic.downcast::<String>() {
            Ok(message) => anyhow!("{message}"),
            Err(_) => anyhow!("the thread of the namespace panicked"),
        })?
    })
}

/// Makes the thread's namespace a router, with the client as a neighbour on a wire.
pub fn connect(own: IpAddr, client: IpAddr) -> Result<Link> {
    for name in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"] {
        write_sysctl(name, "1")?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let netlink = Netlink::open()?;
        let namespace = File::open("/proc/thread-self/ns/net")?;
        netlink.add_veth(WIRE, "far-end", &namespace).await?;
        for device in ["lo", WIRE, "far-end"] {
            netlink.set_up(device).await?;
        }
        // The client has the prefix's first address, which a router has itself in larger prefixes (RFC 6164).
        let prefix = if own.is_ipv4() { 31 } else { 127 };
        netlink.add_address(WIRE, format!("{own}/{prefix}").parse()?).await?;
        netlink.add_neighbour(WIRE, client, CLIENT_MAC).await
    })?;
    let device = nix::net::if_::if_nametoindex(WIRE)?;
    Ok(Link { device, own_mac: mac_of(WIRE)?, client_mac: CLIENT_MAC })
}

/// Returns a device's MAC address. `/sys` would show those of another namespace.
fn mac_of(device: &str) -> Result<Mac> {
    let addresses = nix::ifaddrs::getifaddrs()?;
    addresses
        .filter(|entry| entry.interface_name == device)
        .find_map(|entry| entry.address?.as_link_addr()?.addr())
        .with_context(|| format!("{device} has no MAC address"))
}
