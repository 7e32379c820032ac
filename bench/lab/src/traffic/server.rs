//! A backend: an HTTP server and a datagram server on one port, in both families.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use futures_util::future::{BoxFuture, FutureExt as _, try_join_all};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use nix::sys::socket::{setsockopt, sockopt};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

use super::http::{content_length, read_head};
use super::{Sighting, sctp};
use crate::net::{Namespace, Task};
use crate::topology::{Dual, Node, Pod};

/// Bytes of waiting datagrams. A loss here, on a busy machine, would count as the proxy's.
const QUEUE: usize = 4 << 20;

/// A server, which answers until it is dropped. Its sockets are then closed.
#[derive(Debug)]
pub struct Server {
    _task: Task<()>,
}

impl Server {
    /// Starts a server in a pod, named like the pod.
    pub fn in_pod(pod: &Pod, port: u16) -> Result<Self> {
        Self::start(pod.namespace(), pod.name(), pod.addresses(), port)
    }

    /// Starts a server in a node's own namespace, as a pod with `hostNetwork` would.
    pub fn on_node(node: &Node, port: u16) -> Result<Self> {
        Self::start(node.namespace(), &format!("host-{}", node.name()), node.addresses(), port)
    }

    /// Starts a server in a pod over SCTP only, which the kernel must have.
    pub fn sctp_in_pod(pod: &Pod, port: u16) -> Result<Self> {
        let targets = pod.addresses().both().map(|address| SocketAddr::new(address, port));
        let name = pod.name().to_owned();
        let task = pod.namespace().spawn(async move || {
            let mut servers = Vec::new();
            for target in targets {
                servers.push(accept(TcpListener::from_std(sctp::listener(target)?)?, name.clone()));
            }
            try_join_all(servers).await.map(drop)
        });
        Ok(Self { _task: task })
    }

    /// Starts a server at other addresses of a namespace.
    pub fn at(namespace: &Namespace, name: &str, addresses: Dual, port: u16) -> Result<Self> {
        Self::start(namespace, name, addresses, port)
    }

    fn start(namespace: &Namespace, name: &str, addresses: Dual, port: u16) -> Result<Self> {
        let targets = addresses.both().map(|address| SocketAddr::new(address, port));
        let sockets = namespace.run(async move || {
            let mut sockets = Vec::new();
            for target in targets {
                let listener = TcpListener::bind(target).await;
                let listener = listener.with_context(|| format!("can't listen on {target}"))?.into_std()?;
                let socket = UdpSocket::bind(target).await;
                let socket = socket.with_context(|| format!("can't bind {target}"))?.into_std()?;
                setsockopt(&socket, sockopt::RcvBufForce, &QUEUE)?;
                sockets.push((listener, socket));
            }
            Ok(sockets)
        })?;
        let name = name.to_owned();
        let task = namespace.spawn(async move || {
            let mut servers: Vec<BoxFuture<'_, Result<()>>> = Vec::new();
            for (listener, socket) in sockets {
                servers.push(accept(TcpListener::from_std(listener)?, name.clone()).boxed());
                servers.push(echo(UdpSocket::from_std(socket)?, name.clone()).boxed());
            }
            try_join_all(servers).await.map(drop)
        });
        Ok(Self { _task: task })
    }
}

/// Answers all connections of a listener. They are no tasks of their own, so they are closed once
/// this is dropped.
async fn accept(listener: TcpListener, name: String) -> Result<()> {
    let mut connections = FuturesUnordered::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (stream, peer) = accepted?;
                connections.push(answer(BufReader::new(stream), peer, name.clone()));
            }
            Some(_) = connections.next() => {}
        }
    }
}

/// Answers every request of a connection.
async fn answer(mut stream: BufReader<TcpStream>, peer: SocketAddr, backend: String) -> Result<()> {
    while let Some(head) = read_head(&mut stream).await? {
        let mut body = vec![0; content_length(&head)?];
        stream.read_exact(&mut body).await?;
        let mut answer = match wanted_bytes(&head) {
            Some(bytes) => vec![b'.'; bytes],
            None => sighting(&backend, peer, body.len())?,
        };
        let mut response =
            format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", answer.len()).into_bytes();
        response.append(&mut answer);
        stream.write_all(&response).await?;
    }
    Ok(())
}

/// Returns the number in `GET /bytes/<number>`.
fn wanted_bytes(head: &str) -> Option<usize> {
    head.strip_prefix("GET /bytes/")?.split(' ').next()?.parse().ok()
}

/// Sends each datagram back, behind a line with the client's address.
async fn echo(socket: UdpSocket, backend: String) -> Result<()> {
    let mut buffer = vec![0; 65536];
    loop {
        // An ICMP error for an earlier answer ends neither the socket nor the server.
        let Ok((length, peer)) = socket.recv_from(&mut buffer).await else { continue };
        let mut answer = sighting(&backend, peer, length)?;
        answer.extend_from_slice(buffer.get(..length).unwrap_or_default());
        let _ = socket.send_to(&answer, peer).await;
    }
}

/// Returns a line of JSON.
fn sighting(backend: &str, peer: SocketAddr, received: usize) -> Result<Vec<u8>> {
    let sighting = Sighting { backend: backend.to_owned(), peer, received };
    let mut line = serde_json::to_vec(&sighting)?;
    line.push(b'\n');
    Ok(line)
}
