//! The agent's answers over HTTP to real clients.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use millrace_lab::net::{Namespace, has_tcx};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::fixture::{own, own_without_agents};

const LIMIT: Duration = Duration::from_secs(20);

/// Returns the answer to a GET from a namespace.
fn get(from: &Namespace, address: SocketAddr, path: &str) -> Result<String> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n");
    from.run(async move || {
        let ask = async {
            let mut stream = TcpStream::connect(address).await?;
            stream.write_all(request.as_bytes()).await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            anyhow::Ok(answer)
        };
        timeout(LIMIT, ask).await?
    })
}

/// Asks until the answer contains a text.
pub fn get_until(from: &Namespace, address: SocketAddr, path: &str, text: &str) -> Result<String> {
    let started = Instant::now();
    loop {
        let answer = get(from, address, path);
        if let Ok(answer) = &answer
            && answer.contains(text)
        {
            return Ok(answer.clone());
        }
        if started.elapsed() > LIMIT {
            bail!("{address}{path} never answered {text:?}; last {answer:?}");
        }
        from.run(async || {
            sleep(Duration::from_millis(50)).await;
            Ok(())
        })?;
    }
}

/// Returns a Service with a health check node port and one endpoint on node 1.
fn checked(node: &str, ready: &str, port: u16) -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "default", "name": "checked"},
         "spec": {"type": "LoadBalancer", "clusterIP": "10.96.3.1", "clusterIPs": ["10.96.3.1"],
                  "externalTrafficPolicy": "Local", "healthCheckNodePort": port,
                  "ports": [{"port": 80, "protocol": "TCP", "nodePort": 31080}]}},
        {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
         "metadata": {"namespace": "default", "name": "checked-1",
                      "labels": {"kubernetes.io/service-name": "checked"}},
         "ports": [{"port": 8080, "protocol": "TCP"}],
         "endpoints": [{"addresses": ["10.244.1.10"], "nodeName": node,
                        "conditions": {"ready": ready == "ready", "serving": true,
                                       "terminating": ready != "ready"}}]},
    ]})
    .to_string()
}

#[test]
fn a_client_sees_the_node_drain_and_probes_and_metrics_answer() -> Result<()> {
    let cluster = own(1, 1)?;
    let node = cluster.bed().node(1)?;
    let (client, inside) = (cluster.bed().client(), node.namespace());
    let address = IpAddr::V4(node.addresses().v4);
    let check = SocketAddr::new(address, 32_001);
    cluster.manifests().put("checked.yaml", &checked(node.name(), "ready", 32_001))?;
    let answer = get_until(client, check, "/", "HTTP/1.1 200 OK\r\n")?;
    assert!(answer.contains("\r\nX-Load-Balancing-Endpoint-Weight: 1\r\n"), "{answer}");
    assert!(answer.ends_with("\t\"localEndpoints\": 1,\n\t\"serviceProxyHealthy\": true\n}"), "{answer}");
    cluster.manifests().put("checked.yaml", &checked(node.name(), "terminating", 32_001))?;
    get_until(client, check, "/", "HTTP/1.1 503 Service Unavailable\r\n")?;
    cluster.manifests().put("checked.yaml", &checked(node.name(), "ready", 32_002))?;
    get_until(client, SocketAddr::new(address, 32_002), "/", "HTTP/1.1 200 OK\r\n")?;
    assert!(get(client, check, "/").is_err(), "the old port is closed");

    let answer = get(client, SocketAddr::new(address, 10_256), "/healthz")?;
    assert!(
        answer.starts_with("HTTP/1.1 200 OK\r\n")
            && answer.contains("\"nodeEligible\":true,\"healthy\":true"),
        "{answer}"
    );
    let answer = get(client, SocketAddr::new(address, 10_256), "/readyz")?;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\n[]"), "{answer}");
    let metrics: SocketAddr = "127.0.0.1:10249".parse()?;
    assert!(get(client, SocketAddr::new(address, 10_249), "/metrics").is_err(), "for this node only");
    assert!(get(inside, metrics, "/proxyMode")?.ends_with("\r\n\r\nebpf"));
    let text = get_until(inside, metrics, "/metrics", "millrace_service_packets_total{")?;
    let sample = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).with_context(|| format!("no {name}"));
        anyhow::Ok(line?.rsplit(' ').next().unwrap_or_default().parse::<f64>()?)
    };
    // The Service was created and got another port. Its slice was created, drained, and came back.
    assert!(sample("kubeproxy_sync_proxy_rules_service_changes_total ")? >= 2.0);
    assert!(sample("kubeproxy_sync_proxy_rules_endpoint_changes_total ")? >= 3.0);
    let mode = if has_tcx()? { "tcx" } else { "clsact" };
    let attached = sample(&format!("millrace_programs_attached{{hook=\"tc_egress\",mode=\"{mode}\"}}"))?;
    assert!((attached - 1.0).abs() < 1e-9);
    assert!((sample("millrace_self_test_failed ")?).abs() < 1e-9);
    for condition in [
        "source-listed",
        "node-found",
        "data-plane",
        "changes-applied",
        "self-test",
        "node-checks",
        "network-policies",
    ] {
        let series = format!("millrace_ready{{condition=\"{condition}\"}}");
        get_until(inside, metrics, "/metrics", &format!("{series} 1\n"))?;
    }
    assert!(get(inside, metrics, "/readyz?verbose")?.ends_with("readyz check passed\n"));
    assert!(sample("process_resident_memory_bytes ")? > 1e6);
    assert!((sample("millrace_source_synced ")? - 1.0).abs() < 1e-9);
    assert!(
        !text.contains("program=\"cg_connect4\",reason=\"hop_limit\""),
        "the program never counts this reason"
    );
    Ok(())
}

