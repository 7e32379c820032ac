//! Pods and processes of the nodes ask services, through the hooks of their sockets.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use aya::maps::{HashMap, Map, MapData};
use millrace_lab::agent::Proxy;
use millrace_lab::cluster::{Cluster, TARGET_PORT};
use millrace_lab::manifests::Service;
use millrace_lab::net::Namespace;
use millrace_lab::topology::{Dual, Family, vip};
use millrace_lab::traffic::{Answer, Protocol, ask};
use proxy_common::socket::{SocketFrontend, SocketKey};
use proxy_common::{Addr4, LAYOUT_VERSION};

use crate::fixture::{counted, own, shared};

/// Requests after which a backend that has not answered is held to be left out.
const MOST: usize = 80;
/// How long an agent with other flags may take to load its programs anew.
const RELOAD: Duration = Duration::from_mins(2);

/// Asks over both families and protocols until each of the backends has answered, and no other; the backends see the asking
/// socket's own address, since nothing is translated on the way.
fn reaches(from: &Namespace, address: Dual, port: u16, backends: &[&str]) -> Result<()> {
    for (family, protocol) in Family::ALL.into_iter().flat_map(|f| Protocol::ALL.map(|p| (f, p))) {
        let target = SocketAddr::new(address.of(family), port);
        let answers = asked_until(from, protocol, target, backends)?;
        for Answer { sighting, client } in answers {
            let from = from.name();
            ensure!(sighting.peer == client, "{from} asked {target} as {client}: {sighting:?}");
        }
    }
    Ok(())
}

fn asked_until(
    from: &Namespace,
    protocol: Protocol,
    target: SocketAddr,
    backends: &[&str],
) -> Result<Vec<Answer>> {
    let wanted: BTreeSet<&str> = backends.iter().copied().collect();
    let mut answers: Vec<Answer> = Vec::new();
    while answers.len() < MOST {
        let answer = ask(from, protocol, target).with_context(|| from.name().to_owned())?;
        let name = &answer.sighting.backend;
        ensure!(wanted.contains(name.as_str()), "{} asked {target}: {name} answered", from.name());
        answers.push(answer);
        let seen: BTreeSet<&str> = answers.iter().map(|answer| answer.sighting.backend.as_str()).collect();
        if seen == wanted && answers.len() > 3 {
            return Ok(answers);
        }
    }
    anyhow::bail!("{} asked {target}: not all of {wanted:?} answered", from.name())
}

/// The node and the namespaces of its pods and of itself from which everything is asked.
fn pod<'a>(cluster: &'a Cluster, name: &str) -> Result<&'a Namespace> {
    Ok(cluster.bed().pod(name)?.namespace())
}

fn node(cluster: &Cluster, number: u8) -> Result<&Namespace> {
    Ok(cluster.bed().node(number)?.namespace())
}

fn loopback() -> Dual {
    Dual { v4: Ipv4Addr::LOCALHOST, v6: Ipv6Addr::LOCALHOST }
}

/// Services are applied on the nodes of their clients, whose hooks are attached.
fn apply(cluster: &Cluster, service: &Service, nodes: &[u8]) -> Result<()> {
    cluster.apply(service, nodes)?;
    for number in nodes {
        cluster.proxy(*number)?.wait_for_hooks("cgroup", &["cg_connect4", "cg_sendmsg6", "cg_bind6"])?;
    }
    Ok(())
}

#[test]
fn a_cluster_ip_leads_from_pods_and_from_the_host_to_pods_of_this_node_of_others_and_to_oneself() -> Result<()>
{
    let cluster = shared();
    for (index, backend) in ["pod-1a", "pod-1b", "pod-2a"].into_iter().enumerate() {
        let number = 200 + u8::try_from(index)?;
        let service = cluster.service(&format!("cluster-ip-{number}"), number, &[backend])?;
        apply(&cluster, &service, &[1])?;
        for from in [pod(&cluster, "pod-1a")?, node(&cluster, 1)?] {
            reaches(from, service.cluster_ips(), 80, &[backend])?;
        }
    }
    Ok(())
}

