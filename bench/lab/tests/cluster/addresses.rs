//! Addresses that reach the nodes, with the rights that the chart gives: nodes' own addresses, addresses on the nodes'
//! network, and routes between the nodes.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use millrace_lab::kubernetes::{Cluster, Plan, Proxy, wait};
use millrace_lab::process::output;
use serde_json::{Value, json};

use super::clients::{Client, Protocol};
use super::fixture::{CHANGE_LIMIT, NODES, PODS_LIMIT, Service, assets, proxy, roll_out, shared};
use super::install::{upgrade, wait_for_agents};
use super::objects::service;

/// Addresses of the nodes' subnet.
const ON_LINK: [&str; 2] = ["172.30.0.200", "fd00:30::200"];
/// The values of the chart.
const VALUES: &str = "--set serviceLB.enabled=true --set serviceLB.default=false \
                      --set 'l2.ranges={172.30.0.192/26,fd00:30::200/120}' --set routes.toPods=subnet";
/// The controller's class.
const CLASS: &str = "millrace.dev/node-ip";
/// The longest time until another node answers for an address. The limit that is promised is three seconds; kubelets and an
/// API server on the same machine take their time.
const HAND_OVER: Duration = Duration::from_secs(20);

/// The client outside asks for the Service and is seen with its own address.
fn expect_client_kept(cluster: &Cluster, addresses: impl Iterator<Item = IpAddr>) -> Result<()> {
    let outside = Client::outside(cluster)?;
    for (address, protocol) in addresses.flat_map(|address| Protocol::ALL.map(|protocol| (address, protocol)))
    {
        let target = SocketAddr::new(address, protocol.port());
        let seen = wait("an answer", PODS_LIMIT, || outside.ask(protocol, target, "clientip"))?;
        let seen: SocketAddr = seen.parse().with_context(|| seen.clone())?;
        ensure!(Plan::outside().contains(&seen.ip()), "{target} over {protocol:?} saw {seen}");
    }
    Ok(())
}

/// The controller's pods give a Service the nodes' addresses.
fn nodes_own_addresses(cluster: &Cluster) -> Result<()> {
    let kubectl = cluster.kubectl();
    wait("the controller", PODS_LIMIT, || {
        let found = kubectl.json(&["-n", "kube-system", "get", "deployment", "millrace-controller"])?;
        ensure!(found["status"]["readyReplicas"] == 2, "{}", found["status"]);
        Ok(())
    })?;
    let spec = json!({"type": "LoadBalancer", "loadBalancerClass": CLASS, "externalTrafficPolicy": "Local"});
    Service::put(&kubectl, service("of-nodes", "web", spec), &[])?;
    let nodes = nodes_with_web(cluster)?;
    let mut expected: Vec<String> =
        nodes.iter().flat_map(|number| Plan::node(*number)).map(|address| address.to_string()).collect();
    expected.sort();
    wait("the nodes' addresses", CHANGE_LIMIT, || {
        let found = kubectl.json(&["get", "service", "of-nodes"])?;
        let ingress = found["status"]["loadBalancer"]["ingress"].as_array().cloned().unwrap_or_default();
        let mut found: Vec<String> =
            ingress.iter().filter_map(|ingress| Some(ingress["ip"].as_str()?.to_owned())).collect();
        found.sort();
        ensure!(found == expected, "{found:?}");
        Ok(())
    })?;
    expect_client_kept(cluster, nodes.into_iter().flat_map(Plan::node))
}

/// Returns the nodes with a pod of the Services. Another test may have evicted some.
fn nodes_with_web(cluster: &Cluster) -> Result<BTreeSet<u8>> {
    let pods = cluster.kubectl().json(&["get", "pods", "--selector", "app=web"])?;
    let pods = pods["items"].as_array().cloned().unwrap_or_default();
    let number = |pod: &Value| pod["spec"]["nodeName"].as_str()?.strip_prefix("node-")?.parse().ok();
    let nodes: BTreeSet<u8> = pods.iter().filter_map(number).collect();
    ensure!(nodes.len() > 1, "pods of `web` are on {nodes:?} only");
    Ok(nodes)
}

/// Returns the node whose MAC address the router has for an address.
fn holder(cluster: &Cluster, address: &str) -> Result<u8> {
    let control = cluster.namespace("control")?;
    let neighbour = output(&control, &["ip", "neighbour", "show", address, "dev", "fabric"])?;
    let words: Vec<&str> = neighbour.split_whitespace().collect();
    let mac = words.iter().skip_while(|word| **word != "lladdr").nth(1).context("the router knows nobody")?;
    for number in 1..=NODES {
        let node = cluster.namespace(&format!("node-{number}"))?;
        if output(&node, &["ip", "-brief", "link", "show", "eth0"])?.contains(*mac) {
            return Ok(number);
        }
    }
    anyhow::bail!("{mac} is no node's")
}

