//! Datagrams of ever new flows, and the first of each change that an endpoint gets.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ipnet::{IpNet, Ipv4Net};
use millrace_lab::net::{Namespace, Netlink};
use millrace_lab::topology::{Bed, Family, Pod};

use super::objects::{NODE_PORT, TARGET};

/// The time between two datagrams.
const PERIOD: Duration = Duration::from_micros(200);
/// The interval in which a thread checks whether it is to end.
const CHECK: Duration = Duration::from_millis(50);
/// Addresses of the client. Each change has another one, so that no flow of an earlier change comes
/// back.
const FIRST_ADDRESS: u8 = 100;
const ADDRESSES: u32 = 100;
const FIRST_PORT: u32 = 2_048;
const PORTS: u32 = 60_000;

/// Sends datagrams to a node's NodePort while there is a change.
pub struct Sender {
    /// The number of the present change; 0 = none.
    change: Arc<AtomicU32>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Receives datagrams in a pod.
pub struct Receiver {
    firsts: mpsc::Receiver<(u32, Instant)>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Gives the client its addresses.
pub fn add_addresses(bed: &Bed) -> Result<()> {
    bed.client().run(async || {
        let netlink = Netlink::open()?;
        for number in 0..ADDRESSES {
            let network = IpNet::V4(Ipv4Net::new(address(number), 24)?);
            netlink.add_address("eth0", network).await?;
        }
        Ok(())
    })
}

fn address(change: u32) -> Ipv4Addr {
    Ipv4Addr::new(198, 51, 100, FIRST_ADDRESS + (change % ADDRESSES) as u8)
}

impl Sender {
    /// Starts the thread.
    pub fn start(bed: &Bed, node: u8) -> Result<Self> {
        let target = SocketAddr::new(bed.node(node)?.addresses().of(Family::V4), NODE_PORT);
        let (change, is_over) = (Arc::<AtomicU32>::default(), Arc::<AtomicBool>::default());
        let thread = spawn(bed.client(), {
            let (change, is_over) = (Arc::clone(&change), Arc::clone(&is_over));
            move || send(target, &change, &is_over)
        })?;
        Ok(Self { change, is_over, thread: Some(thread) })
    }

    /// Begins with the datagrams of a change, or ends them with 0.
    pub fn set(&self, change: u32) {
        self.change.store(change, Ordering::Relaxed);
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        end(&self.is_over, &mut self.thread);
    }
}

impl Receiver {
    /// Starts the thread.
    pub fn start(pod: &Pod) -> Result<Self> {
        let (sender, firsts) = mpsc::channel();
        let is_over = Arc::<AtomicBool>::default();
        let socket = pod.namespace().run(async || {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, TARGET)).context("a pod's socket")?;
            socket.set_read_timeout(Some(CHECK))?;
            Ok(socket)
        })?;
        // The socket stays in the namespace in which it was opened.
        let thread = std::thread::spawn({
            let is_over = Arc::clone(&is_over);
            move || receive(&socket, &sender, &is_over)
        });
        Ok(Self { firsts, is_over, thread: Some(thread) })
    }

    /// Waits for the first datagram of a change. Returns the time of its arrival.
    pub fn first(&self, change: u32, limit: Duration) -> Result<Instant> {
        let end = Instant::now() + limit;
        loop {
            let rest = end.saturating_duration_since(Instant::now());
            let (found, time) =
                self.firsts.recv_timeout(rest).context("the new endpoint gets no datagram")?;
            if found == change {
                return Ok(time);
            }
        }
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        end(&self.is_over, &mut self.thread);
    }
}

fn end(is_over: &AtomicBool, thread: &mut Option<JoinHandle<()>>) {
    is_over.store(true, Ordering::Relaxed);
    if let Some(thread) = thread.take() {
        // A thread that panicked has shown itself by missing datagrams.
        let _ = thread.join();
    }
}

/// Starts a thread in a namespace.
fn spawn(namespace: &Namespace, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    // New threads are in the namespace of the thread that starts them.
    namespace.run(async move || Ok(std::thread::spawn(work)))
}

fn send(target: SocketAddr, change: &AtomicU32, is_over: &AtomicBool) {
    let (mut number, mut last) = (0, 0);
    while !is_over.load(Ordering::Relaxed) {
        let due = Instant::now() + PERIOD;
        let present = change.load(Ordering::Relaxed);
        if present != last {
            (last, number) = (present, 0);
        }
        if present != 0 {
            let port = FIRST_PORT + number % PORTS;
            number += 1;
            let source = SocketAddrV4::new(address(present), port as u16);
            // A datagram that can't be sent is missed like one that is lost: the next one follows.
            let _ = UdpSocket::bind(source).and_then(|socket| socket.send_to(&present.to_ne_bytes(), target));
        }
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
}

fn receive(socket: &UdpSocket, firsts: &mpsc::Sender<(u32, Instant)>, is_over: &AtomicBool) {
    let (mut last, mut payload) = (0, [0; 4]);
    while !is_over.load(Ordering::Relaxed) {
        let Ok(4) = socket.recv(&mut payload) else { continue };
        let (change, time) = (u32::from_ne_bytes(payload), Instant::now());
        if change != last {
            last = change;
            // The other end is gone only at the end of the bench.
            let _ = firsts.send((change, time));
        }
    }
}
