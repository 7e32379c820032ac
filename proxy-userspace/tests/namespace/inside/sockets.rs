//! Features of socket hooks that the service per packet can't have.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::Result;
use aya::Pod;
use aya::maps::{HashMap, Map, MapData};
use millrace_lab::agent::Proxy;
use millrace_lab::cluster::Cluster;
use millrace_lab::manifests::Service;
use millrace_lab::net::Namespace;
use millrace_lab::topology::{Dual, Family, vip};
use proxy_common::socket::{SocketFrontend, SocketKey};
use proxy_common::{Addr4, Addr6, LAYOUT_VERSION};

use super::bind::bind;
use super::{Path, RELOAD, any, connect, knock, loopback, node, pod};
use crate::fixture::{counted, own, shared};

#[test]
fn a_node_port_on_loopback_is_for_the_nodes_own_namespace_only() -> Result<()> {
    let cluster = shared();
    let service = cluster.service("loopback", 213, &["pod-1b"])?.node_ports(32130);
    Path::Sockets.apply(&cluster, &service, &[1])?;
    Path::Sockets.reaches(&cluster, node(&cluster, 1)?, (loopback(), 32130), &["pod-1b"])?;
    for family in Family::ALL {
        let target = SocketAddr::new(loopback().of(family), 32130);
        assert_eq!(connect(pod(&cluster, "pod-1a")?, target)?, Err(ErrorKind::ConnectionRefused));
    }
    Ok(())
}

/// The kernel sends no packet from a loopback address to another node or a pod. It does so to an
/// address of the node.
#[test]
fn a_socket_bound_to_loopback_reaches_only_node_ports_whose_backend_is_on_the_node_itself() -> Result<()> {
    let mut cluster = shared();
    let port = 9193;
    cluster.start_host_server(1, port)?;
    let own = Service::new("bound-own", 203).port(80, port).host(cluster.bed().node(1)?).node_ports(32350);
    let other = cluster.service("bound-other", 204, &["pod-1b"])?.node_ports(32360);
    for service in [&own, &other] {
        Path::Sockets.apply(&cluster, service, &[1])?;
    }
    let connect = |address: IpAddr, port: u16| {
        node(&cluster, 1)?.run(async move || {
            let socket = match address {
                IpAddr::V4(_) => tokio::net::TcpSocket::new_v4()?,
                IpAddr::V6(_) => tokio::net::TcpSocket::new_v6()?,
            };
            socket.bind(SocketAddr::new(address, 0))?;
            Ok(socket.connect(SocketAddr::new(address, port)).await.map(drop).map_err(|error| error.kind()))
        })
    };
    for address in Family::ALL.map(|family| loopback().of(family)) {
        assert_eq!(connect(address, 32360)?, Err(ErrorKind::AddrNotAvailable), "{address}");
        assert_eq!(connect(address, 32350)?, Ok(()), "{address}");
    }
    assert!(counted(&cluster, 1, "loopback_source")? >= 2);
    Ok(())
}

#[test]
fn a_datagram_without_an_endpoint_is_refused_though_its_socket_is_not_connected() -> Result<()> {
    let cluster = shared();
    let service = cluster.service("unsent", 228, &["pod-1a"])?.without_endpoints();
    Path::Sockets.apply(&cluster, &service, &[1])?;
    for family in Family::ALL {
        let target = SocketAddr::new(service.cluster_ips().of(family), 80);
        assert_eq!(send(pod(&cluster, "pod-1a")?, target)?, Some(ErrorKind::ConnectionRefused), "{target}");
    }
    Ok(())
}

/// Returns the result of a datagram of an unconnected socket.
fn send(from: &Namespace, target: SocketAddr) -> Result<Option<ErrorKind>> {
    from.run(async move || {
        let socket = tokio::net::UdpSocket::bind(any(target)).await?;
        Ok(socket.send_to(b"who is there?", target).await.err().map(|error| error.kind()))
    })
}