fn set_link(cluster: &Cluster, node: u8, state: &str) -> Result<()> {
    let control = cluster.namespace("control")?;
    output(&control, &["ip", "link", "set", &format!("node-{node}"), state]).map(drop)
}

/// The nodes answer for addresses of their own subnet, and another one does when the link is cut.
fn addresses_on_the_link(cluster: &Cluster) -> Result<()> {
    let kubectl = cluster.kubectl();
    let spec = json!({"type": "LoadBalancer", "loadBalancerClass": "example.com/by-hand"});
    Service::put(&kubectl, service("on-link", "web", spec), &ON_LINK)?;
    let outside = Client::outside(cluster)?;
    let ask = |address: &str| {
        let target = SocketAddr::new(address.parse()?, Protocol::Http.port());
        outside.ask(Protocol::Http, target, "hostname")
    };
    for address in ON_LINK {
        wait("an answer", PODS_LIMIT, || ask(address))?;
    }
    let [first, _] = ON_LINK;
    let before = holder(cluster, first)?;
    set_link(cluster, before, "down")?;
    let cut = Instant::now();
    let moved = wait("another node", HAND_OVER, || {
        let now = holder(cluster, first)?;
        ensure!(now != before, "node-{before} still has it");
        Ok(now)
    });
    let took = cut.elapsed();
    set_link(cluster, before, "up")?;
    println!("{first}: node-{before} cut, then node-{} answers after {took:?}", moved?);
    wait("an answer", PODS_LIMIT, || ask(first))?;
    // The node finds its neighbours again: those that it looked for meanwhile count as gone for seconds.
    wait("pods of other nodes", CHANGE_LIMIT, || reach_pods_elsewhere(cluster, before))
}

/// A pod on a node reaches pods of other nodes, by both families.
fn reach_pods_elsewhere(cluster: &Cluster, node: u8) -> Result<()> {
    let client = Client::in_pod(cluster, node)?;
    let service = cluster.kubectl().json(&["get", "service", "on-link"])?;
    let addresses = service["spec"]["clusterIPs"].as_array().cloned().unwrap_or_default();
    ensure!(addresses.len() == 2, "{addresses:?}");
    for address in addresses.iter().filter_map(Value::as_str) {
        let target = SocketAddr::new(address.parse()?, Protocol::Http.port());
        let backends = client.backends(Protocol::Http, target, 12)?;
        ensure!(backends.len() > 1, "pods of other nodes are not reached: {backends:?}");
    }
    Ok(())
}

/// Without the routes of the test's network, pods reach each other by ours.
fn routes_between_nodes(cluster: &Cluster) -> Result<()> {
    let node = cluster.namespace("node-1")?;
    let elsewhere: Vec<_> =
        (2..=NODES).flat_map(|other| Plan::pods(other).into_iter().zip(Plan::node(other))).collect();
    let change = |verb: &str| {
        elsewhere.iter().try_for_each(|(range, gateway)| {
            let (family, metric) = if gateway.is_ipv4() { ("-4", "0") } else { ("-6", "1024") };
            let (range, gateway) = (range.to_string(), gateway.to_string());
            let words = ["ip", family, "route", verb, &range, "via", &gateway, "metric", metric];
            output(&node, &words).map(drop)
        })
    };
    let wait_for_ours = || {
        elsewhere.iter().try_for_each(|(range, gateway)| {
            let family = if gateway.is_ipv4() { "-4" } else { "-6" };
            wait("our route", CHANGE_LIMIT, || {
                let shown = output(&node, &["ip", family, "route", "show", &range.to_string()])?;
                ensure!(shown.contains("109"), "{shown}");
                Ok(())
            })
        })
    };
    wait_for_ours()?;
    let outcome = change("del").and_then(|()| reach_pods_elsewhere(cluster, 1));
    change("replace")?;
    outcome
}

#[test]
fn nodes_addresses_addresses_on_the_link_and_routes_work_with_the_rights_of_the_chart() {
    if proxy() != Proxy::Millrace {
        return;
    }
    let cluster = shared();
    let kubectl = cluster.kubectl();
    let outcome = upgrade(&cluster, VALUES)
        .and_then(|()| wait_for_agents(&kubectl))
        .and_then(|()| nodes_own_addresses(&cluster))
        .and_then(|()| addresses_on_the_link(&cluster))
        .and_then(|()| routes_between_nodes(&cluster));
    kubectl.run(&["delete", "service", "of-nodes", "on-link", "--ignore-not-found"]).unwrap();
    cluster.install_millrace(&assets().unwrap()).unwrap();
    wait_for_agents(&kubectl).unwrap();
    roll_out(&kubectl, "daemonset/pod-client").unwrap();
    outcome.unwrap();
}
