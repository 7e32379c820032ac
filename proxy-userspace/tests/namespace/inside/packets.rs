//! Pods that are served per packet: sizes, other protocols, refusals by source, backends that are
//! no pods.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use ipnet::IpNet;
use millrace_lab::topology::{Family, vip};
use millrace_lab::traffic::{Connection, LongConnections, Protocol, Stream, ask, ping};

use super::{Path, each_path, knock, pod};
use crate::fixture::{counted, expect_no_loss};

each_path! {
    source_ranges_hold_for_pods_whose_sockets_are_not_bound
}

#[test]
fn large_bodies_reach_backends_here_on_another_node_and_the_pod_itself() -> Result<()> {
    let cluster = Path::Packets.shared();
    for (number, backend) in [(230, "pod-1b"), (231, "pod-2a"), (232, "pod-1a")] {
        let service = cluster.service(&format!("large-{number}"), number, &[backend])?;
        Path::Packets.apply(&cluster, &service, &[1])?;
        for family in Family::ALL {
            let target = SocketAddr::new(service.cluster_ips().of(family), 80);
            let bytes = 3_000_000;
            let crossed = pod(&cluster, "pod-1a")?.run(async move || {
                let mut connection = Connection::open(target).await?;
                Ok((connection.upload(bytes).await?.sighting.received, connection.download(bytes).await?))
            })?;
            assert_eq!(crossed, (bytes, bytes), "{backend} {family}");
        }
    }
    Ok(())
}

#[test]
fn host_processes_of_this_node_and_of_another_are_reached_and_see_the_pod() -> Result<()> {
    let port = 9292;
    let mut cluster = Path::Packets.shared();
    for number in [1, 2] {
        cluster.start_host_server(number, port)?;
        let service = millrace_lab::manifests::Service::new(&format!("host-{number}"), 232 + number);
        let service = service.port(80, port).host(cluster.bed().node(number)?);
        Path::Packets.apply(&cluster, &service, &[1])?;
        let (from, backend) = (pod(&cluster, "pod-1a")?, format!("host-node{number}"));
        Path::Packets.reaches(&cluster, from, (service.cluster_ips(), 80), &[&backend])?;
    }
    Ok(())
}

#[test]
fn a_cluster_ip_answers_a_pods_echo_requests() -> Result<()> {
    let cluster = Path::Packets.shared();
    let service = cluster.service("echo", 235, &["pod-2a"])?;
    Path::Packets.apply(&cluster, &service, &[1])?;
    for family in Family::ALL {
        ping(pod(&cluster, "pod-1a")?, service.cluster_ips().of(family), b"who is there?")?;
    }
    Ok(())
}

/// An unbound socket has no source when it connects, or has no hooks. Its packets have a source.
fn source_ranges_hold_for_pods_whose_sockets_are_not_bound(path: Path) -> Result<()> {
    let cluster = path.shared();
    let ranges =
        cluster.bed().pod("pod-1a")?.addresses().both().map(|address| IpNet::from(address).to_string());
    let ranges: Vec<&str> = ranges.iter().map(String::as_str).collect();
    let service = cluster.service("packet-ranges", 236, &["pod-2a"])?;
    let service = service.load_balancer(vip(236)).source_ranges(&ranges);
    path.apply(&cluster, &service, &[1])?;
    for family in Family::ALL {
        let target = SocketAddr::new(vip(236).of(family), 80);
        for protocol in Protocol::ALL {
            let answer = ask(pod(&cluster, "pod-1a")?, protocol, target)?;
            assert!(answer.kept_client(), "{answer:?}");
        }
        let before = counted(&cluster, 1, "source_refused")?;
        let lost = knock(pod(&cluster, "pod-1b")?, target);
        let is_refused = || Ok(counted(&cluster, 1, "source_refused")? > before);
        cluster.proxy(1)?.wait_until("the packet is dropped", is_refused)?;
        assert!(lost.outcome_so_far().is_none());
    }
    Ok(())
}

#[test]
fn connections_of_pods_lose_nothing_while_the_agent_is_killed_and_another_one_starts() -> Result<()> {
    let mut cluster = Path::Packets.own(2, 2)?;
    let mut traffic = Vec::new();
    for (number, backend) in [(1, "pod-1b"), (2, "pod-2a"), (3, "pod-1a")] {
        let service = cluster.service(&format!("kept-{number}"), number, &[backend])?;
        Path::Packets.apply(&cluster, &service, &[1])?;
        for family in Family::ALL {
            let target = SocketAddr::new(service.cluster_ips().of(family), 80);
            let from = pod(&cluster, "pod-1a")?;
            let connections = LongConnections::open(from, target, 5, 5)?;
            traffic.push((target, connections, Stream::start(from, target, Duration::from_millis(1))?));
        }
    }
    cluster.take_agent(1)?.kill()?;
    cluster.start_agent_with(1, Path::Packets.flags())?;
    cluster.proxy(1)?.wait_for_start(2)?;
    for (target, connections, stream) in traffic {
        assert_eq!(connections.stop()?, 10, "{target}");
        let delivery = expect_no_loss(&cluster, stream).with_context(|| target.to_string())?;
        assert!(delivery.sent > 100, "{target}: {delivery:?}");
    }
    Ok(())
}
