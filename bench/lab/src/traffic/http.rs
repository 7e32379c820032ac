//! The part of HTTP/1.1 that a client of the bed's servers needs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use super::{ANSWER_LIMIT, Answer, sctp};
use crate::patience::patience;

/// A connection that stays open between requests.
#[derive(Debug)]
pub struct Connection {
    stream: BufReader<TcpStream>,
    client: SocketAddr,
    /// The longest time until an answer.
    limit: Duration,
}

impl Connection {
    /// Connects to a server.
    pub async fn open(target: SocketAddr) -> Result<Self> {
        Self::open_from(target, 0).await
    }

    /// Connects from a given source port; 0 = any.
    pub async fn open_from(target: SocketAddr, source_port: u16) -> Result<Self> {
        let (socket, any) = match target {
            SocketAddr::V4(_) => (TcpSocket::new_v4()?, IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
            SocketAddr::V6(_) => (TcpSocket::new_v6()?, IpAddr::V6(Ipv6Addr::UNSPECIFIED)),
        };
        // Without a port of its own, a socket can have one that others have toward other targets.
        if source_port != 0 {
            socket.set_reuseaddr(true)?;
            socket.bind(SocketAddr::new(any, source_port))?;
        }
        let stream = timeout(patience(ANSWER_LIMIT), socket.connect(target))
            .await
            .context("connecting took too long")??;
        let client = stream.local_addr()?;
        Ok(Self::over(stream, client))
    }

    /// Connects to a server over SCTP, from an address of this machine.
    pub async fn open_sctp(source: IpAddr, target: SocketAddr) -> Result<Self> {
        let socket = sctp::socket(SocketAddr::new(source, 0))?;
        let connecting = TcpSocket::from_std_stream(socket.into()).connect(target);
        let stream =
            timeout(patience(ANSWER_LIMIT), connecting).await.context("associating took too long")??;
        let client = stream.local_addr()?;
        Ok(Self::over(stream, client))
    }

    fn over(stream: TcpStream, client: SocketAddr) -> Self {
        Self { stream: BufReader::new(stream), client, limit: patience(ANSWER_LIMIT) }
    }

    /// Sets the time after which an answer counts as lost.
    #[must_use]
    pub const fn with_limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Sends a request. The answer names the backend and the client's address as the backend saw
    /// it.
    pub async fn request(&mut self) -> Result<Answer> {
        self.upload(0).await
    }

    /// Sends a body of `bytes` zeros. The answer has the number of bytes that arrived.
    pub async fn upload(&mut self, bytes: usize) -> Result<Answer> {
        let head = format!("POST / HTTP/1.1\r\nHost: bed\r\nContent-Length: {bytes}\r\n\r\n");
        let body = self.exchange(head, bytes).await?;
        let sighting = serde_json::from_slice(&body).context("the answer is not a backend's")?;
        Ok(Answer { sighting, client: self.client })
    }

    /// Asks for a body of `bytes` bytes and returns the number of bytes that came.
    pub async fn download(&mut self, bytes: usize) -> Result<usize> {
        let head = format!("GET /bytes/{bytes} HTTP/1.1\r\nHost: bed\r\n\r\n");
        Ok(self.exchange(head, 0).await?.len())
    }

    /// Asks for a page.
    pub async fn get(&mut self, path: &str) -> Result<String> {
        let head = format!("GET {path} HTTP/1.1\r\nHost: bed\r\n\r\n");
        Ok(String::from_utf8(self.exchange(head, 0).await?)?)
    }

    async fn exchange(&mut self, head: String, zeros: usize) -> Result<Vec<u8>> {
        timeout(self.limit, async {
            let mut request = head.into_bytes();
            request.resize(request.len() + zeros, 0);
            self.stream.write_all(&request).await?;
            let head = read_head(&mut self.stream).await?.context("the server closed the connection")?;
            let mut body = vec![0; content_length(&head)?];
            self.stream.read_exact(&mut body).await?;
            Ok(body)
        })
        .await
        .context("the answer took too long")?
    }
}

/// Returns the status of a GET of a path, on a connection of its own.
pub async fn get_status(target: SocketAddr, path: &str) -> Result<u16> {
    let mut connection = Connection::open(target).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: bed\r\nConnection: close\r\n\r\n");
    timeout(patience(ANSWER_LIMIT), async {
        connection.stream.write_all(request.as_bytes()).await?;
        let head = read_head(&mut connection.stream).await?.context("the server closed the connection")?;
        let status = head.split(' ').nth(1).context("no status in the answer")?;
        Ok(status.parse()?)
    })
    .await
    .context("the answer took too long")?
}

/// Reads up to and including the empty line. Returns `None` if the peer closed instead of sending
/// another head.
pub(super) async fn read_head(stream: &mut BufReader<TcpStream>) -> Result<Option<String>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() > 4096 {
            bail!("the head of the message is too long");
        }
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof && head.is_empty() => {
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Some(String::from_utf8(head)?))
}

/// Returns the length of the body that a head announces, 0 without one.
pub(super) fn content_length(head: &str) -> Result<usize> {
    head.lines()
        .filter_map(|line| line.split_once(": "))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .map_or(Ok(0), |(_, value)| value.parse().context("a content length that is no number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_of_a_body_is_found_in_any_spelling() {
        assert_eq!(content_length("HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\n").unwrap(), 12);
        assert_eq!(content_length("GET / HTTP/1.1\r\nHost: bed\r\n\r\n").unwrap(), 0);
        assert!(content_length("GET / HTTP/1.1\r\nContent-Length: many\r\n\r\n").is_err());
    }
}
