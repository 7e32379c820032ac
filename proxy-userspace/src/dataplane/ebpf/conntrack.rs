//! Connections tracked by the kernel. Connections with a translated destination belong to
//! kube-proxy.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use nix::sys::socket::SockProtocol;

use super::netlink::Netlink;

/// `NFNL_SUBSYS_CTNETLINK` and `IPCTNL_MSG_CT_GET`.
const CONNTRACK_GET: u16 = 1 << 8 | 1;
/// The same with `IPCTNL_MSG_CT_GET_STATS_CPU`.
const CONNTRACK_STATISTICS: u16 = 1 << 8 | 4;
/// `struct nfgenmsg`: family, version, resource id.
const GENERIC: usize = 4;

// `enum ctattr_*` (linux/netfilter/nfnetlink_conntrack.h).
pub const CTA_TUPLE_ORIG: u16 = 1;
pub const CTA_TUPLE_REPLY: u16 = 2;
pub const CTA_STATUS: u16 = 3;
pub const CTA_PROTOINFO: u16 = 4;
pub const CTA_PROTOINFO_TCP: u16 = 1;
pub const CTA_PROTOINFO_TCP_STATE: u16 = 1;
pub const CTA_TUPLE_IP: u16 = 1;
pub const CTA_TUPLE_PROTO: u16 = 2;
pub const CTA_IP_V4_SRC: u16 = 1;
pub const CTA_IP_V4_DST: u16 = 2;
pub const CTA_IP_V6_SRC: u16 = 3;
pub const CTA_IP_V6_DST: u16 = 4;
pub const CTA_PROTO_NUM: u16 = 1;
pub const CTA_PROTO_SRC_PORT: u16 = 2;
pub const CTA_PROTO_DST_PORT: u16 = 3;
/// `IPS_SRC_NAT` and `IPS_DST_NAT`.
const SOURCE_IS_TRANSLATED: u32 = 1 << 4;
const DESTINATION_IS_TRANSLATED: u32 = 1 << 5;
/// `TCP_CONNTRACK_TIME_WAIT` and `TCP_CONNTRACK_CLOSE`.
const OVER: [u8; 2] = [7, 8];
/// Attributes' types without their flags (`NLA_F_NESTED`, `NLA_F_NET_BYTEORDER`).
const ATTRIBUTE_TYPE: u16 = 0x3fff;

/// A tracked connection, with the addresses of both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tracked {
    /// IP protocol number.
    pub protocol: u8,
    /// The destination of its first packet.
    pub destination: SocketAddr,
    /// The source of its replies.
    pub replies_from: SocketAddr,
    /// The destination of its replies.
    pub replies_to: SocketAddr,
    /// Whether the kernel translates its source.
    pub is_masqueraded: bool,
    /// Whether the kernel translates its destination.
    pub is_translated: bool,
    /// Whether both ends have closed the TCP connection.
    pub is_over: bool,
}

/// Gives `visit` every tracked connection of this network namespace. Without connection tracking
/// there is none.
pub fn each(mut visit: impl FnMut(Tracked)) -> io::Result<()> {
    let netlink = match Netlink::open(SockProtocol::NetlinkNetFilter) {
        Err(error) if is_missing(&error) => return Ok(()),
        opened => opened?,
    };
    // AF_UNSPEC: all families.
    match netlink.dump(CONNTRACK_GET, &[0; GENERIC], |body| {
        if let Some(tracked) = parse(body) {
            visit(tracked);
        }
    }) {
        Err(error) if is_missing(&error) => Ok(()),
        dumped => dumped,
    }
}

/// Has the kernel load its connection tracking, by a request that few words answer.
pub fn load() {
    let netlink = Netlink::open(SockProtocol::NetlinkNetFilter);
    // A kernel without connection tracking refuses, and needs no setting of it.
    let _ = netlink.and_then(|netlink| netlink.dump(CONNTRACK_STATISTICS, &[0; GENERIC], |_| {}));
}

/// Returns whether the kernel lacks nfnetlink or connection tracking.
fn is_missing(error: &io::Error) -> bool {
    let missing = [libc::EPROTONOSUPPORT, libc::EINVAL, libc::EOPNOTSUPP];
    error.raw_os_error().is_some_and(|number| missing.contains(&number))
}

fn parse(body: &[u8]) -> Option<Tracked> {
    let attributes = body.get(GENERIC..)?;
    let original = tuple(find(attributes, CTA_TUPLE_ORIG)?)?;
    let reply = tuple(find(attributes, CTA_TUPLE_REPLY)?)?;
    let status = find(attributes, CTA_STATUS)?.get(..4)?.try_into().ok().map(u32::from_be_bytes)?;
    Some(Tracked {
        protocol: original.protocol,
        destination: original.destination,
        replies_from: reply.source,
        replies_to: reply.destination,
        is_masqueraded: status & SOURCE_IS_TRANSLATED != 0,
        is_translated: status & DESTINATION_IS_TRANSLATED != 0,
        is_over: tcp_state(attributes).is_some_and(|state| OVER.contains(&state)),
    })
}

