//! The choice of a server: schedulers and session affinity.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use anyhow::Result;
use millrace_lab::topology::{Family, cluster_ip, vip};
use millrace_lab::traffic::{Protocol, ask};
use serde_json::json;

use crate::fixture::{LIMIT, Listed, apply, ask_all, listed, place, shared};

const ALL: [&str; 13] =
    ["rr", "wrr", "lc", "wlc", "lblc", "lblcr", "sh", "dh", "sed", "nq", "fo", "ovf", "mh"];

#[test]
fn every_scheduler_serves() -> Result<()> {
    let cluster = shared();
    let target = SocketAddr::new(vip(30).v4.into(), 80);
    for name in ALL {
        let service = cluster.service("scheduled", 30, &["pod-1a", "pod-2a"])?.load_balancer(vip(30));
        apply(&cluster, 30, &service.annotation("kube-router.io/service.scheduler", name))?;
        let wanted = format!("TCP {} {name}", place(target));
        cluster.proxy(1)?.wait_until_within(LIMIT, &wanted, || {
            Ok(listed(&cluster)?.iter().any(|one| one.service.trim_end().starts_with(&wanted)))
        })?;
        ask(cluster.bed().client(), Protocol::Tcp, target)?;
    }
    Ok(())
}

#[test]
fn a_client_with_affinity_stays_with_its_server() -> Result<()> {
    let cluster = shared();
    let both = ["pod-1a", "pod-2a"];
    let service = cluster.service("faithful", 31, &both)?.load_balancer(vip(31));
    let mut objects = service.objects();
    objects[0]["spec"]["sessionAffinity"] = json!("ClientIP");
    objects[0]["spec"]["sessionAffinityConfig"] = json!({"clientIP": {"timeoutSeconds": 600}});
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    cluster.manifests().put("faithful.yaml", &list.to_string())?;
    for family in Family::ALL {
        let target = SocketAddr::new(vip(31).of(family), 80);
        // The kernel prints the time-out in ticks. A second has some hundreds of them.
        let wanted = format!("TCP {} rr persistent ", place(target));
        let is_wanted = |one: &Listed| {
            let rest = one.service.strip_prefix(&wanted).and_then(|rest| rest.split(' ').next());
            let ticks = rest.and_then(|ticks| ticks.parse::<u32>().ok());
            one.servers.len() == 2 && ticks.is_some_and(|ticks| ticks >= 60_000 && ticks % 600 == 0)
        };
        cluster
            .proxy(1)?
            .wait_until_within(LIMIT, &wanted, || Ok(listed(&cluster)?.iter().any(is_wanted)))?;
        let names: BTreeSet<String> = (0..6)
            .map(|_| Ok(ask(cluster.bed().client(), Protocol::Tcp, target)?.sighting.backend))
            .collect::<Result<_>>()?;
        assert_eq!(names.len(), 1, "{target}: {names:?}");
    }
    // Without affinity, the client gets both servers.
    apply(&cluster, 31, &service)?;
    let target = SocketAddr::new(cluster_ip(31).v4.into(), 80);
    ask_all(cluster.bed().pod("pod-1b")?.namespace(), Protocol::Tcp, target, &both)?;
    Ok(())
}

#[test]
fn a_client_outside_with_affinity_stays_with_a_local_server_behind_another_port() -> Result<()> {
    let cluster = shared();
    let pods = ["pod-1a", "pod-1b", "pod-2a"];
    let service = cluster.service("near", 32, &pods)?.node_ports(31320).load_balancer(vip(32));
    apply(&cluster, 32, &service.local().affinity(600))?;
    let node = cluster.bed().node(1)?.addresses();
    for (family, protocol) in
        Family::ALL.into_iter().flat_map(|family| Protocol::ALL.map(|one| (family, one)))
    {
        let targets = [SocketAddr::new(vip(32).of(family), 80), SocketAddr::new(node.of(family), 31320)];
        let mut names = BTreeSet::new();
        for target in targets {
            cluster.proxy(1)?.wait_until_within(LIMIT, "an answer", || {
                Ok(ask(cluster.bed().client(), protocol, target).is_ok())
            })?;
            for _ in 0..4 {
                let answer = ask(cluster.bed().client(), protocol, target)?;
                assert!(answer.kept_client(), "{target}: {answer:?}");
                names.insert(answer.sighting.backend);
            }
        }
        let name = names.first().map(String::as_str);
        assert!(names.len() == 1 && name.is_some_and(|name| pods[..2].contains(&name)), "{names:?}");
    }
    Ok(())
}
