//! Whom sockets are told they speak to.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use anyhow::Result;
use millrace_lab::net::Namespace;
use millrace_lab::topology::Family;

use super::{MOST, Path, any, connect, each_path, pod};

each_path! {
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