fn tcp_state(attributes: &[u8]) -> Option<u8> {
    let of_tcp = find(find(attributes, CTA_PROTOINFO)?, CTA_PROTOINFO_TCP)?;
    find(of_tcp, CTA_PROTOINFO_TCP_STATE)?.first().copied()
}

struct Tuple {
    protocol: u8,
    source: SocketAddr,
    destination: SocketAddr,
}

fn tuple(attributes: &[u8]) -> Option<Tuple> {
    let (ip, transport) = (find(attributes, CTA_TUPLE_IP)?, find(attributes, CTA_TUPLE_PROTO)?);
    let address = |v4, v6| {
        let v4 = find(ip, v4)
            .and_then(|bytes| bytes.try_into().ok())
            .map(|bytes: [u8; 4]| Ipv4Addr::from(bytes).into());
        v4.or_else(|| {
            find(ip, v6)?.try_into().ok().map(|bytes: [u8; 16]| IpAddr::from(Ipv6Addr::from(bytes)))
        })
    };
    // A protocol without ports has neither attribute.
    let port = |kind| find(transport, kind)?.try_into().ok().map(u16::from_be_bytes);
    let end = |v4, v6, of| Some(SocketAddr::new(address(v4, v6)?, port(of)?));
    Some(Tuple {
        protocol: *find(transport, CTA_PROTO_NUM)?.first()?,
        source: end(CTA_IP_V4_SRC, CTA_IP_V6_SRC, CTA_PROTO_SRC_PORT)?,
        destination: end(CTA_IP_V4_DST, CTA_IP_V6_DST, CTA_PROTO_DST_PORT)?,
    })
}

/// Returns the content of the first attribute of this type.
fn find(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    /// `struct nlattr`: length with itself, type.
    const HEADER: usize = 4;
    loop {
        let length = usize::from(u16::from_ne_bytes(attributes.get(..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(attributes.get(2..HEADER)?.try_into().ok()?);
        let content = attributes.get(HEADER..length)?;
        if kind & ATTRIBUTE_TYPE == wanted {
            return Some(content);
        }
        attributes = attributes.get(length.next_multiple_of(HEADER)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, content: &[u8]) -> Vec<u8> {
        let length = u16::try_from(4 + content.len()).unwrap();
        let padding = vec![0; content.len().next_multiple_of(4) - content.len()];
        [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), content, &padding].concat()
    }

    fn tuple_of(kind: u16, (source, from): ([u8; 4], u16), (destination, to): ([u8; 4], u16)) -> Vec<u8> {
        let ip = [attribute(CTA_IP_V4_SRC, &source), attribute(CTA_IP_V4_DST, &destination)].concat();
        let ports = [
            attribute(CTA_PROTO_NUM, &[6]),
            attribute(CTA_PROTO_SRC_PORT, &from.to_be_bytes()),
            attribute(CTA_PROTO_DST_PORT, &to.to_be_bytes()),
        ];
        // The kernel sets the flag for nested attributes.
        let nested = |kind, content: &[u8]| attribute(kind | 0x8000, content);
        nested(kind, &[nested(CTA_TUPLE_IP, &ip), nested(CTA_TUPLE_PROTO, &ports.concat())].concat())
    }

    #[test]
    fn a_connection_is_read_with_both_ends_and_its_state() {
        let client = ([198, 51, 100, 10], 40000);
        let body = [
            vec![2, 0, 0, 0],
            tuple_of(CTA_TUPLE_ORIG, client, ([192, 0, 2, 1], 30080)),
            tuple_of(CTA_TUPLE_REPLY, ([10, 1, 0, 1], 8080), client),
            attribute(CTA_STATUS, &(DESTINATION_IS_TRANSLATED | 0xe).to_be_bytes()),
            attribute(
                CTA_PROTOINFO,
                &attribute(CTA_PROTOINFO_TCP, &attribute(CTA_PROTOINFO_TCP_STATE, &[7])),
            ),
        ]
        .concat();
        let tracked = parse(&body).unwrap();
        let expected = Tracked {
            protocol: 6,
            destination: "192.0.2.1:30080".parse().unwrap(),
            replies_from: "10.1.0.1:8080".parse().unwrap(),
            replies_to: "198.51.100.10:40000".parse().unwrap(),
            is_masqueraded: false,
            is_translated: true,
            is_over: true,
        };
        assert_eq!(tracked, expected);
    }

    #[test]
    fn a_message_cut_short_anywhere_is_no_connection() {
        let client = ([198, 51, 100, 10], 40000);
        let body = [
            vec![2, 0, 0, 0],
            tuple_of(CTA_TUPLE_ORIG, client, ([192, 0, 2, 1], 30080)),
            tuple_of(CTA_TUPLE_REPLY, ([192, 0, 2, 1], 30080), client),
            attribute(CTA_STATUS, &0xe_u32.to_be_bytes()),
        ]
        .concat();
        for length in 0..body.len() {
            assert_eq!(parse(&body[..length]), None, "{length} bytes");
        }
        assert!(parse(&body).is_some_and(|tracked| !tracked.is_translated));
    }

    #[test]
    fn the_kernel_lists_its_connections() {
        each(|_| {}).unwrap();
    }
}
