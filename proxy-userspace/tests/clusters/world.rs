//! Random clusters: pods in three namespaces on two nodes, and policies of every form.

use std::ops::{Deref, DerefMut};

use serde_json::{Value, json};

use super::manifest::{namespace, pod, policy};
use super::random::Random;

/// A cluster in manifests.
pub struct World {
    /// Three Namespaces.
    pub namespaces: Vec<Value>,
    /// Eight usual pods, one of the host's network, and one that has ended.
    pub pods: Vec<Value>,
    /// Up to seven policies.
    pub policies: Vec<Value>,
}

/// Returns the addresses of each node.
pub fn nodes() -> [(&'static str, Vec<String>); 2] {
    [1, 2].map(|node| {
        let name = if node == 1 { "node-1" } else { "node-2" };
        (name, vec![format!("172.16.0.{node}"), format!("fd00:16::{node}")])
    })
}

/// Hosts outside, and an address in the range of pods that no pod has.
const HOSTS4: [&str; 4] = ["192.0.2.10", "192.0.2.200", "198.51.100.7", "10.244.1.99"];
const HOSTS6: [&str; 4] = ["2001:db8::10", "2001:db8:1::10", "fd00:f::1", "fd00:244:1::99"];

/// The protocols that are asked for as the API writes them, their numbers, and the ports.
pub const ASKED: [(&str, u8, &[u16]); 4] = [
    ("TCP", 6, &[53, 79, 80, 81, 82, 1500, 2000, 2001, 8080]),
    ("UDP", 17, &[53, 80, 1000, 2001]),
    ("SCTP", 132, &[9, 80, 3868]),
    ("ICMP", 1, &[0]),
];

const NAME_LABEL: &str = "kubernetes.io/metadata.name";
const NAMESPACES: [&str; 3] = ["red", "green", "blue"];
/// Pods with a network of their own, half of them on each node.
const USUAL_PODS: usize = 8;
/// One of this many parts has a fault.
const FAULTS: usize = 40;

/// Random choices.
struct Dice<'a> {
    random: &'a mut Random,
    /// Whether parts of policies may be invalid.
    has_faults: bool,
}

impl Dice<'_> {
    /// Returns whether a part is to have a fault, once in `times`.
    fn is_faulty(&mut self, times: usize) -> bool {
        self.has_faults && self.random.one_in(times)
    }
}

impl Deref for Dice<'_> {
    type Target = Random;

    fn deref(&self) -> &Random {
        self.random
    }
}

impl DerefMut for Dice<'_> {
    fn deref_mut(&mut self) -> &mut Random {
        self.random
    }
}

impl World {
    /// Returns a cluster. Some parts of its policies are invalid.
    pub fn new(random: &mut Random) -> Self {
        Self::of(&mut Dice { random, has_faults: true })
    }

    /// Returns a cluster whose policies an API server accepts.
    pub fn valid(random: &mut Random) -> Self {
        Self::of(&mut Dice { random, has_faults: false })
    }

    fn of(dice: &mut Dice<'_>) -> Self {
        let teams = ["a", "b"];
        let namespaces = NAMESPACES.iter().map(|name| {
            // The API server gives each of them this label.
            let mut labels = json!({NAME_LABEL: name});
            if !dice.one_in(4) {
                labels["team"] = json!(dice.pick(&teams));
            }
            namespace(name, labels)
        });
        let namespaces = namespaces.collect();
        let mut pods: Vec<Value> = (0..USUAL_PODS).map(|number| usual_pod(dice, number)).collect();
        pods.push(host_pod(dice));
        pods.push(ended_pod(dice, &pods[0]));
        let policies = (0..=dice.below(6)).map(|number| any_policy(dice, number)).collect();
        Self { namespaces, pods, policies }
    }

    /// Returns all objects.
    pub fn objects(&self) -> impl Iterator<Item = &Value> {
        self.namespaces.iter().chain(&self.pods).chain(&self.policies)
    }

    /// Returns the addresses of the IPv4 (0) or IPv6 (1) family: pods, nodes and hosts.
    pub fn ends(&self, family: usize) -> Vec<String> {
        let pods = self.pods.iter().take(USUAL_PODS);
        let mut ends: Vec<String> =
            pods.map(|pod| pod["status"]["podIPs"][family]["ip"].as_str().unwrap().to_owned()).collect();
        ends.extend(nodes().into_iter().map(|(_, addresses)| addresses[family].clone()));
        ends.extend([HOSTS4, HOSTS6][family].iter().map(|host| (*host).to_owned()));
        ends
    }
}

