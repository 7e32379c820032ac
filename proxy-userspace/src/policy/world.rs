//! Random clusters: pods in three namespaces on two nodes, and policies of every form.

use serde_json::{Value, json};

use super::random::Random;
use super::testing::{namespace, pod, policy};

/// A cluster in manifests.
pub(super) struct World {
    pub namespaces: Vec<Value>,
    pub pods: Vec<Value>,
    pub policies: Vec<Value>,
}

/// The addresses of each node.
pub(super) fn nodes() -> [(&'static str, Vec<String>); 2] {
    [1, 2].map(|node| {
        let name = if node == 1 { "node-1" } else { "node-2" };
        (name, vec![format!("172.16.0.{node}"), format!("fd00:16::{node}")])
    })
}

/// Hosts outside, and an address in the range of pods that no pod has.
pub(super) const HOSTS4: [&str; 4] = ["192.0.2.10", "192.0.2.200", "198.51.100.7", "10.244.1.99"];
pub(super) const HOSTS6: [&str; 4] = ["2001:db8::10", "2001:db8:1::10", "fd00:f::1", "fd00:244:1::99"];

const NAMESPACES: [&str; 3] = ["red", "green", "blue"];
/// One of this many parts has a fault.
const FAULTS: usize = 40;

impl World {
    /// Returns the next cluster.
    pub(super) fn new(random: &mut Random) -> Self {
        let teams = ["a", "b"];
        let namespaces = NAMESPACES.iter().map(|name| {
            let labels = if random.one_in(4) { json!({}) } else { json!({"team": random.pick(&teams)}) };
            namespace(name, labels)
        });
        let namespaces = namespaces.collect();
        let mut pods: Vec<Value> = (0..8).map(|number| usual_pod(random, number)).collect();
        pods.push(host_pod(random));
        pods.push(ended_pod(random, &pods[0]));
        let policies = (0..=random.below(6)).map(|number| any_policy(random, number)).collect();
        Self { namespaces, pods, policies }
    }

    pub(super) fn objects(&self) -> impl Iterator<Item = &Value> {
        self.namespaces.iter().chain(&self.pods).chain(&self.policies)
    }
}

fn labels(random: &mut Random) -> Value {
    let mut labels = json!({"app": random.pick(&["web", "db", "api"])});
    if !random.one_in(3) {
        labels["tier"] = json!(random.pick(&["front", "back"]));
    }
    labels
}

fn ports(random: &mut Random) -> Value {
    let mut ports = Vec::new();
    if !random.one_in(4) {
        ports.push(json!({"name": "http", "containerPort": random.pick(&[80, 8080])}));
    }
    if random.one_in(2) {
        ports.push(json!({"name": "dns", "containerPort": 53, "protocol": "UDP"}));
    }
    if random.one_in(3) {
        // The same name with another protocol is another port.
        ports.push(json!({"name": "http", "containerPort": 80, "protocol": "UDP"}));
    }
    if random.one_in(2) {
        ports.push(json!({"name": "sig", "containerPort": random.pick(&[9, 3868]), "protocol": "SCTP"}));
    }
    json!(ports)
}

fn usual_pod(random: &mut Random, number: usize) -> Value {
    let namespace = NAMESPACES[number % NAMESPACES.len()];
    let node = 1 + number / 4;
    let addresses = [format!("10.244.{node}.{number}"), format!("fd00:244:{node}::{number}")];
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let (labels, ports) = (labels(random), ports(random));
    let mut pod = pod(&format!("{namespace}/p{number}"), &format!("node-{node}"), &addresses, labels, ports);
    let restart = if random.one_in(2) { json!("Always") } else { json!(null) };
    let port = json!({"name": "metrics", "containerPort": 1500});
    pod["spec"]["initContainers"] = json!([{"name": "init", "restartPolicy": restart, "ports": [port]}]);
    pod
}

fn host_pod(random: &mut Random) -> Value {
    let (labels, ports) = (labels(random), ports(random));
    let mut pod = pod("red/host", "node-1", &["172.16.0.1", "fd00:16::1"], labels, ports);
    pod["spec"]["hostNetwork"] = json!(true);
    pod
}

/// Returns a pod that has ended, whose address the other one has got.
fn ended_pod(random: &mut Random, next: &Value) -> Value {
    let address = next["status"]["podIPs"][0]["ip"].as_str().unwrap();
    let (labels, ports) = (labels(random), ports(random));
    let mut pod = pod("red/ended", "node-1", &[address], labels, ports);
    pod["status"]["phase"] = json!(random.pick(&["Succeeded", "Failed"]));
    pod
}

fn any_policy(random: &mut Random, number: usize) -> Value {
    let mut spec = json!({"podSelector": selector(random)});
    for (direction, peers) in [("ingress", "from"), ("egress", "to")] {
        if random.one_in(3) {
            continue;
        }
        let rules = (0..random.below(3)).map(|_| rule(random, peers));
        spec[direction] = rules.collect();
    }
    let types: &[&str] = match random.below(8) {
        0..3 => &["Ingress", "Egress"],
        3 => &["Ingress"],
        4 => &["Egress"],
        5 => &[],
        _ if random.one_in(FAULTS / 4) => &["Engress"],
        _ => return policy(&format!("{}/n{number}", random.pick(&NAMESPACES)), spec),
    };
    spec["policyTypes"] = json!(types);
    policy(&format!("{}/n{number}", random.pick(&NAMESPACES)), spec)
}

fn rule(random: &mut Random, peers: &str) -> Value {
    let mut rule = json!({});
    if !random.one_in(4) {
        rule[peers] = (0..random.below(3)).map(|_| peer(random)).collect();
    }
    if !random.one_in(4) {
        rule["ports"] = (0..random.below(4)).map(|_| port(random)).collect();
    }
    rule
}

fn peer(random: &mut Random) -> Value {
    match random.below(8) {
        0 | 1 => json!({"podSelector": selector(random)}),
        2 => json!({"namespaceSelector": namespace_selector(random)}),
        3 | 4 => json!({"namespaceSelector": namespace_selector(random), "podSelector": selector(random)}),
        _ if random.one_in(FAULTS) => json!({}),
        _ if random.one_in(FAULTS) => json!({"ipBlock": {"cidr": "0.0.0.0/0"}, "podSelector": {}}),
        _ => json!({"ipBlock": block(random)}),
    }
}

fn selector(random: &mut Random) -> Value {
    match random.below(6) {
        0 | 1 => json!({}),
        2 => json!({"matchLabels": {"app": random.pick(&["web", "db", "api"])}}),
        3 => json!({"matchLabels": {"tier": random.pick(&["front", "back"])}}),
        _ => {
            let count = 1 + random.below(2);
            json!({"matchExpressions": (0..count).map(|_| expression(random, "app", "tier")).collect::<Vec<_>>()})
        }
    }
}

fn namespace_selector(random: &mut Random) -> Value {
    match random.below(3) {
        0 => json!({}),
        1 => json!({"matchLabels": {"team": random.pick(&["a", "b"])}}),
        _ => json!({"matchExpressions": [expression(random, "team", "team")]}),
    }
}

fn expression(random: &mut Random, key: &str, other: &str) -> Value {
    let key = *random.pick(&[key, other]);
    if random.one_in(FAULTS) {
        let faults = [("Is", vec!["web"]), ("In", vec![]), ("NotIn", vec![]), ("Exists", vec!["web"])];
        let (operator, values) = random.pick(&faults);
        return json!({"key": key, "operator": operator, "values": values});
    }
    let operator = *random.pick(&["In", "NotIn", "Exists", "DoesNotExist"]);
    let all = ["web", "db", "front", "back", "a", "none"];
    let values: Vec<&str> = match operator {
        "In" | "NotIn" => (0..=random.below(3)).map(|_| *random.pick(&all)).collect(),
        _ => Vec::new(),
    };
    json!({"key": key, "operator": operator, "values": values})
}

fn block(random: &mut Random) -> Value {
    if random.one_in(FAULTS) {
        return random
            .pick(&[
                json!({"cidr": "10.244.0.0/16", "except": ["10.245.0.0/24"]}),
                json!({"cidr": "10.244.0.0/33"}),
                json!({"cidr": "192.0.2.0/24", "except": ["192.0.2.0/24"]}),
                json!({"cidr": "0.0.0.0/0", "except": ["::/1"]}),
            ])
            .clone();
    }
    let blocks: [(&str, &[&str]); 12] = [
        ("0.0.0.0/0", &["10.0.0.0/8", "192.0.2.0/25", "10.244.1.0/24"]),
        ("10.244.0.0/16", &["10.244.1.0/24", "10.244.2.4/30", "10.244.1.2/32"]),
        ("10.244.1.0/24", &["10.244.1.0/30", "10.244.1.1/32"]),
        ("10.244.1.2/31", &["10.244.1.2/32"]),
        ("10.244.2.5/32", &[]),
        ("192.0.2.0/24", &["192.0.2.128/25", "192.0.2.8/29"]),
        ("192.0.2.10/32", &[]),
        ("172.16.0.0/24", &["172.16.0.1/32"]),
        ("::/0", &["fd00::/8", "2001:db8:1::/48"]),
        ("fd00:244::/32", &["fd00:244:1::/48", "fd00:244:2::6/127"]),
        ("fd00:244:1::2/128", &[]),
        ("2001:db8::/32", &["2001:db8:1::/48"]),
    ];
    let (cidr, all) = random.pick(&blocks);
    let except: Vec<&&str> = all.iter().filter(|_| random.one_in(2)).collect();
    if except.is_empty() { json!({"cidr": cidr}) } else { json!({"cidr": cidr, "except": except}) }
}

fn port(random: &mut Random) -> Value {
    if random.one_in(FAULTS) {
        return random
            .pick(&[
                json!({"port": 80, "endPort": 79}),
                json!({"port": "http", "endPort": 8080}),
                json!({"endPort": 8080}),
                json!({"port": 0}),
                json!({"port": "80"}),
                json!({"protocol": "ICMP"}),
            ])
            .clone();
    }
    let ports = [
        json!({}),
        json!({"port": 80}),
        json!({"port": 8080}),
        json!({"port": 82}),
        json!({"port": 79, "endPort": 81}),
        json!({"port": 1, "endPort": 65535}),
        json!({"port": 1000, "endPort": 2000}),
        json!({"port": 53, "endPort": 79}),
        json!({"port": 2000, "endPort": 2000}),
        json!({"port": "http"}),
        json!({"port": "http"}),
        json!({"port": "dns"}),
        json!({"port": "sig"}),
        json!({"port": "metrics"}),
    ];
    let mut port = random.pick(&ports).clone();
    let usual = if port["port"] == "dns" {
        "UDP"
    } else if port["port"] == "sig" {
        "SCTP"
    } else {
        "TCP"
    };
    match random.below(6) {
        0 => port["protocol"] = json!(random.pick(&["TCP", "UDP", "SCTP"])),
        _ if usual != "TCP" => port["protocol"] = json!(usual),
        _ => {}
    }
    port
}
