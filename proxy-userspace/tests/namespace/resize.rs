//! Maps get another size while connections go on: none is cut.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result};
use millrace_lab::cluster::Cluster;
use millrace_lab::manifests::Service;
use millrace_lab::topology::{Family, vip};
use millrace_lab::traffic::{LongConnections, Stream};
use serde_json::json;

use crate::fixture::{expect_no_loss, own};

const NODES: [u8; 2] = [1, 2];
/// The longest time of an agent that loads all programs anew.
const LOAD_LIMIT: Duration = Duration::from_mins(2);
/// Long connections of one Service and family; half of them are silent until the end.
const CONNECTIONS: usize = 40;

fn target(number: u8, family: Family) -> SocketAddr {
    SocketAddr::new(vip(number).of(family), 80)
}

/// A Service with DSR and one with SNAT, each with a backend on both nodes.
fn services(cluster: &Cluster) -> Result<[Service; 2]> {
    let pods = ["pod-1a", "pod-2a"];
    let translated = cluster.service("translated", 1, &pods)?.load_balancer(vip(1));
    let direct = cluster.service("direct", 2, &pods)?.load_balancer(vip(2));
    Ok([translated, direct.annotation("millrace.dev/forwarding", "dsr")])
}

/// Restarts the agent of node 1, the director, and waits until it serves.
fn restart_with(cluster: &mut Cluster, flags: &[&str]) -> Result<()> {
    cluster.take_agent(1)?.kill()?;
    let starts = cluster.proxy(1)?.log().matches("serving as").count();
    cluster.start_agent_with(1, flags)?;
    let proxy = cluster.proxy(1)?;
    proxy.wait_until_within(LOAD_LIMIT, "the agent is back", || {
        Ok(proxy.log().matches("serving as").count() > starts)
    })
}

/// Changes settings of the director one after another, while connections are used and opened.
fn no_connection_is_cut_by(changes: &[&[&str]]) -> Result<()> {
    let mut cluster = own(2, 1)?;
    for service in services(&cluster)? {
        cluster.apply(&service, &NODES)?;
    }
    let mut long = Vec::new();
    let mut streams = Vec::new();
    for number in [1, 2] {
        for family in Family::ALL {
            let half = CONNECTIONS / 2;
            long.push(LongConnections::open(cluster.bed().client(), target(number, family), half, half)?);
        }
        let every = Duration::from_millis(10);
        streams.push(Stream::start(cluster.bed().client(), target(number, Family::V4), every)?);
    }
    for flags in changes {
        restart_with(&mut cluster, flags)?;
        for family in Family::ALL {
            let half = CONNECTIONS / 2;
            long.push(LongConnections::open(cluster.bed().client(), target(1, family), half, half)?);
        }
    }
    for connections in long {
        assert_eq!(connections.stop()?, CONNECTIONS);
    }
    for stream in streams {
        expect_no_loss(&cluster, stream)?;
    }
    Ok(())
}

/// Returns what the status of a node says of a map: `entries`, `used`, or `memory_bytes`.
fn figure(cluster: &Cluster, node: u8, map: &str, field: &str) -> Result<u64> {
    let output = cluster.proxy(node)?.command(&["status", "-o", "json"])?;
    let status: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let maps = status["maps"].as_array().cloned().unwrap_or_default();
    let found = maps.iter().find(|view| view["name"] == map).and_then(|view| view[field].as_u64());
    found.with_context(|| format!("{field} of {map} is not in {status}"))
}

/// Returns a manifest of that many Services without endpoints.
fn many(count: u32) -> String {
    let service = |n: u32| {
        let address = Ipv4Addr::from_bits(Ipv4Addr::new(10, 97, 0, 0).to_bits() + n);
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"namespace": "default", "name": format!("one-of-many-{n}")},
            "spec": {
                "clusterIP": address,
                "clusterIPs": [address],
                "ipFamilies": ["IPv4"],
                "ports": [{"port": 80}],
            },
        })
    };
    json!({"apiVersion": "v1", "kind": "List", "items": (0..count).map(service).collect::<Vec<_>>()})
        .to_string()
}

#[test]
fn no_connection_is_cut_by_flow_tables_of_another_size() -> Result<()> {
    no_connection_is_cut_by(&[&["--flow-table-size", "524288"], &["--flow-table-size", "16384"]])
}

#[test]
fn no_connection_is_cut_by_other_snat_ports() -> Result<()> {
    let ranges: [&[&str]; 3] = [
        &["--snat-ports", "50000-51000"],
        &["--snat-ports", "52000-53000"],
        &["--snat-ports", "61000-65535"],
    ];
    no_connection_is_cut_by(&ranges)
}

/// Half of the connections are silent meanwhile: only the former tables lead to those by DSR.
#[test]
fn no_connection_is_cut_by_maglev_tables_of_another_size() -> Result<()> {
    no_connection_is_cut_by(&[&["--maglev-table-size", "251"], &["--maglev-table-size", "1021"]])
}

#[test]
fn a_restart_gives_the_flow_tables_the_size_of_the_setting() -> Result<()> {
    let mut cluster = own(1, 1)?;
    restart_with(&mut cluster, &["--flow-table-size", "4096"])?;
    assert_eq!(figure(&cluster, 1, "FLOWS4", "entries")?, 4096);
    let log = cluster.proxy(1)?.log();
    assert!(log.contains("maps get another size; connections go on"), "{log}");
    Ok(())
}

/// The agent needs two ids of SERVICES for each port. These take four fifths of the least room, and more.
const MANY: u32 = 1_800;

#[test]
fn maps_grow_with_the_services_while_the_agents_run_and_no_connection_is_cut() -> Result<()> {
    let cluster = own(2, 1)?;
    for service in services(&cluster)? {
        cluster.apply(&service, &NODES)?;
    }
    let before = figure(&cluster, 1, "SERVICES", "entries")?;
    let mut long = Vec::new();
    let mut streams = Vec::new();
    let half = CONNECTIONS / 2;
    let client = cluster.bed().client();
    for number in [1, 2] {
        for family in Family::ALL {
            long.push(LongConnections::open(client, target(number, family), half, half)?);
        }
        streams.push(Stream::start(client, target(number, Family::V4), Duration::from_millis(10))?);
    }
    cluster.manifests().put("many.yaml", &many(MANY))?;
    for node in NODES {
        let proxy = cluster.proxy(node)?;
        proxy.wait_until_within(LOAD_LIMIT, "all Services have room", || {
            let is_larger = figure(&cluster, node, "SERVICES", "entries")? > before;
            Ok(is_larger && figure(&cluster, node, "NAMES", "used")? >= u64::from(MANY))
        })?;
        assert_eq!(proxy.log().matches("maps get another size").count(), 1, "{}", proxy.log());
        assert_eq!(proxy.log().matches("the agent starts").count(), 1, "no restart");
        assert!(figure(&cluster, node, "SERVICES", "memory_bytes")? >= before * 16);
    }
    for family in Family::ALL {
        long.push(LongConnections::open(client, target(1, family), half, half)?);
    }
    for connections in long {
        assert_eq!(connections.stop()?, CONNECTIONS);
    }
    for stream in streams {
        expect_no_loss(&cluster, stream)?;
    }
    Ok(())
}
