//! The reach of frontends: the clients that reach them, and the source addresses that backends see.

use std::net::SocketAddr;

use anyhow::Result;
use millrace_lab::topology::{Family, cluster_ip, vip};
use millrace_lab::traffic::{Protocol, ask, send};

use crate::fixture::{LIMIT, apply, ask_all, output, shared};

const BOTH: [&str; 2] = ["pod-1a", "pod-2a"];

#[test]
fn a_client_outside_reaches_every_kind_of_frontend_and_is_seen_by_backends_of_this_node() -> Result<()> {
    let cluster = shared();
    let service = cluster.service("outside", 10, &BOTH)?.node_ports(31000).load_balancer(vip(10));
    apply(&cluster, 10, &service)?;
    let node = cluster.bed().node(1)?.addresses();
    for family in Family::ALL {
        for protocol in Protocol::ALL {
            let node_port = SocketAddr::new(node.of(family), 31000);
            for target in [SocketAddr::new(vip(10).of(family), 80), node_port] {
                for answer in ask_all(cluster.bed().client(), protocol, target, &BOTH)? {
                    if answer.sighting.backend == "pod-1a" {
                        assert!(answer.kept_client(), "{target}: {answer:?}");
                    } else {
                        assert_eq!(answer.sighting.peer.ip(), node.of(family), "{target}");
                    }
                }
            }
        }
    }
    Ok(())
}

