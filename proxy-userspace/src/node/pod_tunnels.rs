//! The devices that encapsulate packets to the pods of nodes behind a router, and decapsulate those that arrive: one for
//! each such node and family.
//!
//! One device for all nodes would do for the kernel. The programs could not use it: `bpf_fib_lookup` refuses routes that
//! name the outer destination themselves (decision 191).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::pin::pin;

use futures_util::TryStreamExt;
use rtnetlink::packet_route::IpProtocol;
use rtnetlink::packet_route::link::{
    InfoData, InfoIpTunnel, InfoKind, Ip6TunnelFlags, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use rtnetlink::{Handle, LinkIp6Tnl, LinkIpIp};

use super::NodeError;
use super::sysctl::Sysctls;
use crate::model::fnv1a;

/// The first letters of a device's name. A hash of the other node's address follows.
const PREFIX: &str = "mr-";
/// The letters of the hash.
const HASH: usize = 12;
/// The least MTU of a device: every IPv6 link has it (RFC 8200, section 5).
const LEAST_MTU: u32 = 1280;
/// The hop limit of outer headers. Without one they have the inner one's, and a traceroute would end between the nodes.
const HOPS: u8 = 64;

/// The addresses of both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TunnelEnds {
    /// This node's.
    pub own: IpAddr,
    /// The other node's, of the same family.
    pub other: IpAddr,
}

/// A device of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodTunnel {
    /// Interface index.
    pub index: u32,
    /// Whether it is administratively up. Its routes are gone if it is not.
    pub is_up: bool,
    /// Its largest packet, in bytes, without the outer header.
    pub mtu: Option<u32>,
}

/// The devices of this network namespace.
#[derive(Clone, Debug, Default)]
pub(super) struct Links {
    /// Ours.
    pub tunnels: BTreeMap<TunnelEnds, PodTunnel>,
    /// The MTU of each device, in bytes, by interface index.
    pub mtus: BTreeMap<u32, u32>,
}

/// Returns the present devices.
pub(super) async fn list(handle: &Handle) -> Result<Links, NodeError> {
    let mut links = Links::default();
    let mut dump = pin!(handle.link().get().execute());
    while let Some(link) = dump.try_next().await? {
        links.tunnels.extend(decode(&link));
        links.mtus.extend(mtu_of(&link).map(|mtu| (link.header.index, mtu)));
    }
    Ok(links)
}

/// Returns the MTU of a device whose outer packets may have `below` bytes.
pub(super) fn inner_mtu(other: IpAddr, below: u32) -> u32 {
    let outer = if other.is_ipv4() { 20 } else { 40 };
    below.saturating_sub(outer).max(LEAST_MTU)
}

