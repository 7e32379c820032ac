//! Services of every kind, created, changed and deleted through the API.

use anyhow::Result;
use serde_json::json;

use crate::fixture::shared;
use crate::scene::Scene;

#[test]
fn a_service_with_everything_is_in_the_maps_until_it_is_deleted() -> Result<()> {
    let cluster = shared();
    let scene = Scene::new(&cluster, "everything")?;
    let spec = json!({
        "type": "LoadBalancer",
        "clusterIP": "10.96.1.1",
        "clusterIPs": ["10.96.1.1", "2001:db8:5::1:1"],
        "ipFamilies": ["IPv4", "IPv6"],
        "ipFamilyPolicy": "RequireDualStack",
        "externalIPs": ["203.0.113.101", "2001:db8:e::101"],
        "ports": [{"name": "http", "port": 80, "nodePort": 30101}],
    });
    let ingress = json!([
        {"ip": "203.0.113.102"},
        {"ip": "203.0.113.103", "ipMode": "Proxy"},
        {"ip": "2001:db8:e::102", "ipMode": "VIP"},
        {"hostname": "lb.example"},
    ]);
    scene.service("web", spec, json!({"status": {"loadBalancer": {"ingress": ingress}}}))?;
    let slice = |family: &str, addresses: [&str; 2]| {
        json!({
            "addressType": family,
            "ports": [{"name": "http", "port": 8080}],
            "endpoints": [
                {"addresses": [addresses[0]], "nodeName": "node1"},
                {"addresses": [addresses[1]], "nodeName": "node2"},
            ],
        })
    };
    scene.slice_with("web-4", "web", slice("IPv4", ["10.244.1.10", "10.244.2.10"]))?;
    scene.slice_with("web-6", "web", slice("IPv6", ["2001:db8:f:1::10", "2001:db8:f:2::10"]))?;
    scene.expect(
        1,
        &[
            "web:http IPv4 Cluster [ClusterIP 10.96.1.1:80 TCP] [ExternalIP 203.0.113.101:80 TCP] \
             [LoadBalancer 203.0.113.102:80 TCP] [NodePort 172.30.0.11:30101 TCP] \
             -> 10.244.1.10:8080 10.244.2.10:8080",
            "web:http IPv6 Cluster [ClusterIP [2001:db8:5::1:1]:80 TCP] \
             [ExternalIP [2001:db8:e::101]:80 TCP] [LoadBalancer [2001:db8:e::102]:80 TCP] \
             [NodePort [2001:db8:a::11]:30101 TCP] \
             -> [2001:db8:f:1::10]:8080 [2001:db8:f:2::10]:8080",
        ],
    )?;
    scene.delete_service("web")?;
    scene.expect_everywhere(&[])
}

#[test]
fn a_changed_type_port_or_policy_changes_the_frontends() -> Result<()> {
    let cluster = shared();
    let scene = Scene::new(&cluster, "changed")?;
    let endpoints = json!([
        {"addresses": ["10.244.1.10"], "nodeName": "node1"},
        {"addresses": ["10.244.2.10"], "nodeName": "node2"},
    ]);
    scene.slice("web-1", "web", 8080, endpoints)?;
    let spec = |kind: &str, ports| json!({"type": kind, "clusterIP": "10.96.1.2", "ports": ports});
    scene.service("web", spec("ClusterIP", json!([{"port": 80}])), json!({}))?;
    let both = "-> 10.244.1.10:8080 10.244.2.10:8080";
    scene.expect_everywhere(&[&format!("web IPv4 Cluster [ClusterIP 10.96.1.2:80 TCP] {both}")])?;

    scene.service("web", spec("NodePort", json!([{"port": 81, "nodePort": 30102}])), json!({}))?;
    let node_port = |node: u8| format!("[NodePort 172.30.0.1{node}:30102 TCP]");
    for node in [1, 2] {
        let nodes = node_port(node);
        scene.expect(node, &[&format!("web IPv4 Cluster [ClusterIP 10.96.1.2:81 TCP] {nodes} {both}")])?;
    }

    let mut local = spec("NodePort", json!([{"port": 81, "nodePort": 30102}]));
    local["externalTrafficPolicy"] = "Local".into();
    scene.service("web", local, json!({}))?;
    for node in [1, 2] {
        let own = format!("web IPv4 Local {} -> 10.244.{node}.10:8080", node_port(node));
        scene.expect(node, &[&format!("web IPv4 Cluster [ClusterIP 10.96.1.2:81 TCP] {both}"), &own])?;
    }

    scene.service("web", spec("ClusterIP", json!([{"port": 80}])), json!({}))?;
    scene.expect_everywhere(&[&format!("web IPv4 Cluster [ClusterIP 10.96.1.2:80 TCP] {both}")])
}