#[test]
fn pods_and_processes_of_the_node_reach_cluster_ips_and_load_balancers() -> Result<()> {
    let cluster = shared();
    let service = cluster.service("inside", 11, &BOTH)?.load_balancer(vip(11));
    apply(&cluster, 11, &service)?;
    let (pod, node) = (cluster.bed().pod("pod-1b")?, cluster.bed().node(1)?);
    for family in Family::ALL {
        for protocol in Protocol::ALL {
            for address in [cluster_ip(11), vip(11)] {
                let target = SocketAddr::new(address.of(family), 80);
                for answer in ask_all(pod.namespace(), protocol, target, &BOTH)? {
                    assert!(answer.kept_client(), "{target}: {answer:?}");
                }
                for answer in ask_all(node.namespace(), protocol, target, &BOTH)? {
                    let peer = answer.sighting.peer.ip();
                    assert_ne!(peer, target.ip(), "a Service's address must not be a source: {answer:?}");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn a_pod_reaches_itself_through_its_service() -> Result<()> {
    let cluster = shared();
    apply(&cluster, 12, &cluster.service("hairpin", 12, &["pod-1a"])?)?;
    let pod = cluster.bed().pod("pod-1a")?;
    for family in Family::ALL {
        for protocol in Protocol::ALL {
            ask(pod.namespace(), protocol, SocketAddr::new(cluster_ip(12).of(family), 80))?;
        }
    }
    Ok(())
}

#[test]
fn with_policy_local_clients_outside_get_local_backends_and_clients_inside_all() -> Result<()> {
    let cluster = shared();
    let service = cluster.service("local", 13, &BOTH)?.node_ports(31030).load_balancer(vip(13)).local();
    apply(&cluster, 13, &service)?;
    let node = cluster.bed().node(1)?.addresses();
    for family in Family::ALL {
        for protocol in Protocol::ALL {
            let node_port = SocketAddr::new(node.of(family), 31030);
            let balanced = SocketAddr::new(vip(13).of(family), 80);
            for target in [balanced, node_port] {
                for _ in 0..4 {
                    let answer = ask(cluster.bed().client(), protocol, target)?;
                    assert_eq!(answer.sighting.backend, "pod-1a", "{target}");
                    // Connections of one port to two frontends have one backend here: the kernel gives one another port.
                    let (seen, own) = (answer.sighting.peer.ip(), answer.client.ip());
                    assert_eq!(seen, own, "{target}: {answer:?}");
                }
            }
            ask_all(cluster.bed().pod("pod-1b")?.namespace(), protocol, balanced, &BOTH)?;
        }
    }
    Ok(())
}

#[test]
fn without_local_backends_a_client_outside_is_dropped_and_without_any_refused() -> Result<()> {
    let cluster = shared();
    let far = cluster.service("far", 14, &["pod-2a"])?.load_balancer(vip(14)).local();
    apply(&cluster, 14, &far)?;
    for family in Family::ALL {
        let target = SocketAddr::new(vip(14).of(family), 80);
        let silent = send(cluster.bed().client(), Protocol::Tcp, target);
        ask(cluster.bed().pod("pod-1b")?.namespace(), Protocol::Tcp, target)?;
        assert!(silent.is_silent(), "{family}");
    }
    apply(&cluster, 14, &far.without_endpoints())?;
    for family in Family::ALL {
        let target = SocketAddr::new(vip(14).of(family), 80);
        for namespace in [cluster.bed().client(), cluster.bed().node(1)?.namespace()] {
            cluster.proxy(1)?.wait_until_within(LIMIT, "refusal", || {
                let error = ask(namespace, Protocol::Tcp, target).expect_err("the Service has no endpoint");
                Ok(format!("{error:#}").contains("refused"))
            })?;
        }
    }
    Ok(())
}

#[test]
fn an_unknown_port_of_a_services_address_does_not_reach_a_process_of_the_node() -> Result<()> {
    let mut cluster = shared();
    cluster.start_host_server(1, 9191)?;
    let service = cluster.service("leak", 15, &["pod-1a"])?.load_balancer(vip(15));
    apply(&cluster, 15, &service)?;
    let (client, node) = (cluster.bed().client(), cluster.bed().node(1)?);
    for family in Family::ALL {
        let own = SocketAddr::new(node.addresses().of(family), 9191);
        assert_eq!(ask(client, Protocol::Tcp, own)?.sighting.backend, "host-node1");
        let refused = SocketAddr::new(cluster_ip(15).of(family), 9191);
        for namespace in [node.namespace(), cluster.bed().pod("pod-1b")?.namespace()] {
            let error = format!("{:#}", ask(namespace, Protocol::Tcp, refused).expect_err("unknown port"));
            assert!(error.contains("refused"), "{error}");
        }
        let silent = send(client, Protocol::Tcp, SocketAddr::new(vip(15).of(family), 9191));
        ask(client, Protocol::Tcp, SocketAddr::new(vip(15).of(family), 80))?;
        assert!(silent.is_silent());
    }
    Ok(())
}

#[test]
fn a_host_process_of_the_node_is_a_backend() -> Result<()> {
    let mut cluster = shared();
    cluster.start_host_server(1, 9192)?;
    let service = millrace_lab::manifests::Service::new("host", 16).port(80, 9192);
    let service = service.host(cluster.bed().node(1)?).load_balancer(vip(16));
    apply(&cluster, 16, &service)?;
    for family in Family::ALL {
        let target = SocketAddr::new(vip(16).of(family), 80);
        let answer = ask(cluster.bed().client(), Protocol::Tcp, target)?;
        assert!(answer.kept_client() && answer.sighting.backend == "host-node1", "{answer:?}");
        ask(cluster.bed().node(1)?.namespace(), Protocol::Tcp, target)?;
    }
    Ok(())
}

#[test]
fn only_source_ranges_reach_a_load_balancer() -> Result<()> {
    let cluster = shared();
    let service = cluster.service("ranged", 17, &["pod-1a"])?.node_ports(31070).load_balancer(vip(17));
    let with_ranges = |ranges: &[&str]| -> Result<()> {
        let mut objects = service.objects();
        objects[0]["spec"]["loadBalancerSourceRanges"] = serde_json::json!(ranges);
        let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": objects});
        cluster.manifests().put("ranged.yaml", &list.to_string())
    };
    with_ranges(&["192.0.2.0/24", "2001:db8:ffff::/48"])?;
    let is_restricted = || {
        let text = output(&cluster, &["nft", "list", "set", "inet", "millrace", "restricted6"])?;
        Ok(text.contains("elements"))
    };
    cluster.proxy(1)?.wait_until_within(LIMIT, "the ranges", is_restricted)?;
    let client = cluster.bed().client();
    for family in Family::ALL {
        let node_port = SocketAddr::new(cluster.bed().node(1)?.addresses().of(family), 31070);
        let answers = || Ok(ask(client, Protocol::Tcp, node_port).is_ok());
        cluster.proxy(1)?.wait_until_within(LIMIT, "the NodePort answers", answers)?;
        let silent = send(client, Protocol::Tcp, SocketAddr::new(vip(17).of(family), 80));
        ask(client, Protocol::Tcp, node_port)?;
        assert!(silent.is_silent(), "{family}");
    }
    with_ranges(&["198.51.100.0/24", "2001:db8:c::/48"])?;
    for family in Family::ALL {
        let target = SocketAddr::new(vip(17).of(family), 80);
        cluster
            .proxy(1)?
            .wait_until_within(LIMIT, "an answer", || Ok(ask(client, Protocol::Tcp, target).is_ok()))?;
    }
    Ok(())
}

#[test]
fn addresses_of_services_are_answered_when_pinged_and_sysctls_are_set() -> Result<()> {
    let cluster = shared();
    apply(&cluster, 18, &cluster.service("pinged", 18, &["pod-1a"])?.load_balancer(vip(18)))?;
    for family in Family::ALL {
        millrace_lab::traffic::ping(cluster.bed().client(), vip(18).of(family), b"there?")?;
    }
    for key in ["conntrack", "expire_nodest_conn", "expire_quiescent_template"] {
        let path = format!("/proc/sys/net/ipv4/vs/{key}");
        let value = cluster.proxy(1)?.namespace().run(async move || Ok(std::fs::read_to_string(path)?))?;
        assert_eq!(value.trim(), "1", "{key}");
    }
    Ok(())
}