/// Returns whether a device has the name of one of ours.
pub(super) fn is_pod_tunnel(name: &str) -> bool {
    let hash = name.strip_prefix(PREFIX);
    hash.is_some_and(|hash| hash.len() == HASH && hash.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Makes a device, and brings it up. The kernel gives it an MTU by that of the device below.
pub(super) async fn add(handle: &Handle, ends: TunnelEnds) -> Result<(), NodeError> {
    let name = name(ends.other);
    handle.link().add(message(&name, ends)).execute().await?;
    // Packets of another node's own processes come in here, and answers to them leave elsewhere.
    if ends.other.is_ipv4() {
        Sysctls::default().loosen_rp_filter(&name);
    }
    Ok(())
}

/// Brings a device up if it is not, and gives it this MTU.
pub(super) async fn correct(handle: &Handle, tunnel: PodTunnel, mtu: Option<u32>) -> Result<(), NodeError> {
    let mtu = mtu.filter(|mtu| Some(*mtu) != tunnel.mtu);
    if tunnel.is_up && mtu.is_none() {
        return Ok(());
    }
    let mut link = LinkMessage::default();
    link.header.index = tunnel.index;
    link.header.flags = LinkFlags::Up;
    link.header.change_mask = LinkFlags::Up;
    link.attributes.extend(mtu.map(LinkAttribute::Mtu));
    Ok(handle.link().set(link).execute().await?)
}

/// Removes a device with its routes. One that is gone already is no error.
pub(super) async fn remove(handle: &Handle, tunnel: PodTunnel) -> Result<(), NodeError> {
    match handle.link().del(tunnel.index).execute().await {
        Err(rtnetlink::Error::NetlinkError(error)) if error.raw_code() == -libc::ENODEV => Ok(()),
        result => Ok(result?),
    }
}

/// Returns the name of the device to a node: FNV-1a of the address, 48 bits of it, for 15 letters at most.
fn name(other: IpAddr) -> String {
    let octets = match other {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    format!("{PREFIX}{:0HASH$x}", fnv1a(octets) & 0xffff_ffff_ffff)
}

fn message(name: &str, ends: TunnelEnds) -> LinkMessage {
    match (ends.own, ends.other) {
        (IpAddr::V4(own), IpAddr::V4(other)) => {
            LinkIpIp::new(name).local(own).remote(other).ttl(HOPS).up().build()
        }
        (own, other) => {
            let v6 = |address| match address {
                IpAddr::V4(address) => address.to_ipv6_mapped(),
                IpAddr::V6(address) => address,
            };
            // The option for the limit would be another header in front of the inner packet.
            LinkIp6Tnl::new(name)
                .local(v6(own))
                .remote(v6(other))
                .ttl(HOPS)
                .set_flag(Ip6TunnelFlags::IgnEncapLimit, true)
                .protocol(IpProtocol::Ipv6)
                .up()
                .build()
        }
    }
}

/// Reads a device that [`add`] has made. Others are not ours.
fn decode(link: &LinkMessage) -> Option<(TunnelEnds, PodTunnel)> {
    let (mut found, mut data, mut kind) = (None, None, None);
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::IfName(name) => found = Some(name),
            LinkAttribute::LinkInfo(parts) => {
                for part in parts {
                    match part {
                        LinkInfo::Kind(of) => kind = Some(of),
                        LinkInfo::Data(InfoData::IpTunnel(of)) => data = Some(of),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    let (mut own, mut other) = (None, None);
    for part in data? {
        match part {
            InfoIpTunnel::Local(address) => own = Some(*address),
            InfoIpTunnel::Remote(address) => other = Some(*address),
            _ => {}
        }
    }
    let ends = TunnelEnds { own: own?, other: other? };
    let expected = if ends.other.is_ipv4() { InfoKind::IpIp } else { InfoKind::Ip6Tnl };
    let is_ours = *kind? == expected && *found? == name(ends.other);
    let is_up = link.header.flags.contains(LinkFlags::Up);
    is_ours.then_some((ends, PodTunnel { index: link.header.index, is_up, mtu: mtu_of(link) }))
}

fn mtu_of(link: &LinkMessage) -> Option<u32> {
    link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::Mtu(mtu) => Some(*mtu),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_of_ours_is_read_as_it_was_written_and_others_are_not() {
        for (own, other) in [("172.30.0.11", "172.30.1.12"), ("2001:db8:a::11", "2001:db8:b::12")] {
            let ends = TunnelEnds { own: own.parse().unwrap(), other: other.parse().unwrap() };
            let name = name(ends.other);
            assert!(name.len() == 15 && is_pod_tunnel(&name), "{name}");
            let (found, tunnel) = decode(&message(&name, ends)).unwrap();
            assert_eq!((found, tunnel.is_up), (ends, true));
            assert_eq!(decode(&message("tun-172301", ends)), None);
        }
        assert!(!is_pod_tunnel("mr-0") && !is_pod_tunnel("mr-backup-link0"));
    }

    #[test]
    fn a_device_leaves_room_for_the_outer_header() {
        let mtu = |other: &str, below| inner_mtu(other.parse().unwrap(), below);
        assert_eq!([mtu("172.30.1.12", 1500), mtu("2001:db8:b::12", 9000)], [1480, 8960]);
        assert_eq!(mtu("172.30.1.12", 1280), 1280);
    }
}