#[test]
fn a_cluster_ip_is_spread_over_all_its_backends() -> Result<()> {
    let cluster = shared();
    let backends = ["pod-1a", "pod-1b", "pod-2a", "pod-3b"];
    let service = cluster.service("spread", 210, &backends)?;
    apply(&cluster, &service, &[1])?;
    reaches(pod(&cluster, "pod-1a")?, service.cluster_ips(), 80, &backends)?;
    reaches(node(&cluster, 1)?, service.cluster_ips(), 80, &backends)
}

#[test]
fn node_ports_external_ips_and_load_balancers_are_reached_from_inside_the_node() -> Result<()> {
    let cluster = shared();
    let backends = ["pod-1a", "pod-2a"];
    let service = cluster
        .service("from-inside", 211, &backends)?
        .node_ports(32110)
        .external(vip(211))
        .load_balancer(vip(212));
    apply(&cluster, &service, &[1])?;
    let own = cluster.bed().node(1)?.addresses();
    for from in [pod(&cluster, "pod-1a")?, node(&cluster, 1)?] {
        for (address, port) in [(own, 32110), (vip(211), 80), (vip(212), 80)] {
            reaches(from, address, port, &backends)?;
        }
    }
    reaches(node(&cluster, 1)?, loopback(), 32110, &backends)
}

#[test]
fn a_node_port_on_loopback_is_for_the_nodes_own_namespace_only() -> Result<()> {
    let cluster = shared();
    let service = cluster.service("loopback", 213, &["pod-1b"])?.node_ports(32130);
    apply(&cluster, &service, &[1])?;
    reaches(node(&cluster, 1)?, loopback(), 32130, &["pod-1b"])?;
    for family in Family::ALL {
        let target = SocketAddr::new(loopback().of(family), 32130);
        assert_eq!(connect(pod(&cluster, "pod-1a")?, target)?, Err(ErrorKind::ConnectionRefused));
    }
    Ok(())
}

/// What becomes of a TCP connection.
fn connect(from: &Namespace, target: SocketAddr) -> Result<Result<SocketAddr, ErrorKind>> {
    from.run(async move || match tokio::net::TcpStream::connect(target).await {
        Ok(stream) => Ok(Ok(stream.peer_addr()?)),
        Err(error) => Ok(Err(error.kind())),
    })
}

/// Every row of the article on externalTrafficPolicy, from inside: outside clients are in `local.rs`.
#[test]
fn policy_local_is_no_concern_of_pods_and_processes_on_nodes_with_and_without_a_backend() -> Result<()> {
    let cluster = shared();
    let service = cluster
        .service("etp-local", 214, &["pod-2a"])?
        .node_ports(32140)
        .load_balancer(vip(214))
        .external(vip(215))
        .local();
    apply(&cluster, &service, &[1, 2])?;
    for number in [1, 2] {
        let own = cluster.bed().node(number)?.addresses();
        for from in [pod(&cluster, &format!("pod-{number}b"))?, node(&cluster, number)?] {
            for (address, port) in [(own, 32140), (vip(214), 80), (vip(215), 80)] {
                reaches(from, address, port, &["pod-2a"])?;
            }
        }
        reaches(node(&cluster, number)?, loopback(), 32140, &["pod-2a"])?;
    }
    Ok(())
}

#[test]
fn internal_policy_local_keeps_to_the_node_and_fails_at_once_where_it_has_no_backend() -> Result<()> {
    let cluster = shared();
    // A node port gives it a Cluster list, too.
    let service =
        cluster.service("itp-local", 216, &["pod-1b", "pod-2a"])?.node_ports(32160).internal_local();
    apply(&cluster, &service, &[1, 3])?;
    reaches(pod(&cluster, "pod-1a")?, service.cluster_ips(), 80, &["pod-1b"])?;
    reaches(node(&cluster, 1)?, service.cluster_ips(), 80, &["pod-1b"])?;
    for family in Family::ALL {
        let target = SocketAddr::new(service.cluster_ips().of(family), 80);
        let before = counted(&cluster, 3, "no_local_endpoint")?;
        assert_eq!(connect(pod(&cluster, "pod-3a")?, target)?, Err(ErrorKind::HostUnreachable));
        assert!(counted(&cluster, 3, "no_local_endpoint")? > before);
    }
    Ok(())
}

