//! The reachability matrix inside the node.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;
use millrace_lab::cluster::{Cluster, TARGET_PORT};
use millrace_lab::net::Namespace;
use millrace_lab::topology::{Family, vip};
use millrace_lab::traffic::{ANSWER_LIMIT, Protocol, ask};

use super::{Path, any, connect, each_path, knock, loopback, node, pod};
use crate::fixture::counted;

each_path! {
    a_cluster_ip_leads_pods_and_host_processes_to_pods_of_any_node_and_to_themselves
    a_cluster_ip_is_spread_over_all_its_backends
    node_ports_external_ips_and_load_balancers_are_reached_from_inside_the_node
    policy_local_does_not_apply_to_pods_and_processes_of_nodes
    internal_policy_local_uses_backends_of_the_node_only_and_drops_without_one
    a_service_without_endpoints_is_refused_at_once
    packets_to_a_pods_own_address_are_left_alone
    a_pod_keeps_its_backend_over_connections_and_restarts_of_the_agent_and_is_independent_of_others
    an_affinity_that_has_ended_may_lead_elsewhere
}

fn a_cluster_ip_leads_pods_and_host_processes_to_pods_of_any_node_and_to_themselves(
    path: Path,
) -> Result<()> {
    let cluster = path.shared();
    for (index, backend) in ["pod-1a", "pod-1b", "pod-2a"].into_iter().enumerate() {
        let number = 200 + u8::try_from(index)?;
        let service = cluster.service(&format!("cluster-ip-{number}"), number, &[backend])?;
        path.apply(&cluster, &service, &[1])?;
        for from in path.clients(&cluster, "pod-1a", 1)? {
            path.reaches(&cluster, from, (service.cluster_ips(), 80), &[backend])?;
        }
    }
    Ok(())
}

fn a_cluster_ip_is_spread_over_all_its_backends(path: Path) -> Result<()> {
    let cluster = path.shared();
    let backends = ["pod-1a", "pod-1b", "pod-2a", "pod-3b"];
    let service = cluster.service("spread", 210, &backends)?;
    path.apply(&cluster, &service, &[1])?;
    for from in path.clients(&cluster, "pod-1a", 1)? {
        path.reaches(&cluster, from, (service.cluster_ips(), 80), &backends)?;
    }
    Ok(())
}

fn node_ports_external_ips_and_load_balancers_are_reached_from_inside_the_node(path: Path) -> Result<()> {
    let cluster = path.shared();
    let backends = ["pod-1a", "pod-2a"];
    let service = cluster
        .service("from-inside", 211, &backends)?
        .node_ports(32110)
        .external(vip(211))
        .load_balancer(vip(212));
    path.apply(&cluster, &service, &[1])?;
    let own = cluster.bed().node(1)?.addresses();
    for from in path.clients(&cluster, "pod-1a", 1)? {
        for (address, port) in [(own, 32110), (vip(211), 80), (vip(212), 80)] {
            path.reaches(&cluster, from, (address, port), &backends)?;
        }
    }
    if path == Path::Sockets {
        path.reaches(&cluster, node(&cluster, 1)?, (loopback(), 32110), &backends)?;
    }
    Ok(())
}

/// Every row of the Kubernetes article on externalTrafficPolicy, from inside. `local.rs` has
/// clients outside.
fn policy_local_does_not_apply_to_pods_and_processes_of_nodes(path: Path) -> Result<()> {
    let cluster = path.shared();
    let service = cluster
        .service("etp-local", 214, &["pod-2a"])?
        .node_ports(32140)
        .load_balancer(vip(214))
        .external(vip(215))
        .local();
    path.apply(&cluster, &service, &[1, 2])?;
    for number in [1, 2] {
        let own = cluster.bed().node(number)?.addresses();
        for from in path.clients(&cluster, &format!("pod-{number}b"), number)? {
            for (address, port) in [(own, 32140), (vip(214), 80), (vip(215), 80)] {
                path.reaches(&cluster, from, (address, port), &["pod-2a"])?;
            }
        }
        if path == Path::Sockets {
            path.reaches(&cluster, node(&cluster, number)?, (loopback(), 32140), &["pod-2a"])?;
        }
    }
    Ok(())
}

fn internal_policy_local_uses_backends_of_the_node_only_and_drops_without_one(path: Path) -> Result<()> {
    let cluster = path.shared();
    // A node port adds a Cluster list.
    let service =
        cluster.service("itp-local", 216, &["pod-1b", "pod-2a"])?.node_ports(32160).internal_local();
    path.apply(&cluster, &service, &[1, 3])?;
    for from in path.clients(&cluster, "pod-1a", 1)? {
        path.reaches(&cluster, from, (service.cluster_ips(), 80), &["pod-1b"])?;
    }
    for family in Family::ALL {
        let target = SocketAddr::new(service.cluster_ips().of(family), 80);
        let before = counted(&cluster, 3, "no_local_endpoint")?;
        let is_counted = || Ok(counted(&cluster, 3, "no_local_endpoint")? > before);
        let from = pod(&cluster, "pod-3a")?;
        if path == Path::Sockets {
            assert_eq!(connect(from, target)?, Err(ErrorKind::HostUnreachable));
            assert!(is_counted()?);
        } else {
            let lost = knock(from, target);
            cluster.proxy(3)?.wait_until("the packet is dropped", is_counted)?;
            assert!(lost.outcome_so_far().is_none());
        }
    }
    Ok(())
}

