//! Single datagrams, and a steady stream of them whose losses are counted.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::net::UdpSocket;
use tokio::sync::oneshot;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout, timeout_at};

use super::raw::raw_socket;
use super::{ANSWER_LIMIT, Answer, Sighting};
use crate::frame::Frame;
use crate::net::{Namespace, Task};
use crate::topology::Family;

/// The most datagrams under way. Without a limit, a late sender would send a burst that overflows a
/// queue: a loss, but not the proxy's.
const UNDER_WAY: usize = 100;

/// A steady stream of datagrams from one socket.
#[derive(Debug)]
pub struct Stream {
    stop: oneshot::Sender<()>,
    task: Task<Delivery>,
}

/// The result of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delivery {
    /// Datagrams sent.
    pub sent: u64,
    /// Numbers of the unanswered datagrams.
    pub lost: BTreeSet<u64>,
    /// Answers by backend.
    pub backends: BTreeMap<String, u64>,
}

impl Stream {
    /// Sends a numbered datagram every `period` once the first one was answered. Pauses while many
    /// answers are missing.
    pub fn start(namespace: &Namespace, target: SocketAddr, period: Duration) -> Result<Self> {
        let socket = namespace.run(async move || {
            let socket = connect(target).await?;
            exchange(&socket, b"first").await.with_context(|| format!("no answer from UDP {target}"))?;
            Ok(socket.into_std()?)
        })?;
        let (stop, stopped) = oneshot::channel();
        let task = namespace.spawn(async move || stream(UdpSocket::from_std(socket)?, period, stopped).await);
        Ok(Self { stop, task })
    }

    /// Ends the stream, waits for answers under way, and returns the result.
    pub fn stop(self) -> Result<Delivery> {
        let _ = self.stop.send(());
        self.task.join_within(ANSWER_LIMIT * 2)
    }
}

/// Sends one datagram to `target` and waits for its answer.
pub(super) async fn ask(target: SocketAddr) -> Result<Answer> {
    let socket = connect(target).await?;
    let sighting = exchange(&socket, b"who is there?").await?;
    Ok(Answer { sighting, client: socket.local_addr()? })
}

/// Sends one datagram of `bytes` bytes in fragments of at most 1200 bytes and waits for its answer.
/// `order` has the numbers of the fragments.
pub(super) async fn ask_in_fragments(target: SocketAddr, bytes: usize, order: &[usize]) -> Result<Answer> {
    const PIECE: usize = 1200;
    const ETHERNET: usize = 14;
    let socket = connect(target).await?;
    let client = socket.local_addr()?;
    let datagram = Frame::ip(client.ip(), target.ip()).udp(client.port(), target.port());
    let pieces = datagram.payload(vec![0x5a; bytes]).fragments(client.port().into(), PIECE);
    let raw = raw_socket(Family::of(target.ip()), libc::IPPROTO_RAW)?;
    for number in order {
        let piece = pieces.get(*number).with_context(|| format!("there is no fragment {number}"))?.build();
        let packet = piece.get(ETHERNET..).unwrap_or_default();
        raw.send_to(packet, SocketAddr::new(target.ip(), 0)).await.context("can't send a fragment")?;
    }
    Ok(Answer { sighting: receive(&socket).await?, client })
}

/// Returns a socket with a port of its own that is connected to `target`.
pub(crate) async fn connect(target: SocketAddr) -> Result<UdpSocket> {
    let any = match target {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    // A socket that lives for long can still have the port of an earlier round.
    let socket = loop {
        match UdpSocket::bind(SocketAddr::new(any, fresh_port())).await {
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {}
            bound => break bound?,
        }
    };
    socket.connect(target).await?;
    Ok(socket)
}

/// Returns a port that no socket of this process had lately.
///
/// If a port comes back within a minute, to another frontend of the same backend, it is translated:
/// the first one's flow still lives.
fn fresh_port() -> u16 {
    const FIRST: u16 = 10_000;
    const PORTS: u16 = 20_000;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    FIRST + NEXT.fetch_add(1, Ordering::Relaxed) % PORTS
}

async fn exchange(socket: &UdpSocket, payload: &[u8]) -> Result<Sighting> {
    socket.send(payload).await?;
    receive(socket).await
}

async fn receive(socket: &UdpSocket) -> Result<Sighting> {
    let mut buffer = vec![0; 65536];
    let length =
        timeout(ANSWER_LIMIT, socket.recv(&mut buffer)).await.context("the answer took too long")??;
    Ok(parse(buffer.get(..length).unwrap_or_default()).context("the answer is not a backend's")?.0)
}

/// Splits an answer into the backend's line and the echo.
pub(crate) fn parse(answer: &[u8]) -> Option<(Sighting, &[u8])> {
    let end = answer.iter().position(|byte| *byte == b'\n')?;
    let (line, payload) = answer.split_at(end);
    Some((serde_json::from_slice(line).ok()?, payload.get(1..)?))
}

async fn stream(socket: UdpSocket, period: Duration, mut stopped: oneshot::Receiver<()>) -> Result<Delivery> {
    let mut delivery = Delivery::default();
    let mut buffer = vec![0; 2048];
    let mut clock = interval(period);
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = &mut stopped => break,
            _ = clock.tick(), if delivery.lost.len() < UNDER_WAY => delivery.send(&socket).await,
            Ok(length) = socket.recv(&mut buffer) => delivery.count(buffer.get(..length).unwrap_or_default()),
        }
    }
    // One more datagram shows the effects of everything before the end, however fast that was.
    delivery.send(&socket).await;
    let limit = Instant::now() + ANSWER_LIMIT;
    while !delivery.lost.is_empty()
        && let Ok(received) = timeout_at(limit, socket.recv(&mut buffer)).await
    {
        let length = received.unwrap_or(0);
        delivery.count(buffer.get(..length).unwrap_or_default());
    }
    Ok(delivery)
}

impl Delivery {
    /// Sends the next number. A refused send is a lost datagram as any other: it stays in the set.
    async fn send(&mut self, socket: &UdpSocket) {
        let _ = socket.send(&self.sent.to_be_bytes()).await;
        self.lost.insert(self.sent);
        self.sent += 1;
    }

    /// Removes an answer's number from the lost ones.
    fn count(&mut self, answer: &[u8]) {
        let Some((sighting, payload)) = parse(answer) else { return };
        let number = <[u8; 8]>::try_from(payload).map(u64::from_be_bytes);
        if number.is_ok_and(|number| self.lost.remove(&number)) {
            *self.backends.entry(sighting.backend).or_default() += 1;
        }
    }
}
