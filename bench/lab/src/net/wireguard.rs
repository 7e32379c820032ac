//! Keys and peers of `WireGuard` devices (linux/wireguard.h), by generic netlink.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use rtnetlink::sys::protocols::NETLINK_GENERIC;
use rtnetlink::sys::{Socket, SocketAddr as Kernel};

/// Private keys of the two ends of a tunnel, and their public keys. They protect nothing.
const PRIVATE_KEYS: [[u8; 32]; 2] = [[1; 32], [2; 32]];
const PUBLIC_KEYS: [[u8; 32]; 2] = [
    [
        0xa4, 0xe0, 0x92, 0x92, 0xb6, 0x51, 0xc2, 0x78, 0xb9, 0x77, 0x2c, 0x56, 0x9f, 0x5f, 0xa9, 0xbb, 0x13,
        0xd9, 0x06, 0xb4, 0x6a, 0xb6, 0x8c, 0x9d, 0xf9, 0xdc, 0x2b, 0x44, 0x09, 0xf8, 0xa2, 0x09,
    ],
    [
        0xce, 0x8d, 0x3a, 0xd1, 0xcc, 0xb6, 0x33, 0xec, 0x7b, 0x70, 0xc1, 0x78, 0x14, 0xa5, 0xc7, 0x6e, 0xcd,
        0x02, 0x96, 0x85, 0x05, 0x0d, 0x34, 0x47, 0x45, 0xba, 0x05, 0x87, 0x0e, 0x58, 0x7d, 0x59,
    ],
];

/// linux/netlink.h and linux/genetlink.h.
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLMSG_ERROR: u16 = 2;
const NLA_F_NESTED: u16 = 1 << 15;
const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
/// Bytes of a netlink header, and of one with the generic header.
const HEADER: usize = 16;
const HEADERS: usize = 20;

const WG_CMD_SET_DEVICE: u8 = 1;
const WGDEVICE_A_IFNAME: u16 = 2;
const WGDEVICE_A_PRIVATE_KEY: u16 = 3;
const WGDEVICE_A_LISTEN_PORT: u16 = 6;
const WGDEVICE_A_PEERS: u16 = 8;
const WGPEER_A_PUBLIC_KEY: u16 = 1;
const WGPEER_A_ENDPOINT: u16 = 4;
const WGPEER_A_ALLOWEDIPS: u16 = 9;
const WGALLOWEDIP_A_FAMILY: u16 = 1;
const WGALLOWEDIP_A_IPADDR: u16 = 2;
const WGALLOWEDIP_A_CIDR_MASK: u16 = 3;

/// Sets the key, the port and the peer of one end of a tunnel (0 or 1). The peer may send from any
/// address.
pub(super) fn configure(device: &str, end: usize, port: u16, peer: SocketAddr) -> Result<()> {
    let (private, public) = match end {
        0 => (PRIVATE_KEYS[0], PUBLIC_KEYS[1]),
        _ => (PRIVATE_KEYS[1], PUBLIC_KEYS[0]),
    };
    let allowed =
        [anything(libc::AF_INET, "0.0.0.0".parse()?)?, anything(libc::AF_INET6, "::".parse()?)?].concat();
    let peer = [
        attribute(WGPEER_A_PUBLIC_KEY, &public)?,
        attribute(WGPEER_A_ENDPOINT, &endpoint(peer)?)?,
        attribute(WGPEER_A_ALLOWEDIPS | NLA_F_NESTED, &allowed)?,
    ]
    .concat();
    let attributes = [
        attribute(WGDEVICE_A_IFNAME, &terminated(device))?,
        attribute(WGDEVICE_A_PRIVATE_KEY, &private)?,
        attribute(WGDEVICE_A_LISTEN_PORT, &port.to_ne_bytes())?,
        // The peers are a list. Its elements have no kind.
        attribute(WGDEVICE_A_PEERS | NLA_F_NESTED, &attribute(NLA_F_NESTED, &peer)?)?,
    ]
    .concat();
    let mut socket = Socket::new(NETLINK_GENERIC)?;
    socket.bind_auto()?;
    socket.connect(&Kernel::new(0, 0))?;
    let family = family(&socket)?;
    request(&socket, family, WG_CMD_SET_DEVICE, &attributes)
        .with_context(|| format!("can't set up {device}"))?;
    Ok(())
}

/// Returns an allowed address range with all addresses of a family.
fn anything(family: i32, address: IpAddr) -> Result<Vec<u8>> {
    let octets = match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let prefix = [
        attribute(WGALLOWEDIP_A_FAMILY, &u16::try_from(family)?.to_ne_bytes())?,
        attribute(WGALLOWEDIP_A_IPADDR, &octets)?,
        attribute(WGALLOWEDIP_A_CIDR_MASK, &[0])?,
    ];
    attribute(NLA_F_NESTED, &prefix.concat())
}

/// Returns a `struct sockaddr_in`.
fn endpoint(place: SocketAddr) -> Result<Vec<u8>> {
    let SocketAddr::V4(place) = place else { bail!("{place} is no IPv4 address") };
    let family = u16::try_from(libc::AF_INET)?.to_ne_bytes();
    Ok([&family[..], &place.port().to_be_bytes(), &place.ip().octets(), &[0; 8]].concat())
}

/// Returns the number of WireGuard's family of generic netlink messages.
fn family(socket: &Socket) -> Result<u16> {
    let name = attribute(CTRL_ATTR_FAMILY_NAME, &terminated("wireguard"))?;
    let answer = request(socket, GENL_ID_CTRL, CTRL_CMD_GETFAMILY, &name);
    let answer = answer.context("the kernel has no WireGuard")?;
    let mut rest = answer.get(HEADERS..).unwrap_or_default();
    while let (Some(length), Some(kind)) = (u16_at(rest, 0), u16_at(rest, 2)) {
        if kind == CTRL_ATTR_FAMILY_ID {
            return u16_at(rest, 4).context("the kernel's answer has no family number");
        }
        rest = rest.get(usize::from(length).max(4).next_multiple_of(4)..).unwrap_or_default();
    }
    bail!("the kernel's answer has no family number of WireGuard")
}

/// Sends one message and returns the first message of the answer. An error is always a message of
/// its own, and the first.
fn request(socket: &Socket, kind: u16, command: u8, attributes: &[u8]) -> Result<Vec<u8>> {
    let length = u32::try_from(HEADERS + attributes.len())?;
    let flags = NLM_F_REQUEST | NLM_F_ACK;
    let message = [
        &length.to_ne_bytes()[..],
        &kind.to_ne_bytes(),
        &flags.to_ne_bytes(),
        &[0; 8],
        &[command, 1, 0, 0],
        attributes,
    ]
    .concat();
    socket.send(&message, 0)?;
    let (answer, _) = socket.recv_from_full()?;
    if u16_at(&answer, 4) == Some(NLMSG_ERROR) {
        let code = answer.get(HEADER..HEADER + 4).and_then(|bytes| bytes.try_into().ok());
        let code = i32::from_ne_bytes(code.context("the kernel's answer is cut short")?);
        if code != 0 {
            return Err(Errno::from_raw(code.saturating_neg()).into());
        }
    }
    Ok(answer)
}

fn attribute(kind: u16, value: &[u8]) -> Result<Vec<u8>> {
    let length = u16::try_from(4 + value.len())?;
    let mut bytes = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    Ok(bytes)
}

fn terminated(text: &str) -> Vec<u8> {
    text.bytes().chain([0]).collect()
}

fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    bytes.get(offset..offset + 2)?.try_into().ok().map(u16::from_ne_bytes)
}
