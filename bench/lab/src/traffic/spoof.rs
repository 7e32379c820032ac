//! Packets from forged addresses, as a client can send them on a network without ingress filters.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result};
use ipnet::IpNet;
use tokio::net::UdpSocket;
use tokio::time::{MissedTickBehavior, interval};

use super::raw::raw_socket;
use crate::frame::Frame;
use crate::net::Netlink;
use crate::topology::{Bed, Dual, Family};

const ETHERNET_HEADER: usize = 14;
/// The networks of these addresses, which are reserved for benchmarks (RFC 2544, RFC 5180).
const IPV4_NETWORK: u32 = 0xc612_0000;
const IPV4_BITS: u8 = 15;
const IPV6_NETWORK: u128 = 0x2001_0002 << 96;
const IPV6_BITS: u8 = 48;
/// The ticks of [`send_datagram_pairs`].
pub const TICKS_PER_SECOND: u32 = 100;
/// The pairs of datagrams that are sent together at each tick.
pub const PAIRS_PER_TICK: u32 = 20;

/// Returns the forged address and port of a number. The first 2^31 numbers have different ones.
#[must_use]
pub fn stranger(family: Family, number: u32) -> SocketAddr {
    const HOSTS: u32 = 1 << (32 - IPV4_BITS);
    let port = 1024 + u16::try_from(number / HOSTS % 60_000).unwrap_or(0);
    let host = number % HOSTS;
    let address: IpAddr = match family {
        Family::V4 => (IPV4_NETWORK | host).to_be_bytes().into(),
        Family::V6 => Ipv6Addr::from_bits(IPV6_NETWORK | u128::from(host)).into(),
    };
    SocketAddr::new(address, port)
}

/// Routes answers to forged addresses to the client's machine, which ignores them. A router without
/// a route would send an error.
pub fn route_strangers(bed: &Bed) -> Result<()> {
    let gateways: Dual = bed.client_addresses();
    bed.router().run(async move || {
        let netlink = Netlink::open()?;
        for family in Family::ALL {
            let bits = if family == Family::V4 { IPV4_BITS } else { IPV6_BITS };
            let network = IpNet::new(stranger(family, 0).ip(), bits)?.trunc();
            netlink.set_route(network, gateways.of(family)).await?;
        }
        Ok(())
    })
}

/// A sender of whole IP packets.
#[derive(Debug)]
pub struct Forger {
    socket: UdpSocket,
}

impl Forger {
    /// Opens a socket in the namespace of the current thread.
    pub fn new(family: Family) -> Result<Self> {
        Ok(Self { socket: raw_socket(family, libc::IPPROTO_RAW)? })
    }

    /// Sends the packet of a frame to its destination.
    pub async fn send(&self, frame: &Frame) -> Result<()> {
        let target = SocketAddr::new(frame.destination().ip(), 0);
        let frame = frame.build();
        let sent = self.socket.send_to(frame.get(ETHERNET_HEADER..).unwrap_or_default(), target).await;
        sent.with_context(|| format!("can't send a forged packet to {target}"))?;
        Ok(())
    }
}

/// Sends 2,000 pairs of datagrams a second, each pair from another forged address. The second one
/// moves the flow to the table of confirmed flows. Returns the number of pairs.
pub async fn send_datagram_pairs(target: SocketAddr, ticks: u32) -> Result<u32> {
    /// The ticks between the two datagrams of a pair.
    const APART: u32 = 2;
    let forger = Forger::new(Family::of(target.ip()))?;
    let mut tick = interval(Duration::from_secs(1) / TICKS_PER_SECOND);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for now in 0..ticks + APART {
        tick.tick().await;
        for batch in [Some(now), now.checked_sub(APART)].into_iter().flatten().filter(|batch| *batch < ticks)
        {
            for number in batch * PAIRS_PER_TICK..(batch + 1) * PAIRS_PER_TICK {
                let source = stranger(Family::of(target.ip()), number);
                let frame = Frame::ip(source.ip(), target.ip()).udp(source.port(), target.port());
                forger.send(&frame.payload(&b"a question"[..])).await?;
            }
        }
    }
    Ok(ticks * PAIRS_PER_TICK)
}