#[test]
fn what_has_no_endpoint_is_refused_at_once() -> Result<()> {
    let cluster = shared();
    let service = cluster
        .service("empty", 217, &["pod-1a"])?
        .node_ports(32170)
        .load_balancer(vip(217))
        .without_endpoints();
    apply(&cluster, &service, &[1])?;
    for family in Family::ALL {
        for (address, port) in [(service.cluster_ips(), 80), (vip(217), 80), (service.cluster_ips(), 81)] {
            let target = SocketAddr::new(address.of(family), port);
            assert_eq!(
                connect(pod(&cluster, "pod-1a")?, target)?,
                Err(ErrorKind::ConnectionRefused),
                "{target}"
            );
            assert_eq!(
                send(pod(&cluster, "pod-1a")?, target)?,
                Some(ErrorKind::ConnectionRefused),
                "{target}"
            );
        }
    }
    Ok(())
}

/// What becomes of a datagram of a socket that is not connected.
fn send(from: &Namespace, target: SocketAddr) -> Result<Option<ErrorKind>> {
    from.run(async move || {
        let socket = tokio::net::UdpSocket::bind(any(target)).await?;
        Ok(socket.send_to(b"who is there?", target).await.err().map(|error| error.kind()))
    })
}

fn any(target: SocketAddr) -> SocketAddr {
    let any: IpAddr = match target {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    SocketAddr::new(any, 0)
}

#[test]
fn a_connected_socket_is_told_that_its_peer_is_the_frontend() -> Result<()> {
    let cluster = shared();
    let service = cluster.service("peer", 218, &["pod-2a"])?;
    apply(&cluster, &service, &[1])?;
    for family in Family::ALL {
        let target = SocketAddr::new(service.cluster_ips().of(family), 80);
        assert_eq!(connect(pod(&cluster, "pod-1a")?, target)?, Ok(target));
    }
    Ok(())
}

/// Asks `times` from one unconnected socket, bound to `local`; says who answered and who the socket is told it was.
fn ask_unconnected(
    from: &Namespace,
    local: SocketAddr,
    target: SocketAddr,
    times: usize,
) -> Result<Vec<(String, SocketAddr)>> {
    from.run(async move || {
        let socket = tokio::net::UdpSocket::bind(local).await?;
        let mut answers = Vec::new();
        for _ in 0..times {
            socket.send_to(b"who is there?", target).await?;
            let mut buffer = vec![0; 2048];
            let limit = millrace_lab::traffic::ANSWER_LIMIT;
            let (length, peer) = tokio::time::timeout(limit, socket.recv_from(&mut buffer)).await??;
            let line = buffer[..length].split(|byte| *byte == b'\n').next().unwrap();
            let sighting: millrace_lab::traffic::Sighting = serde_json::from_slice(line)?;
            answers.push((sighting.backend, peer));
        }
        Ok(answers)
    })
}

#[test]
fn the_datagrams_of_an_unconnected_socket_go_to_one_backend_and_come_from_the_frontend() -> Result<()> {
    let cluster = shared();
    let backends = ["pod-1a", "pod-1b", "pod-2a", "pod-2b"];
    let service = cluster.service("unconnected", 219, &backends)?;
    apply(&cluster, &service, &[1])?;
    for family in Family::ALL {
        let target = SocketAddr::new(service.cluster_ips().of(family), 80);
        let mut chosen = BTreeSet::new();
        for _ in 0..MOST {
            let answers = ask_unconnected(pod(&cluster, "pod-1b")?, any(target), target, 5)?;
            let (first, _) = answers[0].clone();
            assert!(
                answers.iter().all(|(backend, peer)| *backend == first && *peer == target),
                "{answers:?}"
            );
            chosen.insert(first);
        }
        assert_eq!(chosen.len(), backends.len(), "sockets are spread");
    }
    Ok(())
}

/// An IPv6 socket asks an IPv4 frontend by its v4-mapped address.
#[test]
fn a_dual_stack_socket_is_served_over_ipv4() -> Result<()> {
    let cluster = shared();
    let service = cluster.service("mapped", 220, &["pod-2a"])?;
    apply(&cluster, &service, &[1])?;
    let mapped = service.cluster_ips().v4.to_ipv6_mapped();
    let target = SocketAddr::new(mapped.into(), 80);
    let from = pod(&cluster, "pod-1a")?;
    assert_eq!(connect(from, target)?, Ok(target), "TCP, and the name of the peer");
    let answers = ask_unconnected(from, "[::]:0".parse()?, target, 3)?;
    assert!(answers.iter().all(|answer| *answer == ("pod-2a".to_owned(), target)), "{answers:?}");
    let peer = from.run(async move || {
        let socket = tokio::net::UdpSocket::bind("[::]:0").await?;
        socket.connect(target).await?;
        socket.send(b"who is there?").await?;
        let mut buffer = vec![0; 2048];
        let limit = millrace_lab::traffic::ANSWER_LIMIT;
        let (_, sender) = tokio::time::timeout(limit, socket.recv_from(&mut buffer)).await??;
        Ok((sender, socket.peer_addr()?))
    })?;
    assert_eq!(peer, (target, target), "connected UDP");
    Ok(())
}

#[test]
fn what_is_no_service_is_left_alone() -> Result<()> {
    let cluster = shared();
    let service = cluster.service("beside", 221, &["pod-1b"])?.node_ports(32210);
    apply(&cluster, &service, &[1])?;
    let (pod_1a, host) = (pod(&cluster, "pod-1a")?, node(&cluster, 1)?);
    for backend in ["pod-1a", "pod-1b", "pod-2a"] {
        let addresses = cluster.bed().pod(backend)?.addresses();
        reaches(pod_1a, addresses, TARGET_PORT, &[backend])?;
        reaches(host, addresses, TARGET_PORT, &[backend])?;
    }
    Ok(())
}

#[test]
fn a_pod_keeps_its_backend_over_connections_and_restarts_of_the_agent_and_is_independent_of_others()
-> Result<()> {
    let mut cluster = own(2, 8)?;
    let backends = ["pod-2a", "pod-2b", "pod-2c", "pod-2d", "pod-2e", "pod-2f", "pod-2g", "pod-2h"];
    let sticky = |pods: &[&str]| Ok::<_, anyhow::Error>(cluster.service("sticky", 1, pods)?.affinity(600));
    let service = sticky(&backends)?;
    apply(&cluster, &service, &[1])?;
    let clients: Vec<String> = ('a'..='h').map(|letter| format!("pod-1{letter}")).collect();
    let kept = |cluster: &Cluster, client: &str| -> Result<BTreeSet<String>> {
        let mut seen = BTreeSet::new();
        for _ in 0..10 {
            for family in Family::ALL {
                let target = SocketAddr::new(service.cluster_ips().of(family), 80);
                let answer = ask(pod(cluster, client)?, Protocol::Tcp, target)?;
                seen.insert(format!("{family} {}", answer.sighting.backend));
            }
        }
        Ok(seen)
    };
    let mut all = BTreeSet::new();
    let mut before = Vec::new();
    for client in &clients {
        let seen = kept(&cluster, client)?;
        assert_eq!(seen.len(), Family::ALL.len(), "one backend in each family: {seen:?}");
        all.extend(seen.clone());
        before.push(seen);
    }
    assert!(all.len() > Family::ALL.len(), "all clients have the same backends: {all:?}");

    let proxy = cluster.proxy(1)?;
    let starts = proxy.log().matches("serving as").count();
    cluster.take_agent(1)?.kill()?;
    cluster.start_agent(1)?;
    let proxy = cluster.proxy(1)?;
    proxy.wait_until("the agent is back", || Ok(proxy.log().matches("serving as").count() > starts))?;
    for (client, before) in clients.iter().zip(&before) {
        assert_eq!(kept(&cluster, client)?, *before, "{client}");
    }

    // Whoever had the endpoint that goes gets another one, and keeps that.
    let gone = before[0].iter().next().unwrap().split(' ').nth(1).unwrap().to_owned();
    let rest: Vec<&str> = backends.iter().copied().filter(|backend| *backend != gone).collect();
    let service_of_rest = cluster.service("sticky", 1, &rest)?.affinity(600);
    apply(&cluster, &service_of_rest, &[1])?;
    let after = kept(&cluster, &clients[0])?;
    assert!(after.len() == Family::ALL.len() && !after.iter().any(|seen| seen.ends_with(&gone)), "{after:?}");
    Ok(())
}

#[test]
fn node_ports_are_kept_from_sockets_of_the_node_and_of_nobody_else() -> Result<()> {
    let cluster = shared();
    let service = cluster.service("reserved", 222, &["pod-1b"])?.node_ports(32220);
    apply(&cluster, &service, &[1])?;
    for local in ["0.0.0.0:32220", "[::]:32220", "127.0.0.1:32220", "[::ffff:0.0.0.0]:32220"] {
        assert_eq!(bind(node(&cluster, 1)?, local.parse()?)?, [Some(ErrorKind::AddrInUse); 2], "{local}");
        assert_eq!(bind(pod(&cluster, "pod-1a")?, local.parse()?)?, [None; 2], "{local}");
    }
    assert_eq!(bind(node(&cluster, 1)?, "0.0.0.0:32221".parse()?)?, [None; 2]);
    assert_eq!(bind(node(&cluster, 1)?, "0.0.0.0:0".parse()?)?, [None; 2]);
    Ok(())
}

/// A socket at `::` takes IPv4's port, too, where IPv6 has no such NodePort.
#[test]
fn a_node_port_of_one_family_is_kept_from_dual_stack_sockets() -> Result<()> {
    let cluster = shared();
    let of = |name: &str, number: u8, family: Family| {
        Ok::<_, anyhow::Error>(cluster.service(name, number, &["pod-1b"])?.single_stack(family))
    };
    let v4 = of("reserved-v4", 225, Family::V4)?.node_ports(32250);
    let v6 = of("reserved-v6", 226, Family::V6)?.node_ports(32260);
    apply(&cluster, &v4, &[1])?;
    apply(&cluster, &v6, &[1])?;
    for local in ["[::]:32250", "0.0.0.0:32250", "[::]:32260"] {
        assert_eq!(bind(node(&cluster, 1)?, local.parse()?)?, [Some(ErrorKind::AddrInUse); 2], "{local}");
        assert_eq!(bind(pod(&cluster, "pod-1a")?, local.parse()?)?, [None; 2], "{local}");
    }
    for local in ["[::1]:32250", "0.0.0.0:32260"] {
        assert_eq!(bind(node(&cluster, 1)?, local.parse()?)?, [None; 2], "{local}");
    }
    Ok(())
}

/// What becomes of a bind over TCP and UDP.
fn bind(from: &Namespace, local: SocketAddr) -> Result<[Option<ErrorKind>; 2]> {
    from.run(async move || {
        let tcp = std::net::TcpListener::bind(local).err().map(|error| error.kind());
        let udp = std::net::UdpSocket::bind(local).err().map(|error| error.kind());
        Ok([tcp, udp])
    })
}

#[test]
fn hooks_are_for_the_node_only_or_gone_where_a_flag_says_so() -> Result<()> {
    let mut cluster = own(1, 2)?;
    let service = cluster.service("flags", 1, &["pod-1b"])?.node_ports(30010);
    apply(&cluster, &service, &[1])?;
    let target = SocketAddr::new(service.cluster_ips().v4.into(), 80);
    let local: SocketAddr = "0.0.0.0:30010".parse()?;
    let connected = |cluster: &Cluster, from: &Namespace| -> Result<u64> {
        let before = counted(cluster, 1, "connected")?;
        // Where it is nobody's, the packet gets lost on the network; that is not waited for.
        let attempt = from.spawn(async move || Ok(tokio::net::TcpStream::connect(target).await.map(drop)?));
        let _ = attempt.join_within(Duration::from_millis(500));
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

/// Source ranges hold inside the node, too: as far as a socket's source is known when it connects.
#[test]
fn source_ranges_are_asked_of_sockets_with_a_source() -> Result<()> {
    let cluster = shared();
    let pod_1a = cluster.bed().pod("pod-1a")?;
    let own = pod_1a.addresses().v4;
    let ranges = [format!("{own}/32"), "2001:db8::/128".to_owned()];
    let ranges: Vec<&str> = ranges.iter().map(String::as_str).collect();
    let service = cluster.service("ranges", 223, &["pod-2a"])?.load_balancer(vip(223)).source_ranges(&ranges);
    apply(&cluster, &service, &[1])?;
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

/// A resolver's socket: connected, waiting for an answer that will never come.
#[test]
fn a_connected_datagram_socket_is_told_when_its_backend_goes_and_reaches_the_next_one() -> Result<()> {
    let mut cluster = shared();
    // A port of their own, since a pod that still serves another Service is not gone.
    let port = 9191;
    for number in [2, 3] {
        cluster.start_host_server(number, port)?;
    }
    let on = |number: u8| Ok(Service::new("replaced", 224).port(80, port).host(cluster.bed().node(number)?));
    let [first, second]: [Result<Service>; 2] = [2, 3].map(on);
    let (first, second) = (first?, second?);
    let from = pod(&cluster, "pod-1a")?;
    for family in Family::ALL {
        apply(&cluster, &first, &[1])?;
        let frontend = SocketAddr::new(first.cluster_ips().of(family), 80);
        let backend = SocketAddr::new(cluster.bed().node(2)?.addresses().of(family), port);
        let (connected, are_connected) = std::sync::mpsc::sync_channel(1);
        let task = from.spawn(async move || {
            let [client, direct] = [datagram(frontend).await?, datagram(backend).await?];
            assert_eq!(whom(&client).await?, "host-node2");
            connected.send(())?;
            let told = client.recv(&mut [0; 1]).await.map_err(|error| error.kind());
            assert_eq!(told, Err(ErrorKind::ConnectionAborted), "nothing was sent that could be answered");
            client.connect(frontend).await?;
            Ok((whom(&client).await?, whom(&direct).await?))
        });
        are_connected.recv()?;
        apply(&cluster, &second, &[1])?;
        let after = task.join_within(millrace_lab::agent::SYNC_LIMIT)?;
        assert_eq!(after, ("host-node3".to_owned(), "host-node2".to_owned()), "{family}");
    }
    Ok(())
}

async fn datagram(target: SocketAddr) -> Result<tokio::net::UdpSocket> {
    let socket = tokio::net::UdpSocket::bind(any(target)).await?;
    socket.connect(target).await?;
    Ok(socket)
}

/// An entry that is evicted is not found when its backend goes: connections come by the thousand, and datagram sockets that only
/// send are never seen again.
#[test]
fn connections_take_no_room_of_datagram_sockets() -> Result<()> {
    let cluster = shared();
    let service = cluster.service("rooms", 227, &["pod-2a"])?;
    apply(&cluster, &service, &[1])?;
    let frontend = SocketAddr::new(service.cluster_ips().v4.into(), 80);
    let from = pod(&cluster, "pod-1a")?;
    from.run(async move || {
        datagram(frontend).await?;
        Ok(())
    })?;
    for _ in 0..20 {
        assert_eq!(connect(from, frontend)?, Ok(frontend));
    }
    let remembered = |map: &str| remembered(cluster.proxy(1)?, map, service.cluster_ips().v4);
    assert_eq!(remembered("SOCK_REV4")?, 1);
    assert_eq!(remembered("SOCK_TCP4")?, 20);
    Ok(())
}

/// How many sockets a map has that were turned from this address.
fn remembered(proxy: &Proxy, map: &str, frontend: Ipv4Addr) -> Result<usize> {
    let pin = proxy.bpffs().join(format!("millrace/v{LAYOUT_VERSION}/maps")).join(map);
    let map: HashMap<_, SocketKey<Addr4>, SocketFrontend<Addr4>> =
        Map::from_map_data(MapData::from_pin(pin)?)?.try_into()?;
    let entries = map.iter().collect::<Result<Vec<_>, _>>()?;
    let asked = Addr4([u32::from_ne_bytes(frontend.octets())]);
    Ok(entries.iter().filter(|(_, entry)| entry.address == asked).count())
}

/// Who answers a connected socket.
async fn whom(socket: &tokio::net::UdpSocket) -> Result<String> {
    socket.send(b"who is there?").await?;
    let mut buffer = vec![0; 2048];
    let limit = millrace_lab::traffic::ANSWER_LIMIT;
    let length = tokio::time::timeout(limit, socket.recv(&mut buffer)).await??;
    let line = buffer[..length].split(|byte| *byte == b'\n').next().unwrap();
    Ok(serde_json::from_slice::<millrace_lab::traffic::Sighting>(line)?.backend)
}
