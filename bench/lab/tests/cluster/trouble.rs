//! Everything that happens to a cluster, one after the other, under many connections.

use std::net::{IpAddr, SocketAddr};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use millrace_lab::kubernetes::{Cluster, Plan, Proxy, wait};
use serde_json::json;

use super::clients::{Client, Protocol};
use super::fixture::{CHANGE_LIMIT, NODES, PODS_LIMIT, Service, proxy, roll_out, shared, wait_for_pods};
use super::install::{roll_agents, wait_for_agents};
use super::objects::{backend_on, backends, service};
use super::storm::{Held, Storm};

/// Long connections to each target.
pub const HELD: usize = 25;
/// The longest time in which the agents of all nodes run again after they were killed.
const RESTART_LIMIT: Duration = Duration::from_mins(2);

/// How much a run does.
struct Extent {
    short_connections: usize,
    api_server_away: Duration,
}

fn extent() -> Extent {
    if std::env::var_os("MILLRACE_LONG").is_some() {
        Extent { short_connections: 100_000, api_server_away: Duration::from_mins(1) }
    } else {
        Extent { short_connections: 10_000, api_server_away: Duration::from_secs(10) }
    }
}

/// Returns the targets outside: each node's port of both families, and the load balancer's addresses.
fn targets(service: &Service, balancers: [&str; 2]) -> Vec<SocketAddr> {
    let port = service.node_port("http");
    let nodes = (1..=NODES).flat_map(Plan::node).map(|address| SocketAddr::new(address, port));
    let balancers = balancers.map(|address| SocketAddr::new(address.parse::<IpAddr>().unwrap(), 80));
    nodes.chain(balancers).collect()
}

fn served(cluster: &Cluster, name: &str, balancers: [&str; 2]) -> Vec<SocketAddr> {
    let object = service(name, name, json!({"type": "LoadBalancer"}));
    let service = Service::put(&cluster.kubectl(), object, &balancers).unwrap();
    let targets = targets(&service, balancers);
    let outside = Client::outside(cluster).unwrap();
    for target in &targets {
        wait("an answer", PODS_LIMIT, || outside.ask(Protocol::Http, *target, "hostname")).unwrap();
    }
    targets
}

/// Makes a Service for long connections, and returns its targets. Its pods are on nodes that are not drained: a pod
/// that ends takes its connections along.
pub fn put_steady(cluster: &Cluster) -> Vec<SocketAddr> {
    let mut second = backend_on("steady-2", "node-2");
    second["metadata"]["labels"]["app"] = "steady".into();
    cluster.kubectl().apply(&[backend_on("steady", "node-1"), second]).unwrap();
    served(cluster, "steady", ["198.51.100.10", "fd00:100::10"])
}

/// Runs a script on a machine of the cluster.
fn on(cluster: &Cluster, machine: &str, script: &str) -> Result<()> {
    let status = cluster.command(machine, &["sh", "-c", script])?.status()?;
    ensure!(status.success(), "`{script}` failed on {machine}");
    Ok(())
}

fn kill_agents(cluster: &Cluster) -> Result<()> {
    for number in 1..=NODES {
        on(cluster, &format!("node-{number}"), "kill -9 $(pidof millrace)")?;
    }
    for number in 1..=NODES {
        let machine = format!("node-{number}");
        wait("the agent's restart", RESTART_LIMIT, || on(cluster, &machine, "pidof millrace > /dev/null"))?;
    }
    Ok(())
}

fn drain_a_node(cluster: &Cluster) -> Result<()> {
    let kubectl = cluster.kubectl();
    kubectl.run(&["drain", "node-3", "--ignore-daemonsets", "--timeout=90s", "--force"])?;
    wait_for_pods(&kubectl, "moved", NODES.into())?;
    kubectl.run(&["uncordon", "node-3"]).map(drop)
}

#[test]
fn no_connection_is_lost_whatever_happens_to_the_cluster() {
    if proxy() != Proxy::Millrace {
        return;
    }
    let (cluster, extent) = (shared(), extent());
    let kubectl = cluster.kubectl();
    kubectl.apply(&backends("moved", NODES.into())).unwrap();
    roll_out(&kubectl, "deployment/moved").unwrap();
    let steady = put_steady(&cluster);
    let moved = served(&cluster, "moved", ["198.51.100.11", "fd00:100::11"]);
    wait_for_agents(&kubectl).unwrap();

    let namespace = cluster.namespace("outside").unwrap();
    let held = Held::open(&namespace, steady, HELD).unwrap();
    let storm = Storm::start(&namespace, moved);
    let start = Instant::now();
    let step = |name: &str| {
        println!("{:>5.0} s {:>7} connections: {name}", start.elapsed().as_secs_f64(), storm.made());
    };
    step("rolling update of the backends");
    kubectl.run(&["rollout", "restart", "deployment/moved"]).unwrap();
    roll_out(&kubectl, "deployment/moved").unwrap();
    step("rolling update of the agents");
    roll_agents(&kubectl, "restart").unwrap();
    step("kill -9 of all agents");
    kill_agents(&cluster).unwrap();
    wait_for_agents(&kubectl).unwrap();
    step("a node is drained");
    drain_a_node(&cluster).unwrap();
    step("the API server is away");
    on(&cluster, "control", "kill -STOP $(pidof kube-apiserver)").unwrap();
    sleep(extent.api_server_away);
    on(&cluster, "control", "kill -CONT $(pidof kube-apiserver)").unwrap();
    wait("the API server", CHANGE_LIMIT, || kubectl.run(&["get", "nodes"])).unwrap();
    step("nothing more");
    let enough = wait("short connections", Duration::from_mins(5), || {
        ensure!(
            storm.made() >= extent.short_connections || storm.has_ended(),
            "only {} were made",
            storm.made()
        );
        Ok(())
    });
    step("the end");
    assert_eq!(storm.end().unwrap(), [""; 0]);
    enough.unwrap();
    assert_eq!(held.end().unwrap(), HELD * (2 * usize::from(NODES) + 2));
}