#[test]
fn headless_external_and_foreign_services_are_not_served() -> Result<()> {
    let cluster = shared();
    let scene = Scene::new(&cluster, "not-ours")?;
    let with = |label: &str| json!({"metadata": {"labels": {label: "other"}}});
    let foreign = "service.kubernetes.io/service-proxy-name";
    let ports = json!([{"port": 80}]);
    let at = |address: &str| json!({"clusterIP": address, "ports": ports});
    scene.service("headless", at("None"), json!({}))?;
    scene.service("external", json!({"type": "ExternalName", "externalName": "example.com"}), json!({}))?;
    scene.service("labelled", at("10.96.1.3"), with("service.kubernetes.io/headless"))?;
    scene.service("foreign", at("10.96.1.4"), with(foreign))?;
    // A later Service is served, so the agent has seen the earlier ones.
    scene.service("ours", at("10.96.1.5"), json!({}))?;
    let ours = "ours IPv4 Cluster [ClusterIP 10.96.1.5:80 TCP] -> none";
    // The label alone makes no Service headless.
    let labelled = "labelled IPv4 Cluster [ClusterIP 10.96.1.3:80 TCP] -> none";
    scene.expect_everywhere(&[labelled, ours])?;

    scene.service("foreign", at("10.96.1.4"), json!({}))?;
    scene.expect_everywhere(&[
        "foreign IPv4 Cluster [ClusterIP 10.96.1.4:80 TCP] -> none",
        labelled,
        ours,
    ])?;
    scene.service("ours", at("10.96.1.5"), with(foreign))?;
    scene.expect_everywhere(&["foreign IPv4 Cluster [ClusterIP 10.96.1.4:80 TCP] -> none", labelled])
}

#[test]
fn families_come_and_go_with_the_family_policy() -> Result<()> {
    let cluster = shared();
    let scene = Scene::new(&cluster, "families")?;
    let ports = json!([{"port": 80}]);
    let single = json!({
        "clusterIP": "2001:db8:5::1:6",
        "ipFamilies": ["IPv6"],
        "ipFamilyPolicy": "SingleStack",
        "ports": ports,
    });
    let dual = json!({
        "clusterIP": "2001:db8:5::1:6",
        "clusterIPs": ["2001:db8:5::1:6", "10.96.1.6"],
        "ipFamilies": ["IPv6", "IPv4"],
        "ipFamilyPolicy": "PreferDualStack",
        "ports": ports,
    });
    let v4 = "web IPv4 Cluster [ClusterIP 10.96.1.6:80 TCP] -> none";
    let v6 = "web IPv6 Cluster [ClusterIP [2001:db8:5::1:6]:80 TCP] -> none";
    scene.service("web", single.clone(), json!({}))?;
    scene.expect_everywhere(&[v6])?;
    scene.service("web", dual, json!({}))?;
    scene.expect_everywhere(&[v4, v6])?;
    scene.service("web", single, json!({}))?;
    scene.expect_everywhere(&[v6])
}

#[test]
fn one_port_over_every_protocol_is_a_frontend_each() -> Result<()> {
    let cluster = shared();
    let scene = Scene::new(&cluster, "protocols")?;
    let port = |name: &str, protocol: &str| json!({"name": name, "port": 53, "protocol": protocol});
    let ports = json!([port("sctp", "SCTP"), port("tcp", "TCP"), port("udp", "UDP")]);
    scene.service("dns", json!({"clusterIP": "10.96.1.7", "ports": ports}), json!({}))?;
    let target =
        |name: &str, protocol: &str, port: u16| json!({"name": name, "port": port, "protocol": protocol});
    let targets =
        json!([target("sctp", "SCTP", 5301), target("tcp", "TCP", 5302), target("udp", "UDP", 5303)]);
    let endpoints = json!([{"addresses": ["10.244.1.10"], "nodeName": "node1"}]);
    scene.slice_with("dns-1", "dns", json!({"ports": targets, "endpoints": endpoints}))?;
    scene.expect_everywhere(&[
        "dns:sctp IPv4 Cluster [ClusterIP 10.96.1.7:53 SCTP] -> 10.244.1.10:5301",
        "dns:tcp IPv4 Cluster [ClusterIP 10.96.1.7:53 TCP] -> 10.244.1.10:5302",
        "dns:udp IPv4 Cluster [ClusterIP 10.96.1.7:53 UDP] -> 10.244.1.10:5303",
    ])
}

#[test]
fn session_affinity_is_switched_on_retimed_and_switched_off() -> Result<()> {
    let cluster = shared();
    let scene = Scene::new(&cluster, "affinity")?;
    let spec = |affinity: &str, seconds: Option<u32>| {
        let config = seconds.map(|seconds| json!({"clientIP": {"timeoutSeconds": seconds}}));
        json!({
            "clusterIP": "10.96.1.8",
            "sessionAffinity": affinity,
            "sessionAffinityConfig": config,
            "ports": [{"port": 80}],
        })
    };
    let line = |more: &str| format!("web IPv4 Cluster [ClusterIP 10.96.1.8:80 TCP{more}] -> none");
    scene.service("web", spec("ClientIP", None), json!({}))?;
    scene.expect_everywhere(&[&line(" affinity 10800 s")])?;
    scene.service("web", spec("ClientIP", Some(600)), json!({}))?;
    scene.expect_everywhere(&[&line(" affinity 600 s")])?;
    scene.service("web", spec("None", None), json!({}))?;
    scene.expect_everywhere(&[&line("")])
}

