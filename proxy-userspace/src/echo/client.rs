//! The client.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use super::{Greeting, MOST_BYTES, Probe, Protocol, Reply};

/// The most bytes of a line, which an answer has beside those of the request.
const LINE: usize = 1024;
/// The time after which a datagram is sent again, as the kernel does for TCP.
const AGAIN: Duration = Duration::from_secs(1);
/// The probes that run at once.
const AT_ONCE: usize = 32;

/// Sends the requests of all probes. Returns the replies of each in order.
pub async fn ask_all(probes: &[Probe], patience: Duration) -> Vec<Vec<Reply>> {
    let all = probes.iter().map(|probe| async move {
        let mut replies = Vec::with_capacity(probe.requests.into());
        for _ in 0..probe.requests {
            replies.push(ask(probe, patience).await);
        }
        replies
    });
    stream::iter(all).buffered(AT_ONCE).collect().await
}

/// Sends one request, and waits so long for its answer.
pub async fn ask(probe: &Probe, patience: Duration) -> Reply {
    let exchange = async {
        match probe.protocol {
            Protocol::Tcp => by_tcp(probe).await,
            Protocol::Udp => by_udp(probe).await,
        }
    };
    match timeout(patience, exchange).await {
        Ok(Ok(reply)) => reply,
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => Reply::Refused,
        Ok(Err(error)) => Reply::Failed { why: error.to_string() },
        Err(_) => Reply::Silent,
    }
}

async fn by_tcp(probe: &Probe) -> io::Result<Reply> {
    let mut stream = TcpStream::connect(probe.target).await?;
    let own = stream.local_addr()?;
    stream.write_u32(u32::try_from(probe.bytes).unwrap_or(u32::MAX)).await?;
    stream.write_all(&vec![0; probe.bytes]).await?;
    let mut answer = Vec::new();
    stream.take((LINE + MOST_BYTES) as u64).read_to_end(&mut answer).await?;
    Ok(reply(&answer, own, |rest| rest == probe.bytes))
}

async fn by_udp(probe: &Probe) -> io::Result<Reply> {
    let any =
        if probe.target.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0)).await?;
    // A connected socket takes answers from the target's address alone.
    socket.connect(probe.target).await?;
    let own = socket.local_addr()?;
    let (request, mut answer) = (vec![0; probe.bytes], vec![0; LINE + MOST_BYTES]);
    loop {
        socket.send(&request).await?;
        if let Ok(received) = timeout(AGAIN, socket.recv(&mut answer)).await {
            answer.truncate(received?);
            return Ok(reply(&answer, own, |_| answer.len() >= probe.bytes));
        }
    }
}

/// Returns what an answer says. `is_whole` is asked for the number of bytes behind the line.
fn reply(answer: &[u8], own: SocketAddr, is_whole: impl FnOnce(usize) -> bool) -> Reply {
    let line = answer.split(|byte| *byte == b'\n').next().unwrap_or_default();
    match serde_json::from_slice::<Greeting>(line) {
        Ok(Greeting { server, client }) if is_whole(answer.len().saturating_sub(line.len() + 1)) => {
            Reply::Answered { server, seen: client, own }
        }
        Ok(Greeting { server, .. }) => Reply::Failed { why: format!("{server} answered in part") },
        Err(_) => Reply::Failed { why: "the answer is none of an echo server".to_owned() },
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
