//! The views of the command line on a node in IPVS mode.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use millrace_lab::cluster::{Cluster, TARGET_PORT};
use millrace_lab::manifests::Service;
use millrace_lab::topology::{Family, cluster_ip, vip};
use millrace_lab::traffic::{LongConnections, Protocol, ask};
use serde_json::{Value, json};

use crate::fixture::{LIMIT, apply, shared};

/// Returns the rows that a subcommand prints in node 1.
fn rows(cluster: &Cluster, subject: &str) -> Result<Vec<Value>> {
    cluster.proxy(1)?.items(subject)
}

/// Whether a row has these fields. It may have others.
fn has(row: &Value, fields: &Value) -> bool {
    fields.as_object().is_some_and(|fields| fields.iter().all(|(name, value)| row.get(name) == Some(value)))
}

/// Returns the row of a list with these fields.
fn find(rows: &[Value], fields: &Value) -> Result<Value> {
    rows.iter().find(|row| has(row, fields)).cloned().with_context(|| format!("no {fields} among {rows:#?}"))
}

/// Returns the virtual service of a frontend for clients in `scope`.
fn find_service(rows: &[Value], frontend: SocketAddr, protocol: Protocol, scope: &str) -> Result<Value> {
    let fields = json!({"address": frontend, "protocol": protocol.name(), "scope": scope});
    let leads = |row: &&Value| {
        let frontends = row["frontends"].as_array().into_iter().flatten();
        frontends.into_iter().any(|frontend| has(frontend, &fields))
    };
    rows.iter().find(leads).cloned().with_context(|| format!("no {fields} among {rows:#?}"))
}

/// Waits until a client outside gets an answer. The agent adds addresses after their virtual services.
fn first_answer(cluster: &Cluster, target: SocketAddr) -> Result<()> {
    let client = cluster.bed().client();
    cluster.proxy(1)?.wait_until_within(LIMIT, "an answer", || Ok(ask(client, Protocol::Tcp, target).is_ok()))
}

#[test]
fn a_connection_and_a_datagram_are_found_by_every_subcommand() -> Result<()> {
    let cluster = shared();
    let service = cluster.service("shown", 70, &["pod-1a"])?.load_balancer(vip(70)).affinity(90);
    let ranges = ["198.51.100.0/24", "2001:db8:c::/48"];
    apply(&cluster, 70, &service.source_ranges(&ranges))?;
    for (family, range) in Family::ALL.into_iter().zip(ranges) {
        let target = SocketAddr::new(vip(70).of(family), 80);
        let pod = SocketAddr::new(cluster.bed().pod("pod-1a")?.addresses().of(family), TARGET_PORT);
        first_answer(&cluster, target)?;
        let connection = LongConnections::open(cluster.bed().client(), target, 0, 1)?;
        let asked = ask(cluster.bed().client(), Protocol::Udp, target)?;
        for (protocol, state) in [(Protocol::Tcp, "established"), (Protocol::Udp, "udp")] {
            let ends = |kind| json!({"protocol": protocol.name(), "kind": kind, "destination": target, "backend": pod});
            // Other connections to this frontend have ended already, in another state.
            let mut ours = ends("connection");
            ours["state"] = json!(state);
            cluster.proxy(1)?.wait_until_within(LIMIT, "the connection", || {
                Ok(find(&rows(&cluster, "flows")?, &ours).is_ok())
            })?;
            let flows = rows(&cluster, "flows")?;
            let flow = find(&flows, &ours)?;
            let source: SocketAddr = serde_json::from_value(flow["source"].clone())?;
            assert_eq!(source.ip(), asked.client.ip(), "{flow}");
            assert!(flow["remaining_seconds"].as_u64().is_some_and(|seconds| seconds > 0), "{flow}");
            let template = find(&flows, &ends("template"))?;
            assert_eq!(template["source"], json!(SocketAddr::new(source.ip(), 0)), "{template}");

            // The kernel sums counters every two seconds.
            let has_counted =
                |shown: &Value| shown["packets"].as_u64() > Some(0) && shown["bytes"].as_u64() > Some(28);
            let shown = || find_service(&rows(&cluster, "services")?, target, protocol, "all");
            cluster.proxy(1)?.wait_until_within(LIMIT, "counters", || Ok(has_counted(&shown()?)))?;
            let shown = shown()?;
            let common = json!({"mark": null, "scheduler": "rr", "elsewhere": false, "backends": [pod], "draining": []});
            assert!(has(&shown, &common), "{shown}");
            let frontend = &shown["frontends"][0];
            let fields = json!({"forwarding": "snat", "affinity_seconds": 90, "source_ranges": [range]});
            assert!(has(frontend, &fields), "{shown}");
            let inside = find_service(
                &rows(&cluster, "services")?,
                SocketAddr::new(cluster_ip(70).of(family), 80),
                protocol,
                "all",
            )?;
            assert_eq!(inside["frontends"][0]["source_ranges"], Value::Null, "{inside}");
        }
        let backends = rows(&cluster, "backends")?;
        let server = |protocol: Protocol| {
            let fields = json!({"address": pod, "protocol": protocol.name(), "local": true, "method": "masq", "weight": 1});
            let of_target = |row: &&Value| {
                has(row, &fields)
                    && row["frontends"].as_array().is_some_and(|all| all.contains(&json!(target)))
            };
            backends.iter().find(of_target).with_context(|| format!("no {fields} among {backends:#?}"))
        };
        assert!(server(Protocol::Tcp)?["active"].as_u64() > Some(0), "{backends:#?}");
        assert!(server(Protocol::Udp)?["inactive"].as_u64() > Some(0), "{backends:#?}");
        let udp = json!({"protocol": "UDP", "source": asked.client, "destination": target});
        find(&rows(&cluster, "flows")?, &udp)?;
        assert_eq!(connection.stop()?, 1);
    }
    Ok(())
}

