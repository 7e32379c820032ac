//! A server that costs little, and clients that do one thing as often as they can.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use millrace_lab::cluster::Cluster;
use millrace_lab::net::Task;
use millrace_lab::topology::Pod;
use nix::libc::linger;
use nix::sys::socket::{setsockopt, sockopt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream as Accepted};
use tokio::task::JoinSet;

/// Sends each byte back; ends when it is dropped.
pub struct Server {
    _task: Task<()>,
}

impl Server {
    /// Listens in a pod.
    pub fn start(pod: &Pod, address: SocketAddr) -> Result<Self> {
        let listener = pod.namespace().run(async move || {
            let listener = TcpListener::bind(address).await;
            Ok(listener.with_context(|| format!("can't listen on {address}"))?.into_std()?)
        })?;
        let task = pod.namespace().spawn(async move || {
            let listener = TcpListener::from_std(listener)?;
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await?;
                connections.spawn(echo(stream));
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Self { _task: task })
    }
}

/// Until the client is gone, however it goes.
async fn echo(mut stream: Accepted) {
    let mut byte = [0];
    while stream.read_exact(&mut byte).await.is_ok() && stream.write_all(&byte).await.is_ok() {}
}

/// Connects from pod-1a and closes, again and again; says how often.
pub fn connect_for(cluster: &Cluster, target: SocketAddr, time: Duration) -> Result<usize> {
    cluster.bed().pod("pod-1a")?.namespace().run(async move || {
        let (end, mut count) = (Instant::now() + time, 0);
        while Instant::now() < end {
            drop(connect(target)?);
            count += 1;
        }
        Ok(count)
    })
}

/// Sends a byte over one connection of pod-1a and waits for it, again and again; says how often.
pub fn exchange_for(cluster: &Cluster, target: SocketAddr, time: Duration) -> Result<usize> {
    cluster.bed().pod("pod-1a")?.namespace().run(async move || {
        let mut stream = connect(target)?;
        let (end, mut count) = (Instant::now() + time, 0);
        while Instant::now() < end {
            stream.write_all(&[7])?;
            stream.read_exact(&mut [0])?;
            count += 1;
        }
        Ok(count)
    })
}

/// Closed by a reset, so that no port is kept from the next connection.
fn connect(target: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect(target).with_context(|| format!("can't connect to {target}"))?;
    stream.set_nodelay(true)?;
    setsockopt(&stream, sockopt::Linger, &linger { l_onoff: 1, l_linger: 0 })?;
    Ok(stream)
}