#[test]
fn a_flag_restricts_the_hooks_to_the_node_or_removes_them() -> Result<()> {
    let mut cluster = own(1, 2)?;
    let service = cluster.service("flags", 1, &["pod-1b"])?.node_ports(30010);
    Path::Sockets.apply(&cluster, &service, &[1])?;
    let target = SocketAddr::new(service.cluster_ips().v4.into(), 80);
    let local: SocketAddr = "0.0.0.0:30010".parse()?;
    let connected = |cluster: &Cluster, from: &Namespace| -> Result<u64> {
        let before = counted(cluster, 1, "connected")?;
        // If the address has no owner, the packet gets lost on the network. The test does not wait
        // for that.
        let _ = knock(from, target).join_within(Duration::from_millis(500));
        Ok(counted(cluster, 1, "connected")? - before)
    };
    assert_eq!(connected(&cluster, pod(&cluster, "pod-1a")?)?, 1);
    assert_eq!(connected(&cluster, node(&cluster, 1)?)?, 1);
    assert_eq!(bind(node(&cluster, 1)?, local)?, [Some(ErrorKind::AddrInUse); 2]);

    cluster.start_agent_with(1, &["--socket-lb", "host", "--bind-protection", "off"])?;
    let proxy = cluster.proxy(1)?;
    let hooks = |proxy: &Proxy, prefix: &str| -> Result<usize> {
        Ok(proxy.attached()?.iter().filter(|attached| attached.hook.starts_with(prefix)).count())
    };
    proxy.wait_until_within(RELOAD, "bind is free", || Ok(hooks(proxy, "cg_bind")? == 0))?;
    assert_eq!(connected(&cluster, pod(&cluster, "pod-1a")?)?, 0);
    assert_eq!(connected(&cluster, node(&cluster, 1)?)?, 1);
    assert_eq!(bind(node(&cluster, 1)?, local)?, [None; 2]);

    cluster.start_agent_with(1, &["--socket-lb", "off", "--bind-protection", "off"])?;
    let proxy = cluster.proxy(1)?;
    proxy.wait_until_within(RELOAD, "no hook is left", || Ok(hooks(proxy, "cg_")? == 0))?;
    assert_eq!(connected(&cluster, node(&cluster, 1)?)?, 0);
    assert!(
        cluster.proxy(1)?.log().contains("--socket-lb off: processes of this node can't reach cluster IPs")
    );
    Ok(())
}

/// Source ranges are checked inside the node, too, if a socket has a source when it connects.
#[test]
fn source_ranges_are_checked_for_sockets_with_a_source() -> Result<()> {
    let cluster = shared();
    let pod_1a = cluster.bed().pod("pod-1a")?;
    let own = pod_1a.addresses().v4;
    let ranges = [format!("{own}/32"), "2001:db8::/128".to_owned()];
    let ranges: Vec<&str> = ranges.iter().map(String::as_str).collect();
    let service = cluster.service("ranges", 223, &["pod-2a"])?.load_balancer(vip(223)).source_ranges(&ranges);
    Path::Sockets.apply(&cluster, &service, &[1])?;
    let target = SocketAddr::new(vip(223).v4.into(), 80);
    let turned = |name: &str, source: IpAddr| -> Result<u64> {
        let before = counted(&cluster, 1, "connected")?;
        pod(&cluster, name)?.run(async move || {
            let socket = std::net::UdpSocket::bind(SocketAddr::new(source, 0))?;
            Ok(socket.connect(target)?)
        })?;
        Ok(counted(&cluster, 1, "connected")? - before)
    };
    assert_eq!(turned("pod-1a", own.into())?, 1, "inside");
    assert_eq!(turned("pod-1b", cluster.bed().pod("pod-1b")?.addresses().v4.into())?, 0, "outside");
    assert_eq!(turned("pod-1a", Ipv4Addr::UNSPECIFIED.into())?, 0, "not known before a packet is sent");
    Ok(())
}

/// A resolver's socket: connected, and waiting for an answer that never comes.
#[test]
fn a_connected_datagram_socket_gets_an_error_when_its_backend_goes_and_reaches_the_next() -> Result<()> {
    let mut cluster = shared();
    // The port is not shared: a pod that still serves another Service is not gone.
    let port = 9191;
    for number in [2, 3] {
        cluster.start_host_server(number, port)?;
    }
    let on = |number: u8| Ok(Service::new("replaced", 224).port(80, port).host(cluster.bed().node(number)?));
    let [first, second]: [Result<Service>; 2] = [2, 3].map(on);
    let (first, second) = (first?, second?);
    let from = pod(&cluster, "pod-1a")?;
    for family in Family::ALL {
        Path::Sockets.apply(&cluster, &first, &[1])?;
        let frontend = SocketAddr::new(first.cluster_ips().of(family), 80);
        let backend = SocketAddr::new(cluster.bed().node(2)?.addresses().of(family), port);
        let (connected, are_connected) = std::sync::mpsc::sync_channel(1);
        let task = from.spawn(async move || {
            let [client, direct] = [datagram(frontend).await?, datagram(backend).await?];
            assert_eq!(whom(&client).await?, "host-node2");
            connected.send(())?;
            let told = client.recv(&mut [0; 1]).await.map_err(|error| error.kind());
            assert_eq!(told, Err(ErrorKind::ConnectionAborted), "nothing was sent that could be answered");
            // The socket gets the error once. A sender that has not read learns that the socket has
            // no peer any more.
            let told = client.send(b"who is there?").await.map_err(|error| error.raw_os_error());
            assert_eq!(told, Err(Some(libc::EDESTADDRREQ)));
            client.connect(frontend).await?;
            Ok((whom(&client).await?, whom(&direct).await?))
        });
        are_connected.recv()?;
        Path::Sockets.apply(&cluster, &second, &[1])?;
        let after = task.join_within(millrace_lab::agent::SYNC_LIMIT)?;
        assert_eq!(after, ("host-node3".to_owned(), "host-node2".to_owned()), "{family}");
    }
    Ok(())
}

