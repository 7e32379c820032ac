//! Long connections while the endpoints of their Service change: none is cut while its backend
//! lives.
//!
//! With `MILLRACE_LONG=1` there are 500 of them, half of them silent until the end, and ten rolling
//! restarts.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use millrace_lab::cluster::Cluster;
use millrace_lab::manifests::Service;
use millrace_lab::topology::{Family, vip};
use millrace_lab::traffic::{LongConnections, Stream};

use crate::fixture::{counted, expect_no_loss, is_long, own, own_without_agents};

const NODES: [u8; 3] = [1, 2, 3];

/// The size of the test.
struct Size {
    connections: usize,
    restarts: usize,
}

impl Size {
    fn wanted() -> Self {
        if is_long() {
            Self { connections: 500, restarts: 10 }
        } else {
            Self { connections: 120, restarts: 1 }
        }
    }
}

/// The pods of a Service with Direct Server Return, and whether each is ready. The others
/// terminate, but live.
struct Pods {
    number: u8,
    ready: BTreeMap<String, bool>,
}

impl Pods {
    fn new(number: u8, names: &[&str]) -> Self {
        Self { number, ready: names.iter().map(|name| ((*name).to_owned(), true)).collect() }
    }

    fn service(&self, cluster: &Cluster) -> Result<Service> {
        let names: Vec<&str> = self.ready.keys().map(String::as_str).collect();
        let service = cluster.service("lasting", self.number, &names)?.load_balancer(vip(self.number));
        let mut service = service.annotation("millrace.dev/forwarding", "dsr");
        for (name, _) in self.ready.iter().filter(|(_, ready)| !**ready) {
            service = service.draining(cluster.bed().pod(name)?);
        }
        Ok(service)
    }

    /// Makes one update of the EndpointSlices, which all nodes see.
    fn change(&mut self, cluster: &Cluster, name: &str, ready: Option<bool>) -> Result<()> {
        match ready {
            Some(ready) => self.ready.insert(name.to_owned(), ready),
            None => self.ready.remove(name),
        };
        cluster.apply(&self.service(cluster)?, &NODES)
    }
}

/// Opens connections of both families, half of them silent.
fn open(cluster: &Cluster, number: u8, count: usize) -> Result<Vec<LongConnections>> {
    let target = |family| SocketAddr::new(vip(number).of(family), 80);
    let open = |family| LongConnections::open(cluster.bed().client(), target(family), count / 4, count / 4);
    Family::ALL.into_iter().map(open).collect()
}

/// Asks every connection once more. A cut one is an error.
fn assert_kept(connections: Vec<LongConnections>, count: usize) -> Result<()> {
    for of_family in connections {
        assert_eq!(of_family.stop()?, count / 4 * 2);
    }
    Ok(())
}

fn restart_agents(cluster: &mut Cluster) -> Result<()> {
    for node in NODES {
        cluster.take_agent(node)?.kill()?;
    }
    for node in NODES {
        let proxy = cluster.proxy(node)?;
        let starts = proxy.log().matches("serving as").count();
        cluster.start_agent(node)?;
        let proxy = cluster.proxy(node)?;
        proxy.wait_until("the agent is back", || Ok(proxy.log().matches("serving as").count() > starts))?;
    }
    Ok(())
}

#[test]
fn no_connection_is_cut_by_scaling_rolling_restarts_and_restarts_of_all_agents() -> Result<()> {
    let size = Size::wanted();
    let mut cluster = own(3, 10)?;
    let stay = ["pod-1a", "pod-2a", "pod-3a"];
    let all: Vec<String> = cluster.bed().pods().map(|pod| pod.name().to_owned()).collect();
    let others: Vec<&String> = all.iter().filter(|name| !stay.contains(&name.as_str())).collect();
    let mut pods = Pods::new(1, &stay);
    cluster.apply(&pods.service(&cluster)?, &NODES)?;
    let early = open(&cluster, 1, size.connections / 2)?;
    let target = SocketAddr::new(vip(1).of(Family::V4), 80);
    let stream = Stream::start(cluster.bed().client(), target, Duration::from_millis(5))?;
    for name in &others {
        pods.change(&cluster, name, Some(true))?;
    }
    restart_agents(&mut cluster)?;
    let late = open(&cluster, 1, size.connections / 2)?;
    for restart in 1..=size.restarts {
        for name in &others {
            pods.change(&cluster, name, Some(false))?;
        }
        restart_agents(&mut cluster)?;
        if restart < size.restarts {
            for name in &others {
                pods.change(&cluster, name, Some(true))?;
            }
        }
    }
    assert_kept(late, size.connections / 2)?;
    pods.ready.retain(|name, _| stay.contains(&name.as_str()));
    cluster.apply(&pods.service(&cluster)?, &NODES)?;
    assert_kept(early, size.connections / 2)?;
    expect_no_loss(&cluster, stream)?;
    Ok(())
}

/// All endpoints of a Service become unready at once, and another one comes. Their connections are
/// not cut.
#[test]
fn connections_outlast_a_time_without_any_ready_endpoint() -> Result<()> {
    let cluster = own(3, 1)?;
    let mut pods = Pods::new(1, &["pod-2a"]);
    cluster.apply(&pods.service(&cluster)?, &NODES)?;
    let connections = open(&cluster, 1, 20)?;
    let unready = |service: Service| Ok::<_, anyhow::Error>(service.unready(cluster.bed().pod("pod-2a")?));
    cluster.apply(&unready(pods.service(&cluster)?)?, &NODES)?;
    pods.ready.insert("pod-3a".to_owned(), true);
    cluster.apply(&unready(pods.service(&cluster)?)?, &NODES)?;
    assert_kept(connections, 20)
}

fn a_fresh_director_takes_over(scaled_to: &[&str]) -> Result<()> {
    let mut cluster = own_without_agents(4, 2)?;
    for node in NODES {
        cluster.start_agent(node)?;
    }
    for node in NODES {
        cluster.wait_for_hooks(node)?;
    }
    let mut pods = Pods::new(1, &["pod-2a", "pod-3a"]);
    cluster.apply(&pods.service(&cluster)?, &NODES)?;
    for node in NODES {
        cluster.wait_for_ways(node)?;
    }
    let connections = open(&cluster, 1, 120)?;
    for name in scaled_to {
        pods.change(&cluster, name, Some(true))?;
    }
    cluster.start_agent(4)?;
    cluster.wait_for_hooks(4)?;
    cluster.apply(&pods.service(&cluster)?, &[4])?;
    cluster.wait_for_ways(4)?;
    for address in vip(1).both() {
        cluster.bed().route_to(address, 4)?;
    }
    cluster.take_agent(1)?.kill()?;
    assert_kept(connections, 120)?;
    assert!(counted(&cluster, 4, "sent_dsr")? > 0, "the other node is the director");
    Ok(())
}

#[test]
fn a_director_with_empty_maps_keeps_all_connections() -> Result<()> {
    a_fresh_director_takes_over(&[])
}

#[test]
fn a_director_with_empty_maps_keeps_all_connections_that_are_older_than_the_scaling() -> Result<()> {
    a_fresh_director_takes_over(&["pod-2b", "pod-3b"])
}
