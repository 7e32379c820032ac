//! A cheap server, and clients that do one thing as often as they can.

use std::future::Future;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::pin::Pin;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use millrace_lab::net::{Namespace, Task};
use millrace_lab::topology::Pod;
use nix::libc::linger;
use nix::sys::socket::{setsockopt, sockopt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream as Accepted};
use tokio::task::JoinSet;

use super::awake::Place;

/// The bytes that the source sends, and the client receives, at a time.
const CHUNK: usize = 64 * 1024;
/// The number of connections that may wait while the server does not run. A further SYN would be
/// lost, and sent again after a second.
const BACKLOG: u32 = 4096;

/// Serves connections until it is dropped.
pub struct Server {
    _task: Task<()>,
}

impl Server {
    /// Sends each byte back.
    pub fn echo(pod: &Pod, address: SocketAddr) -> Result<Self> {
        Self::start(pod, address, |stream| Box::pin(echo(stream)))
    }

    /// Sends as many bytes as it can.
    pub fn source(pod: &Pod, address: SocketAddr) -> Result<Self> {
        Self::start(pod, address, |stream| Box::pin(pour(stream)))
    }

    fn start(pod: &Pod, address: SocketAddr, serve: Serve) -> Result<Self> {
        let listener = pod.namespace().run(async move || {
            let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
            socket.set_reuseaddr(true)?;
            let listener = socket.bind(address).and_then(|()| socket.listen(BACKLOG));
            Ok(listener.with_context(|| format!("can't listen on {address}"))?.into_std()?)
        })?;
        let task = pod.namespace().spawn(async move || {
            Place::Server.take()?;
            let listener = TcpListener::from_std(listener)?;
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await?;
                connections.spawn(serve(stream));
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Self { _task: task })
    }
}

type Serve = fn(Accepted) -> Pin<Box<dyn Future<Output = ()> + Send>>;

/// Sends each byte back until the client is gone.
async fn echo(mut stream: Accepted) {
    let mut byte = [0];
    while stream.read_exact(&mut byte).await.is_ok() && stream.write_all(&byte).await.is_ok() {}
}

/// Sends bytes until the client is gone.
async fn pour(mut stream: Accepted) {
    let chunk = vec![7; CHUNK];
    while stream.write_all(&chunk).await.is_ok() {}
}

/// The work of a spell.
#[derive(Debug, Default)]
pub struct Done {
    /// How often, or how much, it was done.
    pub count: usize,
    /// The time of each connection's set-up, where that is the work.
    pub times: Vec<Duration>,
}

/// Connects and closes again and again.
pub fn connect_for(client: &Namespace, target: SocketAddr, time: Duration) -> Result<Done> {
    client.run(async move || {
        Place::Client.take()?;
        let (mut now, mut times) = (Instant::now(), Vec::new());
        let end = now + time;
        while now < end {
            let stream = connect(target)?;
            times.push(now.elapsed());
            drop(stream);
            now = Instant::now();
        }
        Ok(Done { count: times.len(), times })
    })
}

/// Sends a byte over one connection and waits for its echo, again and again.
pub fn exchange_for(client: &Namespace, target: SocketAddr, time: Duration) -> Result<Done> {
    client.run(async move || {
        Place::Client.take()?;
        let mut stream = connect(target)?;
        let (end, mut count) = (Instant::now() + time, 0);
        while Instant::now() < end {
            stream.write_all(&[7])?;
            stream.read_exact(&mut [0])?;
            count += 1;
        }
        Ok(Done { count, times: Vec::new() })
    })
}

/// Receives over one connection. The count is that of bytes.
pub fn receive_for(client: &Namespace, target: SocketAddr, time: Duration) -> Result<Done> {
    client.run(async move || {
        Place::Client.take()?;
        let mut stream = connect(target)?;
        let (mut buffer, mut count) = (vec![0; CHUNK], 0);
        let end = Instant::now() + time;
        while Instant::now() < end {
            count += stream.read(&mut buffer)?;
        }
        Ok(Done { count, times: Vec::new() })
    })
}

/// Connects. The connection will be closed by a reset, so that its port is free at once.
fn connect(target: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect(target).with_context(|| format!("can't connect to {target}"))?;
    stream.set_nodelay(true)?;
    setsockopt(&stream, sockopt::Linger, &linger { l_onoff: 1, l_linger: 0 })?;
    Ok(stream)
}