/// A connected socket receives only from its peer, so a datagram to another address does not change
/// that.
#[test]
fn a_connected_datagram_socket_keeps_its_frontend_though_it_asks_the_backend_itself() -> Result<()> {
    let cluster = shared();
    let service = cluster.service("connected-direct", 205, &["pod-2a"])?;
    Path::Sockets.apply(&cluster, &service, &[1])?;
    for family in Family::ALL {
        let frontend = SocketAddr::new(service.cluster_ips().of(family), 80);
        let backend =
            service.backends().into_iter().find(|backend| Family::of(backend.ip()) == family).unwrap();
        let peer = pod(&cluster, "pod-1a")?.run(async move || {
            let socket = datagram(frontend).await?.into_std()?;
            socket.send_to(b"who is there?", backend)?;
            Ok(socket.peer_addr()?)
        })?;
        assert_eq!(peer, frontend);
    }
    Ok(())
}

async fn datagram(target: SocketAddr) -> Result<tokio::net::UdpSocket> {
    let socket = tokio::net::UdpSocket::bind(any(target)).await?;
    socket.connect(target).await?;
    Ok(socket)
}

/// An evicted entry is not found when its backend goes. Connections come by the thousand, and
/// datagram sockets that only send are not seen again.
#[test]
fn connections_take_no_room_of_datagram_sockets() -> Result<()> {
    let cluster = shared();
    let service = cluster.service("rooms", 227, &["pod-2a"])?;
    Path::Sockets.apply(&cluster, &service, &[1])?;
    let frontend = SocketAddr::new(service.cluster_ips().v4.into(), 80);
    let opened = pod(&cluster, "pod-1a")?.run(async move || {
        let streams: Vec<_> = (0..20).map(|_| TcpStream::connect(frontend)).collect::<Result<_, _>>()?;
        Ok((streams, datagram(frontend).await?.into_std()?))
    })?;
    let remembered = |map: &str| remembered(cluster.proxy(1)?, map, frontend.ip());
    assert_eq!((remembered("SOCK_REV4")?, remembered("SOCK_TCP4")?), (1, 20));
    drop(opened);
    Ok(())
}

#[test]
fn the_entries_of_a_socket_are_removed_when_it_is_closed() -> Result<()> {
    let cluster = shared();
    let service = cluster.service("forgotten", 230, &["pod-2a"])?;
    Path::Sockets.apply(&cluster, &service, &[1])?;
    let Dual { v4, v6 } = service.cluster_ips();
    for (asked, target, version) in [
        (v4.into(), v4.into(), 4),
        (v4.into(), IpAddr::V6(v4.to_ipv6_mapped()), 4),
        (v6.into(), v6.into(), 6),
    ] {
        let target = SocketAddr::new(target, 80);
        let (stream, socket) = pod(&cluster, "pod-1a")?
            .run(async move || Ok((TcpStream::connect(target)?, datagram(target).await?.into_std()?)))?;
        let remembered = || -> Result<_> {
            let proxy = cluster.proxy(1)?;
            let of = |map: &str| remembered(proxy, &format!("{map}{version}"), asked);
            Ok((of("SOCK_TCP")?, of("SOCK_REV")?))
        };
        assert_eq!(stream.peer_addr()?, target);
        assert_eq!(remembered()?, (1, 1), "{target}");
        drop(stream);
        assert_eq!(remembered()?, (0, 1), "{target}");
        drop(socket);
        assert_eq!(remembered()?, (0, 0), "{target}");
    }
    Ok(())
}

/// Returns the number of sockets in a map that were directed away from this address.
fn remembered(proxy: &Proxy, map: &str, frontend: IpAddr) -> Result<usize> {
    let pin = proxy.bpffs().join(format!("millrace/v{LAYOUT_VERSION}/maps")).join(map);
    let map = Map::from_map_data(MapData::from_pin(pin)?)?;
    match frontend {
        IpAddr::V4(address) => entries_of(map, Addr4::from(address)),
        IpAddr::V6(address) => entries_of(map, Addr6::from(address)),
    }
}

fn entries_of<A: Copy + PartialEq>(map: Map, frontend: A) -> Result<usize>
where
    SocketKey<A>: Pod,
    SocketFrontend<A>: Pod,
{
    let map: HashMap<_, SocketKey<A>, SocketFrontend<A>> = map.try_into()?;
    let entries = map.iter().collect::<Result<Vec<_>, _>>()?;
    Ok(entries.iter().filter(|(_, entry)| entry.address == frontend).count())
}

/// Returns the backend that answers a connected socket.
async fn whom(socket: &tokio::net::UdpSocket) -> Result<String> {
    socket.send(b"who is there?").await?;
    let mut buffer = vec![0; 2048];
    let limit = millrace_lab::traffic::ANSWER_LIMIT;
    let length = tokio::time::timeout(limit, socket.recv(&mut buffer)).await??;
    let line = buffer[..length].split(|byte| *byte == b'\n').next().unwrap();
    Ok(serde_json::from_slice::<millrace_lab::traffic::Sighting>(line)?.backend)
}
