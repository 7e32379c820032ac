//! The server.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::time::{sleep, timeout};

use super::{Greeting, MOST_BYTES};

/// The longest time of a connection.
const LONGEST: Duration = Duration::from_secs(30);
/// The pause after a failure of the listening socket, such as too many open files.
const PAUSE: Duration = Duration::from_millis(100);

/// Sockets for both protocols and both families on one port.
#[derive(Debug)]
pub struct Server {
    name: Arc<str>,
    listener: TcpListener,
    datagrams: UdpSocket,
}

impl Server {
    /// Opens the sockets. Port 0 is any free one.
    pub async fn open(name: &str, port: u16) -> io::Result<Self> {
        // An IPv6 socket takes IPv4 clients, too. A kernel without IPv6 has none.
        let all = [IpAddr::from(Ipv6Addr::UNSPECIFIED), Ipv4Addr::UNSPECIFIED.into()];
        let any = |port| all.map(|address| SocketAddr::new(address, port));
        let listener = TcpListener::bind(any(port).as_slice()).await?;
        let datagrams = UdpSocket::bind(any(listener.local_addr()?.port()).as_slice()).await?;
        Ok(Self { name: name.into(), listener, datagrams })
    }

    /// Returns the port.
    pub fn port(&self) -> io::Result<u16> {
        Ok(self.listener.local_addr()?.port())
    }

    /// Serves for ever.
    pub async fn run(self) {
        let Self { name, listener, datagrams } = self;
        tokio::join!(serve_connections(&name, &listener), serve_datagrams(&name, &datagrams));
    }
}

/// Returns the line about a client.
fn greeting(name: &str, client: SocketAddr) -> Vec<u8> {
    let client = SocketAddr::new(client.ip().to_canonical(), client.port());
    let greeting = Greeting { server: name.to_owned(), client };
    let mut line = serde_json::to_vec(&greeting).unwrap_or_default();
    line.push(b'\n');
    line
}

async fn serve_connections(name: &Arc<str>, listener: &TcpListener) {
    loop {
        match listener.accept().await {
            Ok((stream, client)) => {
                let line = greeting(name, client);
                // A client that breaks off is no failure of the server.
                tokio::spawn(timeout(LONGEST, answer(stream, line)));
            }
            Err(_) => sleep(PAUSE).await,
        }
    }
}

/// Reads the length and the bytes of a request, and writes the line and as many bytes.
async fn answer(mut stream: TcpStream, line: Vec<u8>) -> io::Result<()> {
    let length = stream.read_u32().await? as usize;
    if length > MOST_BYTES {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).await?;
    stream.write_all(&line).await?;
    stream.write_all(&bytes).await?;
    stream.shutdown().await
}

async fn serve_datagrams(name: &str, socket: &UdpSocket) {
    let mut request = vec![0; MOST_BYTES];
    loop {
        match socket.recv_from(&mut request).await {
            // An answer of another server, by a forged source, must not begin an exchange without an end.
            Ok((1.., _)) if request.first() == Some(&b'{') => {}
            Ok((length, client)) => {
                let mut answer = greeting(name, client);
                answer.resize(answer.len().max(length), 0);
                // The next datagram tells of a failure, too.
                let _ = socket.send_to(&answer, client).await;
            }
            Err(_) => sleep(PAUSE).await,
        }
    }
}