#[test]
fn source_ranges_hold_for_load_balancer_addresses_of_their_family() -> Result<()> {
    let cluster = shared();
    let scene = Scene::new(&cluster, "ranges")?;
    let spec = |ranges| {
        json!({
            "type": "LoadBalancer",
            "clusterIP": "10.96.1.9",
            "loadBalancerSourceRanges": ranges,
            "allocateLoadBalancerNodePorts": false,
            "ports": [{"port": 80}],
        })
    };
    let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.109"}]}}});
    let line = |more: &str| {
        format!(
            "web IPv4 Cluster [ClusterIP 10.96.1.9:80 TCP] [LoadBalancer 203.0.113.109:80 TCP{more}] -> none"
        )
    };
    let ranges = json!(["192.0.2.0/24", "198.51.100.0/25", "2001:db8:c::/64"]);
    scene.service("web", spec(ranges), status.clone())?;
    scene.expect_everywhere(&[&line(" from 192.0.2.0/24,198.51.100.0/25")])?;
    scene.service("web", spec(json!(["198.51.100.10/32"])), status.clone())?;
    scene.expect_everywhere(&[&line(" from 198.51.100.10/32")])?;
    scene.service("web", spec(json!(null)), status)?;
    scene.expect_everywhere(&[&line("")])
}

#[test]
fn the_older_of_two_services_with_one_address_has_it_until_it_goes() -> Result<()> {
    let cluster = shared();
    let scene = Scene::new(&cluster, "claims")?;
    let spec = |address: &str| {
        json!({
            "type": "LoadBalancer",
            "clusterIP": address,
            "allocateLoadBalancerNodePorts": false,
            "ports": [{"port": 80}],
        })
    };
    let status = || json!({"status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.110"}]}}});
    // The names contradict the age: the time of creation decides. It has a resolution of seconds.
    scene.service("z-first", spec("10.96.1.10"), status())?;
    let created = |name: &str| -> Result<serde_json::Value> {
        let services = scene.kube().list("v1", "Service", "claims")?;
        let service = services.into_iter().find(|service| service["metadata"]["name"] == name);
        Ok(service.expect("it was just put")["metadata"]["creationTimestamp"].clone())
    };
    loop {
        scene.service("a-second", spec("10.96.1.11"), status())?;
        if created("a-second")? != created("z-first")? {
            break;
        }
        scene.delete_service("a-second")?;
    }
    scene.expect_everywhere(&[
        "a-second IPv4 Cluster [ClusterIP 10.96.1.11:80 TCP] -> none",
        "z-first IPv4 Cluster [ClusterIP 10.96.1.10:80 TCP] [LoadBalancer 203.0.113.110:80 TCP] -> none",
    ])?;
    scene.delete_service("z-first")?;
    scene.expect_everywhere(&[
        "a-second IPv4 Cluster [ClusterIP 10.96.1.11:80 TCP] [LoadBalancer 203.0.113.110:80 TCP] -> none",
    ])
}

#[test]
fn forbidden_external_addresses_are_refused_and_reported() -> Result<()> {
    let cluster = shared();
    let scene = Scene::new(&cluster, "refused")?;
    let read = cluster.proxy(1)?.log().len();
    let spec = json!({
        "clusterIP": "10.96.1.12",
        "externalIPs": ["192.0.2.1", "172.30.0.12", "203.0.113.112"],
        "ports": [{"port": 80}],
    });
    scene.service("web", spec, json!({}))?;
    scene.expect_everywhere(&[
        "web IPv4 Cluster [ClusterIP 10.96.1.12:80 TCP] [ExternalIP 203.0.113.112:80 TCP] -> none",
    ])?;
    for address in ["192.0.2.1", "172.30.0.12"] {
        crate::fixture::wait_for_line(&cluster, 1, read, &["refused/web", "spec.externalIPs", address])?;
    }
    Ok(())
}

#[test]
fn an_annotation_switches_direct_return_on_and_off() -> Result<()> {
    let cluster = shared();
    let scene = Scene::new(&cluster, "annotated")?;
    let spec = json!({
        "type": "LoadBalancer",
        "clusterIP": "10.96.1.13",
        "allocateLoadBalancerNodePorts": false,
        "ports": [{"port": 80}],
    });
    let with = |annotations| {
        json!({
            "metadata": {"annotations": annotations},
            "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.113"}]}},
        })
    };
    let line = |more: &str| {
        format!(
            "web IPv4 Cluster [ClusterIP 10.96.1.13:80 TCP] [LoadBalancer 203.0.113.113:80 TCP{more}] -> none"
        )
    };
    for annotation in [("millrace.dev/forwarding", "dsr"), ("kube-router.io/service.dsr", "tunnel")] {
        scene.service("web", spec.clone(), with(json!({annotation.0: annotation.1})))?;
        scene.expect_everywhere(&[&line(" dsr")])?;
        scene.service("web", spec.clone(), with(json!({})))?;
        scene.expect_everywhere(&[&line("")])?;
    }
    Ok(())
}
