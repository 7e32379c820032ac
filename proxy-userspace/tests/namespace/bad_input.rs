//! Manifests with faults. Each fault is named with file, object and field, and everything else goes
//! on.

use std::time::Duration;

use anyhow::Result;
use millrace_lab::capture::Trail;
use millrace_lab::topology::vip;
use millrace_lab::walk::Walk;

use crate::fixture::own;

const TOLD_LIMIT: Duration = Duration::from_secs(30);

/// The file, its text, and the parts of the agent's message besides the file's name.
const FAULTS: [(&str, &str, &[&str]); 9] = [
    ("not-yaml.yaml", "kind: Service\nmetadata: [", &["YAML"]),
    ("unknown-kind.yaml", "apiVersion: v1\nkind: Gadget\nmetadata: {name: gadget}", &["Gadget"]),
    (
        "external-ip.yaml",
        r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "default", "name": "bad-ip"},
            "spec": {"clusterIP": "10.96.1.1", "externalIPs": ["203.0.113.300"],
                     "ports": [{"port": 80, "protocol": "TCP"}]}}"#,
        &["default/bad-ip", "externalIPs", "203.0.113.300"],
    ),
    (
        "node-port.yaml",
        r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "default", "name": "bad-port"},
            "spec": {"type": "NodePort", "clusterIP": "10.96.1.2",
                     "ports": [{"port": 80, "protocol": "TCP", "nodePort": 70000}]}}"#,
        &["default/bad-port", "nodePort", "70000"],
    ),
    (
        "no-endpoints.yaml",
        r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "default", "name": "alone"},
            "spec": {"clusterIP": "10.96.1.3", "ports": [{"port": 80, "protocol": "TCP"}]}}"#,
        &["default/alone", "EndpointSlice"],
    ),
    (
        "no-service.yaml",
        r#"{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"namespace": "default", "name": "orphan-1",
                         "labels": {"kubernetes.io/service-name": "orphan"}},
            "ports": [{"port": 80, "protocol": "TCP"}], "endpoints": [{"addresses": ["10.244.1.10"]}]}"#,
        &["default/orphan-1", "orphan"],
    ),
    (
        "port-name.json",
        r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "default", "name": "misnamed"},
            "spec": {"clusterIP": "10.96.1.5", "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]}}
           {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"namespace": "default", "name": "misnamed-1",
                         "labels": {"kubernetes.io/service-name": "misnamed"}},
            "ports": [{"name": "web", "port": 8080, "protocol": "TCP"}],
            "endpoints": [{"addresses": ["10.244.1.10"]}]}"#,
        &["default/misnamed-1", "ports[0].name", "web", "http"],
    ),
    (
        "port-protocol.json",
        r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "default", "name": "mistyped"},
            "spec": {"clusterIP": "10.96.1.6", "ports": [{"port": 53, "protocol": "UDP"}]}}
           {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"namespace": "default", "name": "mistyped-1",
                         "labels": {"kubernetes.io/service-name": "mistyped"}},
            "ports": [{"port": 53, "protocol": "TCP"}], "endpoints": [{"addresses": ["10.244.1.10"]}]}"#,
        &["default/mistyped-1", "ports[0]", "TCP", "UDP"],
    ),
    (
        "twice.yaml",
        r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "default", "name": "thief"},
            "spec": {"type": "LoadBalancer", "clusterIP": "10.96.1.4",
                     "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]},
            "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.1"}]}}}"#,
        &["default/thief", "203.0.113.1", "default/good"],
    ),
];

#[test]
fn a_broken_file_at_start_removes_no_service_of_an_earlier_agent() -> Result<()> {
    let mut cluster = own(1, 1)?;
    let kept = cluster.service("kept", 1, &["pod-1a"])?.load_balancer(vip(1));
    let beside = cluster.service("beside", 2, &["pod-1a"])?.load_balancer(vip(2));
    cluster.apply(&kept, &[1])?;
    cluster.apply(&beside, &[1])?;
    assert!(cluster.take_agent(1)?.stop()?.success());
    cluster.manifests().put("kept.yaml", "kind: Service\nmetadata: [")?;
    let read = cluster.proxy(1)?.log().len();
    cluster.start_agent(1)?;
    // A later Service is served, so the start is over.
    let late = cluster.service("late", 3, &["pod-1a"])?.load_balancer(vip(3));
    cluster.apply(&late, &[1])?;
    let proxy = cluster.proxy(1)?;
    let is_named = |line: &str| line.contains("kept.yaml") && line.contains("nothing that is already served");
    assert!(proxy.log()[read..].lines().any(is_named), "{}", &proxy.log()[read..]);
    for (service, number) in [(&kept, 1), (&beside, 2)] {
        cluster.expect(&Walk::to(service.name(), vip(number), 80, &["pod-1a"], Trail::local("node1")))?;
    }
    cluster.manifests().remove("kept.yaml")?;
    proxy.wait_until("the service is gone", || Ok(!proxy.services()?.iter().any(|row| row.name == "kept")))
}

#[test]
fn nodes_that_cannot_be_read_at_start_are_reached_as_before() -> Result<()> {
    let mut cluster = own(2, 1)?;
    let direct = cluster.service("direct", 1, &["pod-2a"])?.load_balancer(vip(1));
    let direct = direct.annotation("millrace.dev/forwarding", "dsr");
    cluster.apply(&direct, &[1, 2])?;
    cluster.wait_for_ways(1)?;
    for node in [1, 2] {
        assert!(cluster.take_agent(node)?.stop()?.success());
    }
    cluster.manifests().put("nodes.yaml", "kind: List\nitems: [")?;
    for node in [1, 2] {
        cluster.start_agent(node)?;
    }
    let late = cluster.service("late", 2, &["pod-1a"])?.load_balancer(vip(2));
    cluster.apply(&late, &[1, 2])?;
    let trail = Trail::direct_return("node1", "node2");
    cluster.expect(&Walk::to(direct.name(), vip(1), 80, &["pod-2a"], trail))
}

#[test]
fn each_fault_is_named_and_all_the_rest_is_served() -> Result<()> {
    let cluster = own(1, 1)?;
    let good = cluster.service("good", 1, &["pod-1a"])?.load_balancer(vip(1));
    cluster.apply(&good, &[1])?;
    let proxy = cluster.proxy(1)?;
    for (file, text, _) in FAULTS {
        cluster.manifests().put(file, text)?;
    }
    for (file, _, words) in FAULTS {
        let is_named = |line: &str| line.contains(file) && words.iter().all(|word| line.contains(word));
        // Some faults may pass by themselves, so the agent waits a while before it reports them.
        proxy.wait_until_within(TOLD_LIMIT, &format!("a line names {file} and {words:?}"), || {
            Ok(proxy.log().lines().any(is_named))
        })?;
    }
    cluster.expect(&Walk::to(good.name(), vip(1), 80, &["pod-1a"], Trail::local("node1")))?;
    let late = cluster.service("late", 2, &["pod-1a"])?.load_balancer(vip(2));
    cluster.apply(&late, &[1])?;
    cluster.expect(&Walk::to(late.name(), vip(2), 80, &["pod-1a"], Trail::local("node1")))
}
