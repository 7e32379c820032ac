//! The frames that crossed the wires, parsed, as a packet socket saw them.

mod packet;
mod socket;
mod trail;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

pub use packet::{Packet, Transport, Tunnel};
pub use trail::Trail;

use crate::net::Namespace;
use socket::PacketSocket;

/// More frames than any test waits for. A capture beyond that would take all memory of the machine.
const MOST: usize = 1_000_000;

/// A running capture on devices of one namespace.
#[derive(Debug)]
pub struct Capture {
    sockets: Vec<(Arc<str>, PacketSocket)>,
    seen: Vec<Captured>,
}

/// A captured IP packet.
#[derive(Clone, Debug)]
pub struct Captured {
    /// The device it crossed.
    pub device: Arc<str>,
    /// Its direction.
    pub direction: Direction,
    /// The time since the epoch, by the kernel's clock.
    pub time: Duration,
    /// The parsed packet.
    pub packet: Packet,
    /// The whole frame.
    pub frame: Vec<u8>,
}

/// The direction of a frame across a device, from the view of the device's namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Received by this namespace.
    In,
    /// Sent by this namespace.
    Out,
}

impl Capture {
    /// Begins to capture on devices of a namespace.
    ///
    /// A node's XDP program runs before a capture on that node. To see a node's behaviour, capture
    /// on the other end of its wire.
    pub fn start(namespace: &Namespace, devices: &[&str]) -> Result<Self> {
        let devices: Vec<String> = devices.iter().map(|device| (*device).to_owned()).collect();
        namespace.run(async move || Self::start_here(&devices))
    }

    /// Begins to capture on devices of the current thread's namespace.
    pub fn start_here(devices: &[impl AsRef<str>]) -> Result<Self> {
        let open = |device: &str| Ok((Arc::from(device), PacketSocket::open(device)?));
        let sockets = devices.iter().map(|device| open(device.as_ref())).collect::<Result<_>>()?;
        Ok(Self { sockets, seen: Vec::new() })
    }

    /// Returns all packets captured so far, in the order of time. Frames without an IP packet are
    /// left out.
    pub fn packets(&mut self) -> Result<&[Captured]> {
        for (device, socket) in &self.sockets {
            while let Some(received) = socket.receive()? {
                let Some(packet) = Packet::parse(&received.frame) else { continue };
                self.seen.push(Captured {
                    device: device.clone(),
                    direction: received.direction,
                    time: received.time,
                    packet,
                    frame: received.frame,
                });
            }
            let lost = socket.lost()?;
            if lost > 0 {
                bail!("the capture on {device} lost {lost} frames");
            }
            if self.seen.len() > MOST {
                bail!("the capture has more than {MOST} frames");
            }
        }
        self.seen.sort_by_key(|captured| captured.time);
        Ok(&self.seen)
    }

    /// Waits until a packet that `wanted` accepts has been captured.
    pub fn wait_for(&mut self, limit: Duration, wanted: impl Fn(&Captured) -> bool) -> Result<Captured> {
        let end = Instant::now() + limit;
        loop {
            if let Some(found) = self.packets()?.iter().find(|captured| wanted(captured)) {
                return Ok(found.clone());
            }
            if Instant::now() > end {
                bail!("no such packet within {limit:?}; there were:\n{}", Listing(&self.seen));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Sends a frame unchanged, out of a device of a namespace.
pub fn send_frame(namespace: &Namespace, device: &str, frame: Vec<u8>) -> Result<()> {
    let device = device.to_owned();
    namespace.run(async move || PacketSocket::open(&device)?.send(&frame))
}

/// Captured packets, one a line, for messages.
#[derive(Debug)]
pub struct Listing<'a>(pub &'a [Captured]);

impl fmt::Display for Listing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|captured| writeln!(f, "  {captured}"))
    }
}

impl fmt::Display for Captured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let arrow = match self.direction {
            Direction::In => "in ",
            Direction::Out => "out",
        };
        write!(f, "{:<8} {arrow} {}", self.device, self.packet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::UdpSocket;

    #[test]
    fn a_datagram_over_loopback_is_captured_both_ways() {
        let namespace = Namespace::create("capture").unwrap();
        let mut capture = Capture::start(&namespace, &["lo"]).unwrap();
        let ports = namespace.run(async || {
            let receiver = UdpSocket::bind("127.0.0.1:0").await?;
            let sender = UdpSocket::bind("127.0.0.1:0").await?;
            sender.send_to(b"hello", receiver.local_addr()?).await?;
            Ok((sender.local_addr()?, receiver.local_addr()?))
        });
        let (sender, receiver) = ports.unwrap();
        for direction in [Direction::Out, Direction::In] {
            let found = capture
                .wait_for(Duration::from_secs(2), |captured| {
                    captured.direction == direction && captured.packet.is_between(sender, receiver)
                })
                .unwrap();
            assert_eq!(found.packet.transport.unwrap().payload, 5);
        }
    }
}
