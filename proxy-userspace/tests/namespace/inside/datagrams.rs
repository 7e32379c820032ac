//! The peer that sockets see.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use anyhow::Result;
use millrace_lab::net::Namespace;
use millrace_lab::topology::Family;

use super::{MOST, Path, any, connect, each_path, pod};

each_path! {
    an_unconnected_socket_is_told_which_of_two_frontends_answers
    an_answer_to_a_direct_request_comes_from_the_backend_itself
    a_connected_socket_is_told_that_its_peer_is_the_frontend
    the_datagrams_of_an_unconnected_socket_go_to_one_backend_and_come_from_the_frontend
    a_dual_stack_socket_is_served_over_ipv4
}

fn a_connected_socket_is_told_that_its_peer_is_the_frontend(path: Path) -> Result<()> {
    let cluster = path.shared();
    let service = cluster.service("peer", 218, &["pod-2a"])?;
    path.apply(&cluster, &service, &[1])?;
    for family in Family::ALL {
        let target = SocketAddr::new(service.cluster_ips().of(family), 80);
        assert_eq!(connect(pod(&cluster, "pod-1a")?, target)?, Ok(target));
    }
    Ok(())
}

/// Asks `times` times from one unconnected socket, bound to `local`. Returns the backend, and the
/// sender that the socket saw.
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

fn the_datagrams_of_an_unconnected_socket_go_to_one_backend_and_come_from_the_frontend(
    path: Path,
) -> Result<()> {
    let cluster = path.shared();
    let backends = ["pod-1a", "pod-1b", "pod-2a", "pod-2b"];
    let service = cluster.service("unconnected", 219, &backends)?;
    path.apply(&cluster, &service, &[1])?;
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

/// Sends a datagram to each of `targets` from one unconnected socket. Returns the senders of the
/// answers, sorted.
fn ask_each(from: &Namespace, targets: &[SocketAddr]) -> Result<Vec<SocketAddr>> {
    let targets = targets.to_vec();
    from.run(async move || {
        let socket = tokio::net::UdpSocket::bind(any(targets[0])).await?;
        for target in &targets {
            socket.send_to(b"who is there?", target).await?;
        }
        let mut peers = Vec::new();
        for _ in &targets {
            let limit = millrace_lab::traffic::ANSWER_LIMIT;
            let (_, peer) = tokio::time::timeout(limit, socket.recv_from(&mut [0; 2048])).await??;
            peers.push(peer);
        }
        peers.sort_unstable();
        Ok(peers)
    })
}

/// Both Services have the same two backends. Sockets with one hash would get the same backend.
fn an_unconnected_socket_is_told_which_of_two_frontends_answers(path: Path) -> Result<()> {
    let cluster = path.shared();
    let backends = ["pod-1b", "pod-2a"];
    let services =
        [cluster.service("first-of-two", 200, &backends)?, cluster.service("second-of-two", 201, &backends)?];
    for service in &services {
        path.apply(&cluster, service, &[1])?;
    }
    for family in Family::ALL {
        let mut targets = [0, 1].map(|n: usize| SocketAddr::new(services[n].cluster_ips().of(family), 80));
        targets.sort_unstable();
        for _ in 0..8 {
            assert_eq!(ask_each(pod(&cluster, "pod-1a")?, &targets)?, targets);
        }
    }
    Ok(())
}

fn an_answer_to_a_direct_request_comes_from_the_backend_itself(path: Path) -> Result<()> {
    let cluster = path.shared();
    let service = cluster.service("direct-after", 202, &["pod-2a"])?;
    path.apply(&cluster, &service, &[1])?;
    let from = pod(&cluster, "pod-1a")?;
    for family in Family::ALL {
        let target = SocketAddr::new(service.cluster_ips().of(family), 80);
        let backend =
            service.backends().into_iter().find(|backend| Family::of(backend.ip()) == family).unwrap();
        let peers = from.run(async move || {
            let socket = tokio::net::UdpSocket::bind(any(target)).await?;
            let mut peers = Vec::new();
            for target in [target, backend, target] {
                socket.send_to(b"who is there?", target).await?;
                let limit = millrace_lab::traffic::ANSWER_LIMIT;
                let (_, peer) = tokio::time::timeout(limit, socket.recv_from(&mut [0; 2048])).await??;
                peers.push(peer);
            }
            Ok(peers)
        })?;
        assert_eq!(peers, [target, backend, target]);
    }
    Ok(())
}

/// An IPv6 socket asks an IPv4 frontend by its v4-mapped address.
fn a_dual_stack_socket_is_served_over_ipv4(path: Path) -> Result<()> {
    let cluster = path.shared();
    let service = cluster.service("mapped", 220, &["pod-2a"])?;
    path.apply(&cluster, &service, &[1])?;
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