fn a_service_without_endpoints_is_refused_at_once(path: Path) -> Result<()> {
    let cluster = path.shared();
    let service = cluster
        .service("empty", 217, &["pod-1a"])?
        .node_ports(32170)
        .load_balancer(vip(217))
        .without_endpoints();
    path.apply(&cluster, &service, &[1])?;
    for family in Family::ALL {
        for (address, port) in [(service.cluster_ips(), 80), (vip(217), 80), (service.cluster_ips(), 81)] {
            let target = SocketAddr::new(address.of(family), port);
            assert_eq!(
                connect(pod(&cluster, "pod-1a")?, target)?,
                Err(ErrorKind::ConnectionRefused),
                "{target}"
            );
            assert_eq!(
                ask_connected(pod(&cluster, "pod-1a")?, target)?,
                Some(ErrorKind::ConnectionRefused),
                "{target}"
            );
        }
    }
    Ok(())
}

/// Returns the reason why a connected socket gets no answer to a datagram, if it gets none.
fn ask_connected(from: &Namespace, target: SocketAddr) -> Result<Option<ErrorKind>> {
    from.run(async move || {
        let socket = tokio::net::UdpSocket::bind(any(target)).await?;
        let answered = async {
            socket.connect(target).await?;
            socket.send(b"who is there?").await?;
            socket.recv(&mut [0; 1]).await
        };
        let answered = tokio::time::timeout(ANSWER_LIMIT, answered).await?;
        Ok(answered.err().map(|error| error.kind()))
    })
}

fn packets_to_a_pods_own_address_are_left_alone(path: Path) -> Result<()> {
    let cluster = path.shared();
    let service = cluster.service("beside", 221, &["pod-1b"])?.node_ports(32210);
    path.apply(&cluster, &service, &[1])?;
    let (pod_1a, host) = (pod(&cluster, "pod-1a")?, node(&cluster, 1)?);
    for backend in ["pod-1a", "pod-1b", "pod-2a"] {
        let addresses = cluster.bed().pod(backend)?.addresses();
        path.reaches(&cluster, pod_1a, (addresses, TARGET_PORT), &[backend])?;
        path.reaches(&cluster, host, (addresses, TARGET_PORT), &[backend])?;
    }
    Ok(())
}

fn a_pod_keeps_its_backend_over_connections_and_restarts_of_the_agent_and_is_independent_of_others(
    path: Path,
) -> Result<()> {
    let mut cluster = path.own(2, 8)?;
    let backends = ["pod-2a", "pod-2b", "pod-2c", "pod-2d", "pod-2e", "pod-2f", "pod-2g", "pod-2h"];
    let sticky = |pods: &[&str]| Ok::<_, anyhow::Error>(cluster.service("sticky", 1, pods)?.affinity(600));
    let service = sticky(&backends)?;
    path.apply(&cluster, &service, &[1])?;
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
    cluster.start_agent_with(1, path.flags())?;
    let proxy = cluster.proxy(1)?;
    proxy.wait_until("the agent is back", || Ok(proxy.log().matches("serving as").count() > starts))?;
    for (client, before) in clients.iter().zip(&before) {
        assert_eq!(kept(&cluster, client)?, *before, "{client}");
    }

    // A client of the removed endpoint gets another one, and keeps that.
    let gone = before[0].iter().next().unwrap().split(' ').nth(1).unwrap().to_owned();
    let rest: Vec<&str> = backends.iter().copied().filter(|backend| *backend != gone).collect();
    let service_of_rest = cluster.service("sticky", 1, &rest)?.affinity(600);
    path.apply(&cluster, &service_of_rest, &[1])?;
    let after = kept(&cluster, &clients[0])?;
    assert!(after.len() == Family::ALL.len() && !after.iter().any(|seen| seen.ends_with(&gone)), "{after:?}");
    Ok(())
}

fn an_affinity_that_has_ended_may_lead_elsewhere(path: Path) -> Result<()> {
    const SECONDS: u32 = 1;
    /// One of six backends is chosen. It may be the same again.
    const ROUNDS: usize = 20;
    let cluster = path.shared();
    let backends = ["pod-1a", "pod-1b", "pod-2a", "pod-2b", "pod-3a", "pod-3b"];
    let service = cluster.service("fickle", 209, &backends)?.affinity(SECONDS);
    path.apply(&cluster, &service, &[1])?;
    for from in path.clients(&cluster, "pod-1a", 1)? {
        for family in Family::ALL {
            let target = SocketAddr::new(service.cluster_ips().of(family), 80);
            let first = ask(from, Protocol::Tcp, target)?.sighting.backend;
            let changes = (0..ROUNDS).any(|_| {
                sleep(Duration::from_secs(u64::from(SECONDS) + 1));
                ask(from, Protocol::Tcp, target).is_ok_and(|answer| answer.sighting.backend != first)
            });
            assert!(changes, "{target} stays with {first}");
        }
    }
    Ok(())
}
