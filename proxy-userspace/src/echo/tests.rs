//! Clients and servers on loopback.

use std::net::IpAddr;

use tokio::net::TcpListener;

use super::super::Server;
use super::*;

const PATIENCE: Duration = Duration::from_secs(10);
/// For requests that are never answered.
const SHORT: Duration = Duration::from_millis(200);

fn probe(protocol: Protocol, target: SocketAddr, bytes: usize) -> Probe {
    Probe { protocol, target, requests: 1, bytes }
}

#[tokio::test]
async fn a_server_says_its_name_and_the_clients_address_and_echoes() {
    let server = Server::open("echo-a", 0).await.unwrap();
    let port = server.port().unwrap();
    let running = tokio::spawn(server.run());
    for (address, protocol, bytes) in [
        (IpAddr::from(Ipv4Addr::LOCALHOST), Protocol::Tcp, 1),
        (Ipv4Addr::LOCALHOST.into(), Protocol::Udp, 1),
        (Ipv6Addr::LOCALHOST.into(), Protocol::Tcp, MOST_BYTES),
        (Ipv6Addr::LOCALHOST.into(), Protocol::Udp, MOST_BYTES),
    ] {
        let reply = ask(&probe(protocol, SocketAddr::new(address, port), bytes), PATIENCE).await;
        let Reply::Answered { server, seen, own } = reply else {
            panic!("{protocol:?} {address}: {reply:?}")
        };
        assert_eq!((server.as_str(), seen, own.ip()), ("echo-a", own, address));
    }
    let target = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
    let twice = Probe { requests: 2, ..probe(Protocol::Tcp, target, 10) };
    let counts: Vec<_> =
        ask_all(&[twice, probe(Protocol::Udp, target, 10)], PATIENCE).await.iter().map(Vec::len).collect();
    assert_eq!(counts, [2, 1]);
    running.abort();
}

#[tokio::test]
async fn refusals_silence_and_other_servers_are_told_apart() {
    let other = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let target = other.local_addr().unwrap();
    let request = probe(Protocol::Tcp, target, 10);
    assert_eq!(ask(&request, SHORT).await, Reply::Silent);
    let asked = tokio::spawn(async move { ask(&request, PATIENCE).await });
    // The connection of the silent request came first.
    other.accept().await.unwrap();
    let (mut stream, _) = other.accept().await.unwrap();
    stream.write_all(b"SSH-2.0\n").await.unwrap();
    stream.read_u32().await.unwrap();
    drop(stream);
    assert!(matches!(asked.await.unwrap(), Reply::Failed { .. }));
    drop(other);
    assert_eq!(ask(&request, PATIENCE).await, Reply::Refused);
    let silent = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let target = silent.local_addr().unwrap();
    assert_eq!(ask(&probe(Protocol::Udp, target, 10), SHORT).await, Reply::Silent);
    drop(silent);
    assert_eq!(ask(&probe(Protocol::Udp, target, 10), PATIENCE).await, Reply::Refused);
}

#[test]
fn an_answer_that_lacks_bytes_is_named() {
    let own = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 1);
    let answer = b"{\"server\":\"a\",\"client\":\"192.0.2.1:5\"}\n123";
    let found = |bytes| reply(answer, own, |rest| rest == bytes);
    assert_eq!(found(4), Reply::Failed { why: "a answered in part".to_owned() });
    assert!(matches!(found(3), Reply::Answered { .. }));
}