fn labels(dice: &mut Dice<'_>) -> Value {
    let mut labels = json!({"app": dice.pick(&["web", "db", "api"])});
    if !dice.one_in(3) {
        // A label without a value is not a label that is missing.
        labels["tier"] = json!(dice.pick(&["front", "back", ""]));
    }
    labels
}

fn ports(dice: &mut Dice<'_>) -> Value {
    let mut ports = Vec::new();
    if !dice.one_in(4) {
        ports.push(json!({"name": "http", "containerPort": dice.pick(&[80, 8080])}));
    }
    if dice.one_in(2) {
        ports.push(json!({"name": "dns", "containerPort": 53, "protocol": "UDP"}));
    }
    if dice.one_in(3) {
        // The same name with another protocol is another port.
        ports.push(json!({"name": "http", "containerPort": 80, "protocol": "UDP"}));
    }
    if dice.one_in(2) {
        ports.push(json!({"name": "sig", "containerPort": dice.pick(&[9, 3868]), "protocol": "SCTP"}));
    }
    json!(ports)
}

fn usual_pod(dice: &mut Dice<'_>, number: usize) -> Value {
    let namespace = NAMESPACES[number % NAMESPACES.len()];
    let node = 1 + number / 4;
    let addresses = [format!("10.244.{node}.{number}"), format!("fd00:244:{node}::{number}")];
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let (labels, ports) = (labels(dice), ports(dice));
    let mut pod = pod(&format!("{namespace}/p{number}"), &format!("node-{node}"), &addresses, labels, ports);
    let restart = if dice.one_in(2) { json!("Always") } else { json!(null) };
    let port = json!({"name": "metrics", "containerPort": 1500});
    pod["spec"]["initContainers"] = json!([{"name": "init", "restartPolicy": restart, "ports": [port]}]);
    pod
}

fn host_pod(dice: &mut Dice<'_>) -> Value {
    let (labels, ports) = (labels(dice), ports(dice));
    let mut pod = pod("red/host", "node-1", &["172.16.0.1", "fd00:16::1"], labels, ports);
    pod["spec"]["hostNetwork"] = json!(true);
    pod
}

/// Returns a pod that has ended, whose address the other one has got.
fn ended_pod(dice: &mut Dice<'_>, next: &Value) -> Value {
    let address = next["status"]["podIPs"][0]["ip"].as_str().unwrap();
    let (labels, ports) = (labels(dice), ports(dice));
    let mut pod = pod("red/ended", "node-1", &[address], labels, ports);
    pod["status"]["phase"] = json!(dice.pick(&["Succeeded", "Failed"]));
    pod
}

fn any_policy(dice: &mut Dice<'_>, number: usize) -> Value {
    let mut spec = json!({"podSelector": selector(dice)});
    for (direction, peers) in [("ingress", "from"), ("egress", "to")] {
        if dice.one_in(3) {
            continue;
        }
        let rules = (0..dice.below(3)).map(|_| rule(dice, peers));
        spec[direction] = rules.collect();
    }
    let types: &[&str] = match dice.below(8) {
        0..3 => &["Ingress", "Egress"],
        3 => &["Ingress"],
        4 => &["Egress"],
        5 => &[],
        _ if dice.is_faulty(FAULTS / 4) => &["Engress"],
        _ => return policy(&format!("{}/n{number}", dice.pick(&NAMESPACES)), spec),
    };
    spec["policyTypes"] = json!(types);
    policy(&format!("{}/n{number}", dice.pick(&NAMESPACES)), spec)
}

fn rule(dice: &mut Dice<'_>, peers: &str) -> Value {
    let mut rule = json!({});
    if !dice.one_in(4) {
        rule[peers] = (0..dice.below(3)).map(|_| peer(dice)).collect();
    }
    if !dice.one_in(4) {
        rule["ports"] = (0..dice.below(4)).map(|_| port(dice)).collect();
    }
    rule
}