#[test]
fn a_marked_virtual_service_and_its_connections_are_shown_with_the_mark() -> Result<()> {
    let cluster = shared();
    // The kernel does not translate the port for a client with persistence by a mark.
    let mut service = Service::new("apart", 71).port(TARGET_PORT, TARGET_PORT).load_balancer(vip(71));
    for pod in ["pod-1a", "pod-2a"] {
        service = service.pod(cluster.bed().node_of(pod)?, cluster.bed().pod(pod)?);
    }
    cluster.manifests().put_service(&service.local().affinity(90))?;
    for family in Family::ALL {
        let target = SocketAddr::new(vip(71).of(family), TARGET_PORT);
        let pod = |name| {
            let addresses = cluster.bed().pod(name)?.addresses();
            Ok::<_, anyhow::Error>(SocketAddr::new(addresses.of(family), TARGET_PORT))
        };
        let (here, there) = (pod("pod-1a")?, pod("pod-2a")?);
        first_answer(&cluster, target)?;
        let asked = ask(cluster.bed().client(), Protocol::Tcp, target)?;
        let services = rows(&cluster, "services")?;
        let outside = find_service(&services, target, Protocol::Tcp, "external")?;
        assert_eq!((&outside["backends"], &outside["family"]), (&json!([here]), &json!(family.to_string())));
        let inside = find_service(&services, target, Protocol::Tcp, "internal")?;
        let mut both = [here, there];
        both.sort_unstable();
        assert_eq!((&inside["backends"], &inside["mark"]), (&json!(both), &Value::Null), "{inside}");
        let template = json!({"kind": "template", "mark": outside["mark"], "protocol": "TCP", "destination": null,
                              "source": SocketAddr::new(asked.client.ip(), 0), "state": "assured"});
        let flows = rows(&cluster, "flows")?;
        let found = find(&flows, &template)?;
        assert!(outside["mark"].is_u64() && found["backend"].is_string(), "{found}");
        find(&flows, &json!({"source": asked.client, "destination": target, "backend": here}))?;
    }
    Ok(())
}

#[test]
fn without_a_data_plane_each_view_prints_one_clear_error() -> Result<()> {
    let cluster = shared();
    for subject in ["services", "backends", "flows", "status"] {
        let refused = cluster.proxy(2)?.command(&[subject])?;
        let text = String::from_utf8(refused.stderr)?;
        assert_eq!((refused.status.code(), text.lines().count()), (Some(5), 1), "{text}");
        assert!(text.contains("no data plane at"), "{text}");
        assert!(refused.stdout.is_empty());
    }
    Ok(())
}
