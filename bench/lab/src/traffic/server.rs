//! A backend: an HTTP server and a datagram server on one port, in both families.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::JoinSet;

use super::http::{content_length, read_head};
use super::{Sighting, sctp};
use crate::net::{Namespace, Task};
use crate::topology::{Dual, Node, Pod};

/// Answers until it is dropped.
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

    /// Starts a server in a pod over SCTP alone, which the kernel must have.
    pub fn sctp_in_pod(pod: &Pod, port: u16) -> Result<Self> {
        let targets = pod.addresses().both().map(|address| SocketAddr::new(address, port));
        let name = pod.name().to_owned();
        let task = pod.namespace().spawn(async move || {
            let mut servers = JoinSet::new();
            for target in targets {
                servers.spawn(accept(TcpListener::from_std(sctp::listener(target)?)?, name.clone()));
            }
            servers.join_all().await.into_iter().collect()
        });
        Ok(Self { _task: task })
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
                sockets.push((listener, socket));
            }
            Ok(sockets)
        })?;
        let name = name.to_owned();
        let task = namespace.spawn(async move || {
            let mut servers = JoinSet::new();
            for (listener, socket) in sockets {
                servers.spawn(accept(TcpListener::from_std(listener)?, name.clone()));
                servers.spawn(echo(UdpSocket::from_std(socket)?, name.clone()));
            }
            servers.join_all().await.into_iter().collect()
        });
        Ok(Self { _task: task })
    }
}

async fn accept(listener: TcpListener, name: String) -> Result<()> {
    let mut connections = JoinSet::new();
    loop {
        let (stream, peer) = listener.accept().await?;
        connections.spawn(answer(BufReader::new(stream), peer, name.clone()));
        while connections.try_join_next().is_some() {}
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

/// The number in `GET /bytes/<number>`.
fn wanted_bytes(head: &str) -> Option<usize> {
    head.strip_prefix("GET /bytes/")?.split(' ').next()?.parse().ok()
}

/// Sends each datagram back behind a line that says whom we saw.
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

/// A line of JSON.
fn sighting(backend: &str, peer: SocketAddr, received: usize) -> Result<Vec<u8>> {
    let sighting = Sighting { backend: backend.to_owned(), peer, received };
    let mut line = serde_json::to_vec(&sighting)?;
    line.push(b'\n');
    Ok(line)
}