#[test]
fn a_missing_uplink_is_reported_while_the_others_serve_and_the_node_is_ready() -> Result<()> {
    let cluster = own_without_agents(1, 0)?;
    let proxy = cluster.proxy(1)?;
    let _agent = proxy.start_with(&["--uplinks", "eth0,eth9"])?;
    proxy.wait_for_start(1)?;
    let node = cluster.bed().node(1)?.namespace();
    get_until(node, "127.0.0.1:10256".parse()?, "/readyz", "\r\n\r\n[]")?;
    let status = proxy.json("status")?;
    assert_eq!(status["readiness"]["ready"], true);
    assert_eq!(
        status["readiness"]["failures"],
        json!(["--uplinks: there is no device eth9; it is taken up as soon as it appears"])
    );
    let output = proxy.command(&["status"])?;
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(table.contains("problems 1\n") && table.contains("there is no device eth9"), "{table}");
    let log = proxy.log();
    let is_named = |line: &&str| line.contains("there is no") && line.contains("eth9");
    assert_eq!(log.lines().filter(is_named).count(), 1, "{log}");
    Ok(())
}

#[test]
fn an_agent_that_waits_for_its_source_says_so_before_it_has_maps() -> Result<()> {
    let cluster = own_without_agents(1, 0)?;
    let proxy = cluster.proxy(1)?;
    let output = proxy.command(&["status"])?;
    assert!(!output.status.success(), "no agent runs");
    // The address swallows packets, so nothing is ever listed.
    let kubeconfig = cluster.bed().directory().join("nowhere.kubeconfig");
    let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "bed", "users": [],
        "clusters": [{"name": "bed", "cluster": {"server": "http://172.30.0.250:6443"}}],
        "contexts": [{"name": "bed", "context": {"cluster": "bed", "user": ""}}]});
    std::fs::write(&kubeconfig, config.to_string())?;
    let kubeconfig = kubeconfig.display().to_string();
    let agent = proxy.start_with(&["--source", "kubernetes", "--kubeconfig", &kubeconfig])?;
    let node = cluster.bed().node(1)?.namespace();
    let face: SocketAddr = "127.0.0.1:10256".parse()?;
    get_until(node, face, "/readyz", "source-listed")?;
    get_until(node, face, "/healthz", "HTTP/1.1 503 ")?;
    get_until(node, face, "/livez", "HTTP/1.1 503 ")?;
    get_until(node, face, "/livez?exclude=first-sync", "HTTP/1.1 200 ")?;
    proxy.wait_until("the server is named", || {
        let status = proxy.json("status")?;
        let failing = &status["readiness"]["failing"][0];
        let cause = failing["cause"].as_str().unwrap_or_default();
        Ok(failing["condition"] == "source-listed" && cause.contains("http://172.30.0.250:6443"))
    })?;
    // Answers over the network do not name servers.
    assert!(!get(node, face, "/readyz")?.contains("172.30.0.250"));
    assert!(agent.stop()?.success());
    assert!(!proxy.command(&["status"])?.status.success(), "the report ends with the agent");
    Ok(())
}
