//! What the agent answers over HTTP, asked by real clients.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use millrace_lab::net::{Namespace, has_tcx};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::fixture::own;

const LIMIT: Duration = Duration::from_secs(20);

/// The answer to a GET, asked from a namespace.
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

/// Asks until the answer holds a text.
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

/// A Service with a health check node port and one endpoint on node 1.
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
        answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains("\"nodeEligible\": true"),
        "{answer}"
    );
    let metrics: SocketAddr = "127.0.0.1:10249".parse()?;
    assert!(get(client, SocketAddr::new(address, 10_249), "/metrics").is_err(), "for this node only");
    assert!(get(inside, metrics, "/proxyMode")?.ends_with("\r\n\r\nebpf"));
    let text = get_until(inside, metrics, "/metrics", "millrace_service_packets_total{")?;
    let sample = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).with_context(|| format!("no {name}"));
        anyhow::Ok(line?.rsplit(' ').next().unwrap_or_default().parse::<f64>()?)
    };
    // The Service was made and got another port; its slice was made, drained and came back.
    assert!(sample("kubeproxy_sync_proxy_rules_service_changes_total ")? >= 2.0);
    assert!(sample("kubeproxy_sync_proxy_rules_endpoint_changes_total ")? >= 3.0);
    let mode = if has_tcx()? { "tcx" } else { "clsact" };
    let attached = sample(&format!("millrace_programs_attached{{hook=\"tc_egress\",mode=\"{mode}\"}}"))?;
    assert!((attached - 1.0).abs() < 1e-9);
    assert!((sample("millrace_self_test_failed ")?).abs() < 1e-9);
    Ok(())
}
