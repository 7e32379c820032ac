//! Many Services. The agent's log has the number of writes and their time.
//!
//! With `MILLRACE_LONG`, the test has as many Services as a large cluster.

use std::net::Ipv4Addr;

use anyhow::{Context, Result};
use millrace_lab::agent::Proxy;
use millrace_lab::cluster::Cluster;
use millrace_lab::topology::Shape;
use serde_json::{Value, json};

use crate::fixture::{FLAGS, LIMIT};

const ENDPOINTS: u16 = 5;

/// Returns Service `number` of one family with unused endpoints. `generation` changes the first endpoint.
fn objects(number: u16, generation: u8) -> [Value; 2] {
    let name = format!("many-{number}");
    let [high, low] = number.to_be_bytes();
    let endpoint = |index: u16| {
        let [first, last] = (number * ENDPOINTS + index).to_be_bytes();
        let network = if index == 0 { 246 + generation } else { 245 };
        json!({"addresses": [Ipv4Addr::new(10, network, first, last)], "nodeName": "elsewhere"})
    };
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": "default", "name": name},
        "spec": {"clusterIP": Ipv4Addr::new(10, 96, high + 1, low), "ports": [{"port": 80, "targetPort": 8080}]},
    });
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "namespace": "default",
            "name": format!("{name}-1"),
            "labels": {"kubernetes.io/service-name": name},
        },
        "addressType": "IPv4",
        "ports": [{"port": 8080}],
        "endpoints": (0..ENDPOINTS).map(endpoint).collect::<Vec<_>>(),
    });
    [service, slice]
}

/// Writes all Services. `generation` applies to Service 7 only.
fn put(cluster: &Cluster, services: u16, generation: u8) -> Result<()> {
    let items = (0..services).flat_map(|number| objects(number, if number == 7 { generation } else { 0 }));
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items.collect::<Vec<_>>()});
    cluster.manifests().put("many.yaml", &list.to_string())
}

/// Returns the number of writes of the last sync with writes, and its duration.
fn last_sync(proxy: &Proxy) -> Result<(usize, String)> {
    let log = proxy.log();
    let field = |line: &str, name: &str| {
        let value = line.split_whitespace().find_map(|word| word.strip_prefix(name));
        value.map(str::to_owned).with_context(|| format!("no {name} in {line}"))
    };
    let mut synced = log.lines().filter(|line| line.contains("synced ") && !line.contains("writes=0 "));
    let line = synced.next_back().context("nothing was synced")?;
    Ok((field(line, "writes=")?.parse()?, field(line, "took=")?))
}

#[test]
fn many_services_are_programmed_and_a_change_writes_only_its_entries() -> Result<()> {
    let services = if std::env::var_os("MILLRACE_LONG").is_some() { 5000 } else { 200 };
    let mut cluster = Cluster::without_agents(Shape { nodes: 1, pods: 1, ..Shape::default() }, "off")?;
    put(&cluster, services, 0)?;
    cluster.start_agent_with(1, &FLAGS)?;
    let proxy = cluster.proxy(1)?;
    proxy.wait_for_start(1)?;
    let (writes, took) = last_sync(proxy)?;
    println!("{services} services, {ENDPOINTS} endpoints each: {writes} writes took {took}");
    assert!(writes > usize::from(services * (ENDPOINTS + 1)), "{writes}");

    put(&cluster, services, 1)?;
    proxy.wait_until_within(LIMIT, "one endpoint is replaced", || Ok(last_sync(proxy)?.0 != writes))?;
    let (writes, took) = last_sync(proxy)?;
    println!("one endpoint replaced: {writes} writes took {took}");
    // The agent adds the new server, and sets the weight of the old one to 0.
    assert_eq!(writes, 2, "{}", proxy.log());
    Ok(())
}