fn peer(dice: &mut Dice<'_>) -> Value {
    match dice.below(8) {
        0 | 1 => json!({"podSelector": selector(dice)}),
        2 => json!({"namespaceSelector": namespace_selector(dice)}),
        3 | 4 => json!({"namespaceSelector": namespace_selector(dice), "podSelector": selector(dice)}),
        _ if dice.is_faulty(FAULTS) => json!({}),
        _ if dice.is_faulty(FAULTS) => json!({"ipBlock": {"cidr": "0.0.0.0/0"}, "podSelector": {}}),
        _ => json!({"ipBlock": block(dice)}),
    }
}

fn selector(dice: &mut Dice<'_>) -> Value {
    match dice.below(6) {
        0 | 1 => json!({}),
        2 => json!({"matchLabels": {"app": dice.pick(&["web", "db", "api"])}}),
        3 => {
            let mut selector = json!({"matchLabels": {"tier": dice.pick(&["front", "back", ""])}});
            if dice.one_in(3) {
                selector["matchExpressions"] = json!([expression(dice, "app", "app")]);
            }
            selector
        }
        _ => {
            let count = 1 + dice.below(2);
            json!({"matchExpressions": (0..count).map(|_| expression(dice, "app", "tier")).collect::<Vec<_>>()})
        }
    }
}

fn namespace_selector(dice: &mut Dice<'_>) -> Value {
    match dice.below(4) {
        0 => json!({}),
        1 => json!({"matchLabels": {NAME_LABEL: dice.pick(&NAMESPACES)}}),
        2 => json!({"matchLabels": {"team": dice.pick(&["a", "b"])}}),
        _ => json!({"matchExpressions": [expression(dice, "team", "team")]}),
    }
}

fn expression(dice: &mut Dice<'_>, key: &str, other: &str) -> Value {
    let key = *dice.pick(&[key, other]);
    if dice.is_faulty(FAULTS) {
        let faults = [("Is", vec!["web"]), ("In", vec![]), ("NotIn", vec![]), ("Exists", vec!["web"])];
        let (operator, values) = dice.pick(&faults);
        return json!({"key": key, "operator": operator, "values": values});
    }
    let operator = *dice.pick(&["In", "NotIn", "Exists", "DoesNotExist"]);
    let all = ["web", "db", "front", "back", "", "a", "none"];
    let values: Vec<&str> = match operator {
        "In" | "NotIn" => (0..=dice.below(3)).map(|_| *dice.pick(&all)).collect(),
        _ => Vec::new(),
    };
    json!({"key": key, "operator": operator, "values": values})
}

fn block(dice: &mut Dice<'_>) -> Value {
    if dice.is_faulty(FAULTS) {
        return dice
            .pick(&[
                json!({"cidr": "10.244.0.0/16", "except": ["10.245.0.0/24"]}),
                json!({"cidr": "10.244.0.0/33"}),
                json!({"cidr": "192.0.2.0/24", "except": ["192.0.2.0/24"]}),
                json!({"cidr": "0.0.0.0/0", "except": ["::/1"]}),
            ])
            .clone();
    }
    let blocks: [(&str, &[&str]); 13] = [
        ("0.0.0.0/0", &["10.0.0.0/8", "192.0.2.0/25", "10.244.1.0/24"]),
        ("10.244.0.0/16", &["10.244.1.0/24", "10.244.2.4/30", "10.244.1.2/32"]),
        ("10.244.1.0/24", &["10.244.1.0/30", "10.244.1.1/32"]),
        // Bits behind the prefix don't count.
        ("10.244.2.7/23", &["10.244.2.5/31"]),
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
    let (cidr, all) = dice.pick(&blocks);
    let except: Vec<&&str> = all.iter().filter(|_| dice.one_in(2)).collect();
    if except.is_empty() { json!({"cidr": cidr}) } else { json!({"cidr": cidr, "except": except}) }
}

fn port(dice: &mut Dice<'_>) -> Value {
    if dice.is_faulty(FAULTS) {
        return dice
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
    let mut port = dice.pick(&ports).clone();
    let usual = if port["port"] == "dns" {
        "UDP"
    } else if port["port"] == "sig" {
        "SCTP"
    } else {
        "TCP"
    };
    match dice.below(6) {
        0 => port["protocol"] = json!(dice.pick(&["TCP", "UDP", "SCTP"])),
        _ if usual != "TCP" => port["protocol"] = json!(usual),
        _ => {}
    }
    port
}
